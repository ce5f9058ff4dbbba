"""Servers with copies of each other's rows on a network whose every step a seed decides."""

from __future__ import annotations

import random

import numpy as np
import pytest
from tests.kv.replication.replicated import Replicated

from kv.optimizers import SGD, Adam
from kv.remote_worker import RemoteWorker
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
