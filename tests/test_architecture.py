"""The import rules of docs/design.md, as one table.

Every module of ours may import only from the layers named for its package, and each third-party
library has named owners. Imports inside functions count too.
"""

from __future__ import annotations

import ast
import fnmatch
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent

LAYERS = {
    "van": set(),
    "postoffice": {"van"},
    "kv": {"postoffice", "van"},
    "pslite": {"kv", "postoffice", "van"},
    "feature_extract": set(),
    "sample": set(),
    "apps": {"pslite", "kv", "postoffice", "van", "feature_extract", "sample"},
}

# third-party library -> where it may be imported (patterns of module names)
OWNERS = {
    "zmq": ["van.*"],
    "msgpack": ["van.*", "postoffice.*", "kv.*"],
    "numba": ["kv.kernels.*", "sample.kernels*", "feature_extract.kernels*", "apps.ctr.kernels*"],
    "numpy": [
        "van.*",
        "postoffice.*",
        "kv.*",
        "pslite.*",
        "sample.*",
        "feature_extract.*",
        "apps.*",
    ],
    "torch": ["apps.*", "pslite.nn"],
    "click": ["pslite.cli*", "sample.cli*", "feature_extract.cli*", "apps.*.cli*"],
    "duckdb": ["sample.*", "feature_extract.*", "apps.*"],
    "pyarrow": ["sample.*", "feature_extract.*", "apps.*", "pslite.checkpoint_export"],
    "xxhash": ["feature_extract.*", "apps.*"],
    "fsspec": ["kv.checkpoint.places"],
    "zstandard": ["kv.compression.lossless"],
    "tqdm": ["sample.*", "feature_extract.*", "apps.*", "pslite.*"],
    "matplotlib": ["apps.*", "pslite.bench.*", "pslite.simulate.plot"],
}
TEST_ONLY = {"pytest", "hypothesis", "sklearn", "psutil", "scipy"}


def modules() -> list[tuple[str, Path]]:
    found = []
    for package in LAYERS:
        for path in sorted((ROOT / package).rglob("*.py")):
            parts = path.relative_to(ROOT).with_suffix("").parts
            found.append((".".join(parts[:-1] if parts[-1] == "__init__" else parts), path))
    return found


def imports(path: Path) -> list[tuple[int, str]]:
    found = []
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"), str(path))):
        if isinstance(node, ast.Import):
            found += [(node.lineno, alias.name) for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            assert node.level == 0, f"{path}:{node.lineno}: relative import"
            found.append((node.lineno, node.module or ""))
    return found


def problem(module: str, imported: str) -> str | None:
    """What is wrong with `module` importing `imported`, or None."""
    package, target = module.split(".")[0], imported.split(".")[0]
    if target in LAYERS:
        if target != package and target not in LAYERS[package]:
            return f"{package} is below or beside {target}"
    elif target in OWNERS:
        if not any(
            fnmatch.fnmatch(module, p) or fnmatch.fnmatch(module + ".", p) for p in OWNERS[target]
        ):
            return f"{target} belongs to {OWNERS[target]}"
    elif target in TEST_ONLY:
        return f"{target} is for tests only"
    elif target not in sys.stdlib_module_names:
        return f"{target} has no owner in the table"
    return None


@pytest.mark.parametrize(
    ("module", "path"), modules(), ids=lambda v: v if isinstance(v, str) else ""
)
def test_imports_follow_the_layers(module: str, path: Path) -> None:
    wrong = [
        f"{path.relative_to(ROOT)}:{line}: import {name}: {why}"
        for line, name in imports(path)
        if (why := problem(module, name))
    ]

    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    ("module", "imported"),
    [
        ("van.codec", "kv.tables"),
        ("kv.server", "pslite"),
        ("kv.server", "zmq"),
        ("kv.store.rows", "numba"),
        ("sample.join", "van.errors"),
        ("pslite.config", "torch"),
        ("kv.server", "requests"),
    ],
)
def test_the_table_refuses_what_it_should(module: str, imported: str) -> None:
    assert problem(module, imported)


@pytest.mark.parametrize("statement", ["import pslite", "import pslite.cli"])
def test_the_face_is_cheap_to_import(statement: str) -> None:
    heavy = "{'numpy', 'numba', 'torch', 'zmq'}"
    code = f"import sys; {statement}; print(sorted({heavy} & set(sys.modules)))"

    result = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
    )

    assert result.stdout.strip() == "[]"
