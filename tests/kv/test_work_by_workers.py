"""What a step costs a server does not depend on how many workers there are, or wait."""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from kv.consistency.settings import SSP, Consistency, SemiSync, Sync
from kv.table_protocol import Command
from postoffice.node import Role, node_id
from tests.kv.test_table_server import Served

MODES = [SSP(0), SSP(2), Sync(), SemiSync(1.0), SemiSync(0.5), SemiSync(backup_workers=2)]
STEPS = 4


def lines_of_kv(work: Callable[[], None]) -> int:
    """How many lines of kv are executed, loops counted by their turns."""
    count = 0

    def local(frame: FrameType, event: str, arg: Any) -> Any:
        nonlocal count
        count += event == "line"
        return local

    def each(frame: FrameType, event: str, arg: Any) -> Any:
        return local if "/kv/" in frame.f_code.co_filename else None

    before = sys.gettrace()
    sys.settrace(each)
    try:
        work()
    finally:
        sys.settrace(before)
    return count


def job(served: Served, workers: int) -> None:
    """Each step all push, end it and pull for the next, which waits for the others' steps."""
    for step in range(STEPS):
        for worker in (node_id(Role.WORKER, rank) for rank in range(workers)):
            served.push(worker, 2, clock=step)
            served.ask(worker, Command.STEP, {"clock": step}, about=())
            served.pull(worker, clock=step + 1)


@pytest.mark.parametrize("mode", MODES, ids=repr)
def test_work_for_a_step_is_the_same_with_four_times_the_workers(mode: Consistency) -> None:
    each = []
    for workers in (32, 128):
        served = Served(0, mode, workers)
        each.append(lines_of_kv(lambda w=workers, s=served: job(s, w)) / (workers * STEPS))  # type: ignore[misc]

        served.server.engine.validate()
        answers = 3 * workers * STEPS
        assert len(served.office.sent) + len(served.server._held) == answers
        assert len(served.server._held) < workers

    few, many = each
    assert many < 1.2 * few, f"{few:.0f} lines a step with 32 workers, {many:.0f} with 128"
