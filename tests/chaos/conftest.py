"""Jobs of real processes in which things go wrong on purpose, started as users start them."""

from __future__ import annotations

import json
import os
import subprocess
import sys
import textwrap
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 240  # seconds; no run should come near


@dataclass(frozen=True)
class Ended:
    """How a job ended.

    Attributes:
        report: its RUN/chaos.json.
    """

    code: int
    out: str
    err: str
    report: dict[str, Any]

    def seen(self, what: str, by: str | None = None) -> list[dict[str, Any]]:
        """What was noticed of that kind, by all or by one."""
        noticed = self.report["noticed"]
        return [n for n in noticed if n["what"] == what and by in (None, n["by"])]


ChaosJob = Callable[..., Ended]


@pytest.fixture
def chaos_job(tmp_path: Path) -> ChaosJob:
    """chaos_job(program, plan, *settings): `pslite local --chaos PLAN` around its text."""

    def run(program: str, plan: str, *settings: str, servers: int = 2, workers: int = 2) -> Ended:
        (tmp_path / "worker.py").write_text(textwrap.dedent(program))
        (tmp_path / "local.ini").write_text("[run]\nseed = 9\n")
        command = [sys.executable, "-m", "pslite", "local", "local.ini", "--chaos", plan]
        command += ["--servers", str(servers), "--workers", str(workers)]
        command += [part for setting in settings for part in ("--set", setting)]
        ours = ("DMLC_", "PS_", "PSLITE_")
        env = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
        env["PYTHONPATH"] = os.pathsep.join(filter(None, [str(ROOT), env.get("PYTHONPATH", "")]))
        result = subprocess.run(
            [*command, "--", "python", "worker.py"],
            cwd=tmp_path,
            env=env,
            capture_output=True,
            text=True,
            timeout=LIMIT,
            check=False,
        )
        print(result.stdout, result.stderr)  # shown when the test fails
        assert not left_in(tmp_path)
        path = tmp_path / "run" / "chaos.json"
        report = json.loads(path.read_text()) if path.exists() else {}
        return Ended(result.returncode, result.stdout, result.stderr, report)

    return run


def left_in(folder: Path) -> list[psutil.Process]:
    """Processes whose current folder is that one."""
    found = []
    for process in psutil.process_iter():
        try:
            if process.cwd() == str(folder) and process.status() != psutil.STATUS_ZOMBIE:
                found.append(process)
        except psutil.Error:
            continue
    return found
