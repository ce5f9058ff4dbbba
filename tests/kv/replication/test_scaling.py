"""Slots move between living servers while a worker pushes and pulls; the values stay right."""

from __future__ import annotations

import numpy as np
import pytest

from kv.optimizers import SGD
from kv.remote_worker import RemoteWorker
from tests.kv.replication.replicated import Replicated
from van.faults import FaultPlan, Faults

KEYS = np.arange(200, dtype=np.uint64)


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("replicas", "before", "after"), [(0, 2, 3), (1, 2, 3), (0, 3, 1), (1, 3, 2)]
)
def test_pushes_and_pulls_go_on_while_slots_move(
    seed: int, replicas: int, before: int, after: int
) -> None:
    plan = FaultPlan(seed, everywhere=Faults(drop=0.03, duplicate=0.03, reorder=0.1))
    cluster = Replicated(seed, servers=before, replicas=replicas, plan=plan)

    def is_settled() -> bool:
        assert cluster.app is not None
        desk = cluster.app.desk
        return desk.size == after and desk.is_settled and len(desk.alive) == after

    def program(worker: RemoteWorker) -> None:
        table = worker.sparse_table("t", 1, optimizer=SGD(lr=1), initializer=None, missing="zeros")
        dense = worker.dense_table("d", (40_000,), optimizer=SGD(lr=1), initializer=None)
        pushes, rest = 0, 5
        while rest:
            worker.push_many([(table, KEYS, np.ones((KEYS.size, 1))), (dense, np.ones(40_000))])
            pushes += 1
            rows, array = worker.pull_many([(table, KEYS), dense])
            worker.barrier()
            assert (rows >= -pushes).all()
            assert (array >= -pushes).all()
            rest -= is_settled()
        rows, array = worker.pull_many([(table, KEYS), dense])
        np.testing.assert_array_equal(rows, -pushes)
        np.testing.assert_array_equal(array, -pushes)
        assert len(table) == KEYS.size

    def meddler() -> None:
        cluster.wait(lambda: cluster.app is not None and len(cluster.network.log) > 60)
        assert cluster.app is not None
        cluster.app.scale(after)
        for rank in range(before, after):
            cluster.start_server(rank)

    cluster.start_worker(0, program)
    cluster.meddle(meddler)
    cluster.run()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize("is_replaced", [False, True], ids=["comes again", "is replaced"])
def test_all_of_a_table_may_be_asked_for_while_a_server_comes(seed: int, is_replaced: bool) -> None:
    """One that has just come knows no tables yet."""
    cluster = Replicated(seed, servers=3, replicas=int(is_replaced))
    has_come = False

    def program(worker: RemoteWorker) -> None:
        table = worker.sparse_table("t", 1, optimizer=SGD(lr=1), initializer=None, missing="zeros")
        dense = worker.dense_table("d", (40_000,), optimizer=SGD(lr=1), initializer=None)
        worker.push_many([(table, KEYS, np.ones((KEYS.size, 1))), (dense, np.ones(40_000))])
        rest = 3
        while rest:
            assert {stats["name"] for stats in table.stats()} == {"t"}
            worker.set_lr(dense, 0.5)
            assert set(worker.staleness(table)) <= {"0"}
            assert sum(keys.size for keys, _ in table.items()) <= 2 * KEYS.size
            table.pull_changed()
            table.get_meta(KEYS)
            assert 0 <= len(table) <= 2 * KEYS.size  # slots that move are counted twice or never
            rest -= has_come
        worker.set_lr(table, 0.5)
        worker.wait(table.push(KEYS, np.ones((KEYS.size, 1))))
        np.testing.assert_array_equal(table.pull(KEYS), -1.5)
        assert len(table) == sum(stats["rows"] for stats in table.stats()) == KEYS.size

    def meddler() -> None:
        nonlocal has_come
        cluster.wait(lambda: cluster.app is not None and len(cluster.network.log) > 60)
        if is_replaced:
            cluster.wait_until_copied()
            cluster.replace_server(seed % 3)
        else:
            assert cluster.app is not None
            cluster.app.scale(2)
            cluster.wait_until_settled(2)
            cluster.app.scale(3)
            cluster.start_server(2)
            cluster.wait_until_settled(3)
        has_come = True

    cluster.start_worker(0, program)
    cluster.meddle(meddler)
    cluster.run()
