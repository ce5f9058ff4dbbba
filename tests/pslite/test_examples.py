"""The examples run as their docstrings say."""

from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from pslite.audit import audit

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 240


def test_a_server_of_ones_own(environment: Callable[..., dict[str, str]]) -> None:
    command = [sys.executable, "-m", "pslite", "local", "conf/local.ini", "--servers", "2"]
    command += ["--workers", "2", "--set", "server.app=examples.my_server:start"]
    result = subprocess.run(
        [*command, "--", "python", "examples/my_server.py"],
        cwd=ROOT,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )

    assert result.returncode == 0, result.stdout + result.stderr
    assert result.stdout.count("[10. 11. 12.]") == 2


def test_data_shared_by_workers(tmp_path: Path, environment: Callable[..., dict[str, str]]) -> None:
    command = [sys.executable, "-m", "pslite", "local", str(ROOT / "conf/local.ini")]
    command += ["--workers", "2", "--", "python", str(ROOT / "examples/shared_data.py")]
    result = subprocess.run(
        command,
        cwd=tmp_path,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )

    assert result.returncode == 0, result.stdout + result.stderr
    (line,) = [line for line in result.stdout.splitlines() if "means of ids" in line]
    means = [float(number) for number in line.rpartition("[")[2].strip(" ]").split()]
    assert means == pytest.approx([1, 2, 3, 4, 5, 6, 7, 1, 2], abs=0.2)  # pushes are asynchronous
    account = audit(tmp_path / "run")["records"]
    assert account.balances
    assert account.counted == 40_000
