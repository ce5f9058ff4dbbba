"""What a launcher does once before its nodes start."""

from __future__ import annotations

import io
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kv.config import ServerConfig
from pslite.config import JobConfig
from pslite.launcher import LaunchOptions, run_local
from pslite.prepare import KERNELS, PREFIX, marker_of, preparation

ROOT = Path(__file__).resolve().parents[2]
DOUBLE = [sys.executable, str(Path(__file__).with_name("doubles.py"))]


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    folder = tmp_path / "kernels"
    folder.mkdir()
    (folder / "adam.py").write_text("one")
    return folder


def test_an_edit_to_a_kernel_asks_for_a_new_marker(kernels: Path) -> None:
    before = marker_of(kernels, {})

    (kernels / "adam.py").write_text("other")

    assert marker_of(kernels, {}) != before


def test_the_marker_lies_beside_numbas_cache(kernels: Path, tmp_path: Path) -> None:
    assert marker_of(kernels, {}).parent == kernels / "__pycache__"
    assert marker_of(kernels, {"NUMBA_CACHE_DIR": str(tmp_path)}).parent == tmp_path


def test_where_kernels_cannot_be_written_the_marker_lies_in_the_users_cache(
    kernels: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(os, "access", lambda path, mode: False)

    assert marker_of(kernels, {"HOME": str(tmp_path)}).parent == tmp_path / ".cache" / "pslite"


def test_a_warm_start_has_nothing_to_do_and_loads_no_numba(tmp_path: Path) -> None:
    marker = marker_of(KERNELS, {"NUMBA_CACHE_DIR": str(tmp_path)})
    assert preparation(JobConfig(), {"NUMBA_CACHE_DIR": str(tmp_path)}) == [
        "--kernels",
        str(marker),
    ]
    marker.touch()
    code = (
        "import sys; from pslite.prepare import preparation; from pslite.config import JobConfig\n"
        f"print(preparation(JobConfig(), {{'NUMBA_CACHE_DIR': {str(tmp_path)!r}}}))\n"
        "print({'numba', 'numpy'} & set(sys.modules))"
    )

    done = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )

    assert (done.stdout, done.stderr) == ("[]\nset()\n", "")


@pytest.mark.slow  # compiles, if nobody has before
def test_compiling_leaves_the_marker(tmp_path: Path) -> None:
    marker, old = tmp_path / f"{PREFIX}new", tmp_path / f"{PREFIX}old"
    old.touch()

    subprocess.run(
        [sys.executable, "-m", "pslite.prepare", "--kernels", str(marker)],
        cwd=ROOT,
        timeout=250,
        check=True,
    )

    assert marker.exists()
    assert not old.exists()


@pytest.mark.parametrize(
    ("app", "said"),
    [
        ("absent_module:serve", "cannot import absent_module: ModuleNotFoundError"),
        ("broken:serve", "cannot import broken: ZeroDivisionError: division by zero"),
        ("fine:absent", "fine has no absent"),
        ("fine:text", "expected a function, found str"),
    ],
)
def test_a_mistake_in_the_servers_program_is_told_once_and_starts_nothing(
    app: str, said: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / "broken.py").write_text("1 / 0")
    (tmp_path / "fine.py").write_text("text = 'no function'")
    monkeypatch.setattr("pslite.prepare.marker_of", lambda *_: tmp_path)  # there: kernels are warm
    out, err = io.StringIO(), io.StringIO()
    options = LaunchOptions(
        env={**os.environ, "PYTHONPATH": str(tmp_path)}, out=out, err=err, node_command=DOUBLE
    )

    code = run_local(JobConfig(server=ServerConfig(app=app)), [*DOUBLE, "pass"], options)

    assert code == 2
    assert "setup: exit code 2" in err.getvalue()
    assert f"[server] app: {app}: {said}" in err.getvalue()
    lines = out.getvalue().splitlines()
    assert [line.split("]")[0] for line in lines] == ["[setup"]
