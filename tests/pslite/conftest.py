"""Running clusters of real processes, started as users start them."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest

from tests import jobs

Environment = Callable[..., dict[str, str]]
RunJob = Callable[..., subprocess.CompletedProcess[str]]


@pytest.fixture
def environment() -> Environment:
    """environment(NAME=value, ...): variables for a process that finds this source tree."""
    return jobs.environment


@pytest.fixture
def run_job(tmp_path: Path) -> RunJob:
    """run_job(program, servers, workers, *options, args=()): `pslite local` around its text."""
    return partial(jobs.run_program, tmp_path)
