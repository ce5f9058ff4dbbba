"""What fails at each checkpoint is said once, and once more when it works again."""

from __future__ import annotations

import errno
import logging
import os
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pslite
from kv.checkpoint.collective import Checkpoints
from kv.checkpoint.complaint import Complaint
from kv.checkpoint.config import CheckpointConfig
from kv.checkpoint.places import LocalPlace
from kv.checkpoint.shelf import Shelf
from kv.checkpoint.together import TogetherCheckpoints
from kv.local import LocalCluster

FULL = range(3, 7)  # saves, from 1, that find the disk full


def warnings_in(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [
        record.getMessage()
        for record in caplog.records
        if record.levelno == logging.WARNING and record.name.startswith("kv.checkpoint")
    ]


@pytest.fixture
def disk(monkeypatch: pytest.MonkeyPatch) -> None:
    """A disk that is full for some saves."""
    real, claims = LocalPlace.claim, 0

    def claim(self: LocalPlace, name: str) -> bool:
        nonlocal claims
        if name.startswith("ckpt-"):
            claims += 1
            if claims in FULL:
                with self.reaching(name, "made"):
                    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        return real(self, name)

    monkeypatch.setattr(LocalPlace, "claim", claim)


def assert_said_twice(said: list[str]) -> None:
    first, second = said
    assert "ckpt-000003 was not saved" not in first  # its name was not to be had
    assert "ckpt-000002 is the last good one" in first
    assert "No space left on device; said again only when it has succeeded" in first
    assert "ckpt-000003 was saved, after 4 attempts that failed" in second


@pytest.mark.usefixtures("disk")
@pytest.mark.parametrize("kind", ["step", "fuzzy"])
def test_a_full_disk_is_said_once_and_its_end_with_the_attempts_between(
    kind: Any, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def run(worker: Any) -> int:
        table = worker.sparse_table("t", 1)
        checkpoints = Checkpoints(worker, str(tmp_path), kind=kind, every_steps=2, keep=0)
        for _ in range(18):
            worker.wait(table.push([1], np.ones((1, 1), np.float32)))
            worker.step()
            checkpoints.at_step(dict)
            checkpoints._fuzzy.finish(worker.steps, 1)  # each is to be over before the next
        checkpoints.close(dict)
        return len(checkpoints.tally.failures)

    with pslite.local_cluster(1, 1) as cluster:
        assert cluster.run(run) == [len(FULL)]

    assert_said_twice(warnings_in(caplog))


@pytest.mark.usefixtures("disk")
def test_so_it_is_with_workers_of_one_thread(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = LocalCluster(1)
    (worker,) = cluster.workers
    table = worker.sparse_table("t", 1)
    config = CheckpointConfig(dir=str(tmp_path), every_steps=1, keep=0)
    checkpoints = TogetherCheckpoints([worker], config)
    for _ in range(9):
        table.push([1], np.ones((1, 1), np.float32))
        worker.step()
        checkpoints.at_step(lambda: [{}])

    assert_said_twice(warnings_in(caplog))
    assert len(Shelf(LocalPlace(tmp_path, "x")).names()) == 5


def test_a_trouble_that_never_ends_is_told_at_the_end(caplog: pytest.LogCaptureFixture) -> None:
    complaint = Complaint(logging.getLogger("kv.checkpoint.test"))
    for number in range(3):
        complaint.failed(f"save {number} failed")
    complaint.end()
    complaint.worked("a save has succeeded")
    complaint.end()

    assert warnings_in(caplog) == [
        "save 0 failed; said again only when it has succeeded",
        "3 attempts in a row have failed; the last: save 2 failed",
    ]
