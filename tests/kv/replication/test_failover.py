"""Servers with copies of each other's rows on a network whose every step a seed decides."""

from __future__ import annotations

import functools
import random
from collections.abc import Callable

import numpy as np
import pytest

from kv.consistency.settings import SSP, Consistency, SemiSync
from kv.optimizers import SGD, Adam
from kv.remote_worker import RemoteWorker
from kv.tables import RemoteSparseTable
from tests.kv.replication.replicated import Replicated
from tests.seeds import seeds
from van.faults import FaultPlan, Faults

KEYS = np.arange(40, dtype=np.uint64)


@pytest.mark.parametrize("seed", range(4))
def test_a_copy_is_the_row_to_the_bit_when_a_push_is_answered(seed: int) -> None:
    cluster = Replicated(seed)

    def program(worker: RemoteWorker) -> None:
        table = worker.sparse_table("t", 3, optimizer=Adam(lr=0.1))
        table.pull(KEYS)
        cluster.wait_until_copied()
        rng = np.random.default_rng(seed)
        for _ in range(5):
            worker.wait(table.push(KEYS, rng.normal(size=(KEYS.size, 3))))
            np.testing.assert_array_equal(cluster.rows_of(0, KEYS), cluster.rows_of(1, KEYS))
        assert len(table) == KEYS.size
        assert sum(keys.size for keys, _ in table.items()) == KEYS.size
        stats = table.stats()
        assert [s["rows"] + s["copies"] for s in stats] == [KEYS.size] * 2

    cluster.start_worker(0, program)
    cluster.run()


def assert_all_count(
    cluster: Replicated,
    seed: int,
    workers: int,
    push_ones: Callable[[RemoteWorker, RemoteSparseTable], None],
    times: int,
    lose_within: int,
) -> None:
    """Each worker pushes ones that many times, a server is killed amid it, and all see the sum."""
    sums: list[np.ndarray] = []

    def program(worker: RemoteWorker) -> None:
        table = worker.sparse_table("t", 1, optimizer=SGD(lr=1), initializer=None, missing="zeros")
        push_ones(worker, table)
        worker.barrier()
        sums.append(table.pull(KEYS))
        worker.barrier()

    for rank in range(workers):
        cluster.start_worker(rank, program)
    cluster.lose_a_server(random.Random(seed), most=lose_within)
    cluster.run()

    assert len(sums) == workers
    for found in sums:
        np.testing.assert_array_equal(found, -workers * times)


@pytest.mark.parametrize("seed", seeds(50, fast=8))
def test_pushes_of_ones_add_up_though_a_server_is_killed(seed: int) -> None:
    plan = FaultPlan(seed, everywhere=Faults(drop=0.1, duplicate=0.05, delay=0.05, reorder=0.1))
    cluster = Replicated(seed, plan=plan, workers=2)

    def push_ones(worker: RemoteWorker, table: RemoteSparseTable) -> None:
        for number in range(12):
            request = table.push(KEYS, np.ones((KEYS.size, 1)))
            if number % 3:
                worker.wait(request)

    assert_all_count(cluster, seed, 2, push_ones, 12, lose_within=200)


@pytest.mark.parametrize("mode", [SSP(1), SemiSync(2), SemiSync(0.5)], ids=str)
@pytest.mark.parametrize("seed", seeds(10, fast=3))
def test_every_push_counts_in_the_other_modes_too_though_a_server_is_killed(
    seed: int, mode: Consistency
) -> None:
    cluster = Replicated(seed, workers=3, servers=2, mode=mode)

    def push_ones(worker: RemoteWorker, table: RemoteSparseTable) -> None:
        for _ in range(8):
            table.pull(KEYS)
            table.push(KEYS, np.ones((KEYS.size, 1)))
            worker.step()
        worker.finish()

    assert_all_count(cluster, seed, 3, push_ones, 8, lose_within=300)


@pytest.mark.parametrize("seed", seeds(12, fast=4))
def test_sync_training_is_the_same_to_the_bit_though_a_server_is_killed(seed: int) -> None:
    plan = FaultPlan(seed, everywhere=Faults(drop=0.05, duplicate=0.05, reorder=0.1))
    cluster = Replicated(seed, plan=plan, workers=2, servers=3, mode="sync")
    found: list[bytes] = []

    def program(worker: RemoteWorker) -> None:
        found.append(train(worker, steps=8))
        worker.barrier("done")

    for rank in range(2):
        cluster.start_worker(rank, program)
    cluster.lose_a_server(random.Random(seed), most=300)
    cluster.run()

    assert set(found) == {undisturbed()}


@functools.cache
def undisturbed() -> bytes:
    found: list[bytes] = []
    cluster = Replicated(0, workers=2, servers=1, replicas=0, mode="sync")
    for rank in range(2):
        cluster.start_worker(rank, lambda worker: found.append(train(worker, steps=8)))
    cluster.run()
    assert len(set(found)) == 1
    return found[0]


def train(worker: RemoteWorker, steps: int) -> bytes:
    """Train a sparse and a dense table; their values at the end."""
    table = worker.sparse_table("t", 2, optimizer=Adam(lr=0.1))
    dense = worker.dense_table("d", (9000,), optimizer=Adam(lr=0.1))
    rng = np.random.default_rng(worker.rank)
    for _ in range(steps):
        keys = rng.choice(KEYS, size=10, replace=False)
        rows, array = worker.pull_many([(table, keys), dense])
        worker.push_many([(table, keys, 0.3 * rows + 0.1), (dense, 0.5 * array - 1)])
        worker.step()
    worker.barrier()
    return bytes(table.pull(KEYS, create=False).tobytes() + dense.pull().tobytes())


def test_a_learning_rate_is_told_to_copies_once_and_outlives_its_servers() -> None:
    cluster = Replicated(2, servers=3)

    def records() -> int:
        return sum(peer.log.last for server in cluster.living() for peer in server.out.peers)

    def program(worker: RemoteWorker) -> None:
        table = worker.sparse_table("t", 1, optimizer=SGD(lr=1), initializer=None, missing="zeros")
        cluster.wait_until_copied()
        before, peers = records(), sum(len(server.out.peers) for server in cluster.living())
        worker.set_lr(table, 0.5)
        cluster.wait_for_events(200)
        assert records() == before + peers
        for rank in range(3):
            cluster.replace_server(rank)
        worker.wait(table.push(KEYS, np.ones((KEYS.size, 1))))
        np.testing.assert_array_equal(table.pull(KEYS), -0.5)

    cluster.start_worker(0, program)
    cluster.run()
