"""Nothing that comes from outside is unpickled or evaluated: no package of ours even names it."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
PACKAGES = ("van", "postoffice", "kv", "pslite", "apps", "feature_extract", "sample")
MODULES = {"pickle", "cPickle", "_pickle", "cloudpickle", "dill", "joblib", "marshal", "shelve"}
MODULES |= {"yaml", "jsonpickle"}
CALLS = {"eval", "exec", "compile"}


def problems(source: str, name: str) -> list[str]:
    """What in a module's source could run what data say."""
    found = []
    for node in ast.walk(ast.parse(source, name)):
        if isinstance(node, ast.Import):
            named = [alias.name.split(".")[0] for alias in node.names]
        elif isinstance(node, ast.ImportFrom):
            named = [(node.module or "").split(".")[0]]
        else:
            named = []
        found += [f"{name}:{node.lineno}: import {n}" for n in named if n in MODULES]
        if isinstance(node, ast.Call):
            found += [f"{name}:{node.lineno}: {text}" for text in _of_call(node)]
    return found


def _of_call(call: ast.Call) -> list[str]:
    function = call.func
    found = []
    if isinstance(function, ast.Name) and function.id in CALLS | {"__import__"}:
        found.append(f"{function.id}()")
    if isinstance(function, ast.Attribute):
        owner = function.value.id if isinstance(function.value, ast.Name) else ""
        keywords = {keyword.arg: keyword.value for keyword in call.keywords}
        if function.attr in {"eval", "exec"} and owner in {"builtins", "np", "numpy", "pd"}:
            found.append(f"{owner}.{function.attr}()")
        if owner == "torch" and function.attr == "load" and not _is(keywords, "weights_only", True):
            found.append("torch.load() without weights_only=True")
        if function.attr in {"recv_pyobj", "send_pyobj"}:
            found.append(f"{function.attr}(), which pickles")
    found += [
        "allow_pickle that is not False"
        for keyword in call.keywords
        if keyword.arg == "allow_pickle" and not _is({"k": keyword.value}, "k", False)
    ]
    return found


def _is(keywords: dict[str | None, ast.expr], name: str, value: object) -> bool:
    given = keywords.get(name)
    return isinstance(given, ast.Constant) and given.value is value


@pytest.mark.parametrize("package", PACKAGES)
def test_a_package_neither_unpickles_nor_evaluates(package: str) -> None:
    files = sorted((ROOT / package).rglob("*.py"))

    wrong = [
        problem
        for file in files
        for problem in problems(file.read_text(encoding="utf-8"), str(file.relative_to(ROOT)))
    ]

    assert files
    assert not wrong, "\n".join(wrong)


@pytest.mark.parametrize(
    "source",
    [
        "import pickle",
        "from cloudpickle import dumps",
        "def f():\n    import marshal",
        "eval(text)",
        "exec(code)",
        "__import__(name)",
        "np.load(path, allow_pickle=True)",
        "np.load(path, allow_pickle=flag)",
        "torch.load(path)",
        "torch.load(path, weights_only=False)",
        "socket.recv_pyobj()",
        "import yaml",
    ],
)
def test_the_search_finds_what_it_should(source: str) -> None:
    assert problems(source, "x")


@pytest.mark.parametrize(
    "source",
    [
        "model.eval()",
        "re.compile(text)",
        "np.load(path, allow_pickle=False)",
        "torch.load(path, weights_only=True)",
        "import json",
    ],
)
def test_the_search_leaves_the_rest_alone(source: str) -> None:
    assert not problems(source, "x")
