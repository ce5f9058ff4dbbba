"""Servers with copies of each other's rows on a network whose every step a seed decides."""

from __future__ import annotations

import functools
import random

import numpy as np
import pytest

from kv.consistency.settings import SSP, Consistency, SemiSync
from kv.optimizers import SGD, Adam
from kv.remote_worker import RemoteWorker
from tests.kv.replication.replicated import Replicated
from van.faults import FaultPlan, Faults

KEYS = np.arange(40, dtype=np.uint64)


def rows_of(cluster: Replicated, rank: int, name: str = "t") -> np.ndarray:
    """All rows that a server holds, own ones and copies, by key."""
    engine = cluster.servers[rank].engine
    table = engine.tables[engine.number_of(name)]
    ((_, store),) = table.store.stores
    return store.pull(KEYS, create=False)


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
            np.testing.assert_array_equal(rows_of(cluster, 0), rows_of(cluster, 1))
        assert len(table) == KEYS.size
        assert sum(keys.size for keys, _ in table.items()) == KEYS.size
        stats = table.stats()
        assert [s["rows"] + s["copies"] for s in stats] == [KEYS.size] * 2

    cluster.start_worker(0, program)
    cluster.run()


@pytest.mark.parametrize("seed", range(50))
def test_pushes_of_ones_add_up_though_a_server_is_killed(seed: int) -> None:
    plan = FaultPlan(seed, everywhere=Faults(drop=0.1, duplicate=0.05, delay=0.05, reorder=0.1))
    cluster = Replicated(seed, plan=plan, workers=2)
    chance = random.Random(seed)
    sums: list[np.ndarray] = []
    total = 12

    def program(worker: RemoteWorker) -> None:
        table = worker.sparse_table("t", 1, optimizer=SGD(lr=1), initializer=None, missing="zeros")
        for number in range(total):
            request = table.push(KEYS, np.ones((KEYS.size, 1)))
            if number % 3:
                worker.wait(request)
        worker.barrier()
        sums.append(table.pull(KEYS))
        worker.barrier()

    def meddler() -> None:
        cluster.wait_until_copied()
        cluster.wait_for_events(chance.randrange(1, 200))
        if cluster.network.is_over("worker 0"):
            return
        victim = chance.randrange(2)
        cluster.network.kill(f"server {victim}")
        cluster.start_server(victim)

    for rank in range(2):
        cluster.start_worker(rank, program)
    cluster.meddle(meddler)
    cluster.run()

    assert len(sums) == 2
    for found in sums:
        np.testing.assert_array_equal(found, -2 * total)


@pytest.mark.parametrize("mode", [SSP(1), SemiSync(2), SemiSync(0.5)], ids=str)
@pytest.mark.parametrize("seed", range(10))
def test_every_push_counts_in_the_other_modes_too_though_a_server_is_killed(
    seed: int, mode: Consistency
) -> None:
    cluster = Replicated(seed, workers=3, servers=2, mode=mode)
    chance = random.Random(seed)
    sums: list[np.ndarray] = []

    def program(worker: RemoteWorker) -> None:
        table = worker.sparse_table("t", 1, optimizer=SGD(lr=1), initializer=None, missing="zeros")
        for _ in range(8):
            table.pull(KEYS)
            table.push(KEYS, np.ones((KEYS.size, 1)))
            worker.step()
        worker.finish()
        worker.barrier()
        sums.append(table.pull(KEYS))
        worker.barrier()

    def meddler() -> None:
        cluster.wait_until_copied()
        cluster.wait_for_events(chance.randrange(1, 300))
        if cluster.network.is_over("worker 0"):
            return
        victim = chance.randrange(2)
        cluster.network.kill(f"server {victim}")
        cluster.start_server(victim)

    for rank in range(3):
        cluster.start_worker(rank, program)
    cluster.meddle(meddler)
    cluster.run()

    assert len(sums) == 3
    for found in sums:
        np.testing.assert_array_equal(found, -24)


@pytest.mark.parametrize("seed", range(12))
def test_sync_training_is_the_same_to_the_bit_though_a_server_is_killed(seed: int) -> None:
    plan = FaultPlan(seed, everywhere=Faults(drop=0.05, duplicate=0.05, reorder=0.1))
    cluster = Replicated(seed, plan=plan, workers=2, servers=3, mode="sync")
    chance = random.Random(seed)
    found: list[bytes] = []

    def program(worker: RemoteWorker) -> None:
        found.append(train(worker, steps=8))
        worker.barrier("done")

    def meddler() -> None:
        cluster.wait_until_copied()
        cluster.wait_for_events(chance.randrange(1, 300))
        if cluster.network.is_over("worker 0"):
            return
        victim = chance.randrange(3)
        cluster.network.kill(f"server {victim}")
        cluster.start_server(victim)

    for rank in range(2):
        cluster.start_worker(rank, program)
    cluster.meddle(meddler)
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
