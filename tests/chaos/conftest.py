"""Jobs of real processes in which things go wrong on purpose, started as users start them."""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.jobs import run_program


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
        options = ["--chaos", plan]
        options += [part for setting in settings for part in ("--set", setting)]
        result = run_program(tmp_path, program, servers, workers, *options)
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
