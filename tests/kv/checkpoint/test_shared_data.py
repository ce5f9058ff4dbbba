"""A job that goes on from a checkpoint reads what had not been read; the model lacks nothing."""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pslite
from kv.checkpoint import last_good
from kv.checkpoint.collective import Checkpoints
from kv.checkpoint.config import CheckpointConfig
from kv.checkpoint.places import place_of
from kv.checkpoint.shelf import Shelf
from kv.checkpoint.together import TogetherCheckpoints
from kv.leases.reading import records_in
from kv.local import LocalCluster
from pslite.audit import audit

RECORDS, UNIT = 1500, 10
LIMIT = 60.0


class InterruptedJobError(Exception):
    """The job ends here."""


def program(url: Path, kind: Any, stop: int, *, in_parts: bool = False) -> Callable[[Any], Any]:
    """Each record is a key that gets 1 more when it is read: its value says how often it was."""

    def run(worker: Any) -> Any:
        table = worker.sparse_table("seen", 1, optimizer=pslite.SGD(lr=1.0), missing="zeros")
        checkpoints = Checkpoints(worker, str(url), kind=kind, every_steps=7, keep=0)
        checkpoints.resume()
        shards = worker.shards("numbers", RECORDS, unit=UNIT, in_parts=in_parts)
        shards.meanwhile = lambda: checkpoints.idle(dict)
        worker.barrier("all are there")
        steps = 0
        for piece in shards:
            for start in range(piece.start, piece.stop, UNIT):
                part = (worker.rank, worker.num_workers) if in_parts else (0, 1)
                own = range(start, min(start + UNIT, piece.stop))[part[0] :: part[1]]
                worker.wait(table.push(list(own), np.full((len(own), 1), -1.0, np.float32)))
                shards.seen(start + UNIT - piece.start)
                worker.step()
                checkpoints.at_step(dict)
                steps += 1
                if steps == stop:
                    await_checkpoint(url, lambda: checkpoints.idle(dict))
                    raise InterruptedJobError
        checkpoints.close(dict)
        worker.barrier("all is read")
        return table.pull(np.arange(RECORDS, dtype=np.uint64)).ravel()

    return run


def await_checkpoint(url: Path, turn: Callable[[], Any]) -> None:
    """A fuzzy one is made beside the steps, and may take longer than these."""
    deadline = time.monotonic() + LIMIT
    while last_good(str(url)) is None:
        assert time.monotonic() < deadline, "no checkpoint"
        turn()
        time.sleep(0.01)


def run_job(
    job: Callable[[Any], Any], folder: Path, workers: int, mode: str = "async"
) -> np.ndarray:
    with pslite.local_cluster(2, workers, mode, run_dir=folder) as cluster:
        values: np.ndarray = cluster.run(job)[0]
    return values


@pytest.mark.parametrize(
    ("kind", "before", "after"), [("step", 2, 2), ("step", 1, 3), ("fuzzy", 1, 1), ("fuzzy", 2, 2)]
)
def test_what_was_not_read_is_read_and_nothing_is_lost(
    tmp_path: Path, kind: str, before: int, after: int
) -> None:
    with pytest.raises(InterruptedJobError):
        run_job(program(tmp_path, kind, stop=60), tmp_path / "first", before)
    read = records_in(last_reading(tmp_path))

    values = run_job(program(tmp_path, kind, stop=0), tmp_path / "again", after)

    account = audit(tmp_path / "again")["numbers"]
    assert account.balances, account.problems
    assert 0 < account.resumed == read < RECORDS
    assert sum(account.records.values()) == RECORDS - read
    assert values.min() == 1
    if kind == "step":
        assert values.max() == 1


@pytest.mark.parametrize("workers", [2, 3])
def test_workers_that_keep_step_go_on_at_one_batch(tmp_path: Path, workers: int) -> None:
    job = program(tmp_path, "step", stop=60, in_parts=True)
    with pytest.raises(InterruptedJobError):
        run_job(job, tmp_path / "first", 2, "sync")

    assert last_reading(tmp_path) == [[1, 0, 56 * UNIT]]
    job = program(tmp_path, "step", stop=0, in_parts=True)
    values = run_job(job, tmp_path / "again", workers, "sync")

    account = audit(tmp_path / "again")["numbers"]
    assert account.balances, account.problems
    assert set(values) == {1.0}


def test_workers_of_one_thread_go_on_as_well(tmp_path: Path) -> None:
    def run(stop: int) -> np.ndarray:
        cluster = LocalCluster(2)
        workers = [cluster.worker(rank) for rank in range(2)]
        tables = [
            worker.sparse_table("seen", 1, optimizer=pslite.SGD(lr=1.0), missing="zeros")
            for worker in workers
        ]
        config = CheckpointConfig(dir=str(tmp_path), every_steps=7)
        checkpoints = TogetherCheckpoints(workers, config)
        checkpoints.resume()
        turns = [steps_of(worker, table) for worker, table in zip(workers, tables, strict=True)]
        for _ in range(stop):
            if not [turn for turn in turns if next(turn, None) is not None]:
                break
            checkpoints.at_step(lambda: [{}, {}])
        return tables[0].pull(np.arange(RECORDS, dtype=np.uint64)).ravel()

    run(stop=60)

    assert set(run(stop=RECORDS)) == {1.0}


def steps_of(worker: Any, table: Any) -> Any:
    shards = worker.shards("numbers", RECORDS, unit=UNIT)
    for piece in shards:
        for start in range(piece.start, piece.stop, UNIT):
            own = np.arange(start, min(start + UNIT, piece.stop), dtype=np.uint64)
            table.push(own, np.full((own.size, 1), -1.0, np.float32))
            shards.seen(start + UNIT - piece.start)
            worker.step()
            yield start


def last_reading(url: Path) -> list[list[int]]:
    shelf = Shelf(place_of(str(url)))
    return shelf.manifest(shelf.names()[-1]).reading["numbers"]
