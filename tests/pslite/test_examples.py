"""The examples run as their docstrings say."""

from __future__ import annotations

import sys
from pathlib import Path

import pytest

from pslite.audit import audit
from tests.jobs import ROOT, run_here


@pytest.mark.slow
def test_a_server_of_ones_own() -> None:
    command = [sys.executable, "-m", "pslite", "local", "conf/local.ini", "--servers", "1"]
    command += ["--workers", "2", "--set", "server.app=examples.my_server:start"]
    result = run_here(ROOT, [*command, "--", "python", "examples/my_server.py"])

    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("[10. 11. 12.]") == 2


@pytest.mark.slow
def test_data_shared_by_workers(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "pslite", "local", str(ROOT / "conf/local.ini")]
    command += ["--workers", "2", "--", "python", str(ROOT / "examples/shared_data.py")]
    result = run_here(tmp_path, command)

    assert result.returncode == 0, result.stdout + result.stderr
    (line,) = [line for line in result.stdout.splitlines() if "means of ids" in line]
    means = [float(number) for number in line.rpartition("[")[2].strip(" ]").split()]
    assert means == pytest.approx([1, 2, 3, 4, 5, 6, 7, 1, 2], abs=0.2)  # pushes are asynchronous
    account = audit(tmp_path / "run")["records"]
    assert account.balances
    assert account.counted == 40_000
