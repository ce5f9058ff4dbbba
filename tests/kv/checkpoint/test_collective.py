"""A job that goes on from a checkpoint is the job that was never interrupted."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import nullcontext
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import pslite
from kv.checkpoint.collective import Checkpoints
from kv.checkpoint.desk import Desk
from kv.checkpoint.errors import CheckpointMismatchError, CheckpointWriteError
from kv.checkpoint.leading import Leader
from kv.checkpoint.places import place_of
from kv.checkpoint.rowfile import read_blocks
from kv.checkpoint.shards import LocalShards
from kv.checkpoint.shelf import Shelf
from kv.engine import Engine
from kv.optimizers import Adagrad, Adam, Momentum
from kv.policies import AfterSightings, ByAge
from kv.protocols import Worker
from kv.schedules import Warmup
from kv.store.rows import RowBatch
from tests.disk import small_files

DIM, KEYS, STEPS = 4, 400, 12
NO_SHARDS = LocalShards(Desk(Engine(1)))


def tables_of(worker: Worker, **options: Any) -> list[Any]:
    return [
        worker.sparse_table(
            "half/ids", DIM, optimizer=Adam(lr=0.1, schedule=Warmup(9)), storage="float16"
        ),
        worker.sparse_table(
            "seen", DIM, optimizer=Momentum(lr=0.1), admission=AfterSightings(3, 1000),
            expiry=ByAge(1e6), **options,
        ),
        worker.dense_table("w", (70, 70), optimizer=Adam(lr=0.01)),
    ]  # fmt: skip


def step_of(worker: Worker, tables: list[Any], number: int) -> None:
    """One step, whose gradients depend on what was pulled."""
    rng = np.random.default_rng((number, worker.rank))
    keys = rng.integers(0, KEYS, 120).astype(np.uint64)
    half, seen, dense = tables
    pulled = worker.pull_many([(half, keys), (seen, keys), dense])
    worker.push_many(
        [
            (half, keys, pulled[0] + rng.standard_normal((keys.size, DIM)).astype(np.float32)),
            (seen, keys, pulled[1] + 1),
            (dense, pulled[2] - 0.5),
        ]
    )
    if number == 2 and worker.rank == 0:
        worker.set_lr(seen, 0.3)
    if number == 4 and worker.rank == 0:
        half.delete(np.arange(40, dtype=np.uint64))
    worker.step()


def everything(tables: list[Any]) -> list[np.ndarray]:
    found: list[np.ndarray] = []
    for table in tables[:2]:
        batches = list(table.items())
        keys = np.concatenate([batch[0] for batch in batches])
        values = np.concatenate([batch[1] for batch in batches])
        order = np.argsort(keys)
        found += [keys[order], values[order]]
    return [*found, tables[2].pull()]


class InterruptedJobError(Exception):
    """The job ends here."""


def program(
    url: Path, stop: int | None = None, resume: str = "auto", **options: Any
) -> Callable[[Any], list[np.ndarray]]:
    settings = {"every_steps": 3, "full_every": 3, "keep": 0, **options}

    def run(worker: Any) -> list[np.ndarray]:
        tables = tables_of(worker)
        checkpoints = Checkpoints(worker, str(url), **settings)
        found = checkpoints.resume(resume)
        state = {"step": found.states[0]["step"] if found else 0}
        for number in range(state["step"], STEPS):
            step_of(worker, tables, number)
            state["step"] = number + 1
            checkpoints.at_step(lambda: state)
            if number + 1 == stop:
                worker.barrier("stop")
                raise InterruptedJobError
        checkpoints.close(lambda: state)
        assert checkpoints.tally.failures == []
        worker.barrier("done")
        result = everything(tables)
        worker.barrier("read")
        return result

    return run


def run_job(
    job: Callable[[Any], list[np.ndarray]], servers: int, workers: int, mode: str
) -> list[np.ndarray]:
    with pslite.local_cluster(servers, workers, mode) as cluster:
        return cluster.run(job)[0]


def assert_same(one: list[np.ndarray], other: list[np.ndarray]) -> None:
    for mine, yours in zip(one, other, strict=True):
        np.testing.assert_array_equal(mine, yours)


@pytest.mark.parametrize(("workers", "mode"), [(2, "sync"), (1, "async")])
def test_going_on_gives_the_bits_of_a_run_without_interruption(
    tmp_path: Path, workers: int, mode: str
) -> None:
    whole = run_job(program(tmp_path / "whole"), 2, workers, mode)
    with pytest.raises(InterruptedJobError):
        run_job(program(tmp_path / "cut", stop=11), 2, workers, mode)

    again = run_job(program(tmp_path / "cut"), 2, workers, mode)

    assert_same(again, whole)
    shelf = Shelf(place_of(str(tmp_path / "cut")))
    kinds = [shelf.manifest(name).kind for name in shelf.names()]
    assert kinds == ["full", "incremental", "incremental", "full"]


def test_other_numbers_of_servers_and_workers_take_up_the_same_rows(tmp_path: Path) -> None:
    whole = run_job(program(tmp_path, stop=None), 2, 2, "sync")

    for servers, workers in ((1, 2), (3, 1)):
        again = run_job(program(tmp_path), servers, workers, "sync")

        assert_same(again, whole)


def test_each_checkpoint_of_a_chain_can_be_gone_back_to(tmp_path: Path) -> None:
    whole = run_job(program(tmp_path), 2, 2, "sync")

    for name in Shelf(place_of(str(tmp_path))).names()[:3]:
        assert_same(run_job(program(tmp_path, resume=name), 2, 2, "sync"), whole)


def test_a_damaged_checkpoint_is_named_and_the_one_before_it_used(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    whole = run_job(program(tmp_path), 2, 1, "sync")
    last = Shelf(place_of(str(tmp_path))).names()[-1]
    file = sorted((tmp_path / last).glob("*.rows"))[0]
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)

    again = run_job(program(tmp_path), 2, 1, "sync")

    assert_same(again, whole)
    assert f"{last} is damaged: file {last}/{file.name} was altered" in caplog.text


def test_tables_that_differ_are_named_and_nothing_is_loaded(tmp_path: Path) -> None:
    run_job(program(tmp_path), 1, 1, "sync")

    def other(worker: Any) -> str:
        half = worker.sparse_table("half/ids", DIM + 1, optimizer=Adam(lr=0.1), storage="float16")
        worker.sparse_table("new", 2)
        worker.dense_table("w", (70, 71), optimizer=Adam(lr=0.01))
        with pytest.raises(CheckpointMismatchError) as raised:
            Checkpoints(worker, str(tmp_path)).resume()
        assert len(half) == 0
        return str(raised.value)

    with pslite.local_cluster(1, 1) as cluster:
        text = cluster.run(other)[0]

    for problem in (
        "table new is defined here, but not in it",
        "table seen is in it, but not defined here",
        "table half/ids: dim is 4 in it and 5 here",
        "table w: shape is (70, 70) in it and (70, 71) here",
    ):
        assert problem in text


def test_all_workers_hear_that_the_disk_was_full_and_the_next_save_succeeds(
    tmp_path: Path,
) -> None:
    run_job(program(tmp_path), 2, 2, "sync")
    last = Shelf(place_of(str(tmp_path))).names()[-1]

    def save(worker: Any) -> tuple[str, str]:
        tables = tables_of(worker)
        checkpoints = Checkpoints(worker, str(tmp_path))
        checkpoints.resume()
        step_of(worker, tables, 50)
        worker.barrier()
        limit = small_files(4096) if worker.rank == 0 else nullcontext()  # one for the process
        with limit, pytest.raises(CheckpointWriteError) as raised:
            checkpoints.save()
        worker.barrier()
        return str(raised.value), checkpoints.save()

    with pslite.local_cluster(2, 2, "sync") as cluster:
        (first, name), (second, _) = cluster.run(save)

    assert first == second
    assert f"ckpt-000005 was not saved, {last} is the last good one: server" in first
    assert "cannot be written: File too large" in first
    shelf = Shelf(place_of(str(tmp_path)))
    assert shelf.unfinished() == []
    assert shelf.verify(name)[0].kind == "full"


def test_a_fuzzy_checkpoint_has_each_row_of_one_moment_while_others_push(tmp_path: Path) -> None:
    pushes = 60

    def run(worker: Any) -> list[str]:
        table = worker.sparse_table("t", DIM, optimizer=Adagrad(lr=1.0), initializer=pslite.Zeros())
        checkpoints = Checkpoints(worker, str(tmp_path), kind="fuzzy", every_steps=5, keep=0)
        keys = np.arange(worker.rank, 20_000, 2, dtype=np.uint64)
        for _ in range(pushes):
            worker.wait(table.push(keys, np.ones((keys.size, DIM), np.float32)))
            worker.step()
            checkpoints.at_step(lambda: {"steps": worker.steps})
        checkpoints.close(dict)
        worker.barrier()
        return checkpoints.tally.saved

    with pslite.local_cluster(2, 2) as cluster:
        saved = cluster.run(run)[0]

    weights, squares = [np.float32(0)], np.float32(0)  # after so many pushes of ones
    for _ in range(pushes):
        squares += np.float32(1)
        weights.append(weights[-1] - np.float32(1) / (np.sqrt(squares) + np.float32(1e-10)))
    expected = np.array(weights, np.float32)
    shelf = Shelf(place_of(str(tmp_path)))
    assert saved == shelf.names() != []
    for name in saved:
        manifest = shelf.verify(name)[-1]
        for entry in manifest.servers[0].files:
            with shelf.place.open(f"{name}/{entry.path}") as file:
                for block in read_blocks(file, entry.nbytes):
                    assert isinstance(block, RowBatch)
                    floats = block.data.view(np.float32)
                    seen = floats[:, DIM:]
                    assert (seen == seen[:, :1]).all()
                    np.testing.assert_array_equal(floats[:, :DIM], expected[seen.astype(int)])
    assert [state["steps"] > 0 for state in Leader(NO_SHARDS, shelf).states(manifest)] == [True] * 2


@pytest.mark.parametrize("every", [{"every_steps": 4}, {"every": 1e-6}])
def test_a_worker_without_steps_left_keeps_meeting_the_others(
    tmp_path: Path, every: dict[str, Any]
) -> None:
    def run(worker: Any) -> list[str]:
        table = worker.sparse_table("t", DIM)
        checkpoints = Checkpoints(worker, str(tmp_path), keep=0, **every)
        for number in range(3 + 10 * worker.rank):
            table.push([number], np.ones((1, DIM), np.float32))
            worker.step()
            checkpoints.at_step(lambda: {"steps": worker.steps})
        checkpoints.close(lambda: {"steps": worker.steps})
        return checkpoints.tally.saved

    with pslite.local_cluster(1, 3) as cluster:
        saved = cluster.run(run)[0]

    shelf = Shelf(place_of(str(tmp_path)))
    steps = [shelf.manifest(name).steps for name in saved]
    assert steps[0][0] == 3
    assert steps[-1][2] > 13
    assert steps == sorted(steps)
