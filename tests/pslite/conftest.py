"""Running clusters of real processes, started as users start them."""

from __future__ import annotations

import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 240  # seconds; no run should come near

Environment = Callable[..., dict[str, str]]
RunJob = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def environment() -> Environment:
    """environment(NAME=value, ...): variables for a process that finds this source tree."""

    def make(**variables: str) -> dict[str, str]:
        ours = ("DMLC_", "PS_", "PSLITE_")
        kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        path = os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH", "")]))
        return {**kept, "PYTHONPATH": path, **variables}

    return make


@pytest.fixture
def run_job(tmp_path: Path, environment: Environment) -> RunJob:
    """run_job(program, servers, workers, *options, args=()): `pslite local` around its text."""

    def run(
        program: str, servers: int, workers: int, *options: str, args: tuple[str, ...] = ()
    ) -> subprocess.CompletedProcess[str]:
        (tmp_path / "worker.py").write_text(textwrap.dedent(program))
        (tmp_path / "local.ini").write_text("[run]\nseed = 9\n")
        command = [sys.executable, "-m", "pslite", "local", "local.ini"]
        command += ["--servers", str(servers), "--workers", str(workers), *options]
        command += ["--", "python", "worker.py", *args]
        result = subprocess.run(
            command,
            cwd=tmp_path,
            env=environment(),
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        print(result.stdout, result.stderr)  # shown when the test fails
        return result

    return run
