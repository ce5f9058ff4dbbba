"""A worker that is started again goes on at the step that the servers know."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable

import numpy as np
import pytest

from kv.consistency.settings import SSP, Async, Consistency, SemiSync, Sync
from kv.initializers import Zeros
from kv.optimizers import SGD, Adam
from kv.remote_worker import RemoteWorker
from tests.kv.replication.replicated import Replicated

KEYS = np.arange(40, dtype=np.uint64)
STEPS = 8


def train(
    worker: RemoteWorker,
    began: list[int] | None = None,
    amid: Callable[[int], None] = lambda step: None,
) -> bytes:
    """Train with data that follow from rank and step; the values at the end.

    Args:
        began: gets the step that it begins at.
        amid: called when all is pushed in a step, which has not ended.
    """
    table = worker.sparse_table("t", 2, optimizer=Adam(lr=0.1))
    dense = worker.dense_table("d", (9000,), optimizer=Adam(lr=0.1))
    if began is not None:
        began.append(worker.steps)
    for step in range(worker.steps, STEPS):
        rng = np.random.default_rng([worker.rank, step])
        keys = rng.choice(KEYS, size=10, replace=False)
        rows, array = worker.pull_many([(table, keys), dense])
        worker.push_many([(table, keys, 0.3 * rows + 0.1), (dense, 0.5 * array - 1)])
        table.push(keys[:3], np.ones((3, 2)))
        amid(step)
        worker.step()
    worker.finish()
    worker.barrier()
    found = table.pull(KEYS, create=False).tobytes() + dense.pull().tobytes()
    worker.barrier("read")
    return bytes(found)


@functools.cache
def undisturbed() -> bytes:
    found: list[bytes] = []
    cluster = Replicated(0, workers=2, servers=1, replicas=0, mode="sync")
    for rank in range(2):
        cluster.start_worker(rank, lambda worker: found.append(train(worker)))
    cluster.run()
    assert len(set(found)) == 1
    return found[0]


def kill_amid(cluster: Replicated, chance: random.Random, most: int = 300) -> bool:
    """Wait for some moment of a job, kill worker 1 and perhaps a server; False: it was too late."""
    cluster.wait_until_copied()
    cluster.wait_for_events(chance.randrange(1, most))
    if cluster.network.is_over("worker 0") or cluster.network.is_over("worker 1"):
        return False
    cluster.network.kill("worker 1")
    if chance.randrange(2):
        victim = chance.randrange(2)
        cluster.network.kill(f"server {victim}")
        cluster.start_server(victim)
    return True


@pytest.mark.parametrize("seed", range(12))
def test_sync_training_is_the_same_to_the_bit_though_a_worker_is_killed(seed: int) -> None:
    cluster = Replicated(seed, workers=2, servers=2, mode="sync", on_worker="restart")
    chance = random.Random(seed)
    found: list[bytes] = []
    began: list[int] = []

    def meddler() -> None:
        if kill_amid(cluster, chance):
            cluster.start_worker(1, lambda worker: found.append(train(worker, began)))

    for rank in range(2):
        cluster.start_worker(rank, lambda worker: found.append(train(worker)))
    cluster.meddle(meddler)
    cluster.run()

    assert len(found) == 2
    assert set(found) == {undisturbed()}
    assert all(0 <= step <= STEPS for step in began)


def test_the_killed_ones_have_begun_at_various_steps() -> None:
    """Else the test above would show nothing."""
    assert len({step for seed in range(6) for step in steps_begun(seed)}) > 2


def steps_begun(seed: int, mode: Consistency | None = None) -> list[int]:
    """Where a worker that was killed at some moment has gone on, once or never."""
    mode = mode or SSP(1)
    cluster = Replicated(seed, workers=3, servers=2, mode=mode, on_worker="restart")
    chance = random.Random(seed)
    began: list[int] = []
    ended: list[int] = []

    def program(worker: RemoteWorker) -> None:
        table = worker.sparse_table("t", 1, optimizer=SGD(lr=1), initializer=None, missing="zeros")
        began.append(worker.steps)
        for _ in range(worker.steps, STEPS):
            table.pull(KEYS)
            table.push(KEYS, np.ones((KEYS.size, 1)))
            worker.step()
        ended.append(worker.steps)
        worker.finish()
        worker.barrier()
        values = table.pull(KEYS)
        # A push may have counted where the worker's death left its step open, and counts again.
        assert ((values == -3 * STEPS) | (values == -3 * STEPS - 1)).all(), values
        worker.barrier()

    def meddler() -> None:
        if kill_amid(cluster, chance):
            cluster.start_worker(1, program)

    for rank in range(3):
        cluster.start_worker(rank, program)
    cluster.meddle(meddler)
    cluster.run()

    assert ended == [STEPS] * 3
    return began[3:]


@pytest.mark.parametrize("mode", [SSP(0), SemiSync(2), SemiSync(1.0)], ids=str)
@pytest.mark.parametrize("seed", range(6))
def test_others_wait_for_the_step_it_was_in_and_not_for_all_before(
    seed: int, mode: Consistency
) -> None:
    steps_begun(seed, mode)


def test_where_no_table_counts_steps_it_begins_at_none() -> None:
    cluster = Replicated(1, workers=2, servers=2, mode=Async(), on_worker="restart")
    began: list[int] = []

    def program(worker: RemoteWorker) -> None:
        table = worker.sparse_table("t", 1)
        began.append(worker.steps)
        for _ in range(3):
            table.push(KEYS, np.ones((KEYS.size, 1)))
            worker.step()
        if len(began) == 2:
            cluster.wait(lambda: len(began) == 3 or worker.office.is_stopped)
        worker.barrier()

    def meddler() -> None:
        cluster.wait(lambda: len(began) == 2)
        cluster.network.kill("worker 1")
        cluster.start_worker(1, program)

    for rank in range(2):
        cluster.start_worker(rank, program)
    cluster.meddle(meddler)
    cluster.run()

    assert began == [0, 0, 0]


def test_a_table_that_counts_steps_in_a_job_that_does_not_is_enough() -> None:
    cluster = Replicated(3, workers=2, servers=2, mode=Async(), on_worker="restart")
    began: list[int] = []

    is_stuck = False

    def program(worker: RemoteWorker) -> None:
        nonlocal is_stuck
        kind = {"optimizer": SGD(lr=1), "initializer": Zeros()}
        table = worker.sparse_table("t", 1, mode=Sync(), **kind)
        began.append(worker.steps)
        for step in range(worker.steps, 5):
            table.pull(KEYS)
            table.push(KEYS, np.ones((KEYS.size, 1)))
            worker.step()
            if step == 2 and worker.rank == 1 and len(began) == 2:
                table.push(KEYS, np.ones((KEYS.size, 1)))  # is made again by the next life
                is_stuck = True
                cluster.wait(lambda: False)
        worker.finish()
        worker.barrier()
        np.testing.assert_array_equal(table.pull(KEYS), -10)
        worker.barrier()

    def meddler() -> None:
        cluster.wait(lambda: is_stuck)
        cluster.wait_for_events(50)
        cluster.network.kill("worker 1")
        cluster.start_worker(1, program)

    for rank in range(2):
        cluster.start_worker(rank, program)
    cluster.meddle(meddler)
    cluster.run()

    assert began == [0, 0, 3]
