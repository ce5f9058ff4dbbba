"""Pushes to several tables at once are applied whole, each once, wherever their slots go."""

from __future__ import annotations

import random

import numpy as np
import pytest

from kv.errors import MissingKeyError
from kv.optimizers import SGD
from kv.remote_worker import RemoteWorker
from tests.kv.replication.replicated import Replicated
from tests.seeds import seeds
from van.faults import FaultPlan, Faults

KEYS = np.arange(200, dtype=np.uint64)
DENSE = 40_000


@pytest.mark.parametrize("replicas", [0, 1])
@pytest.mark.parametrize("seed", seeds(12, fast=4))
def test_all_tables_of_a_push_arrive_once_while_slots_move_for_the_first_time(
    seed: int, replicas: int
) -> None:
    plan = FaultPlan(seed, everywhere=Faults(drop=0.1, duplicate=0.05, reorder=0.2))
    cluster = Replicated(seed, servers=2, replicas=replicas, plan=plan)

    def is_settled() -> bool:
        assert cluster.app is not None
        desk = cluster.app.desk
        return desk.size == 3 and desk.is_settled and len(desk.alive) == 3

    def program(worker: RemoteWorker) -> None:
        options = {"optimizer": SGD(lr=1), "initializer": None}
        one = worker.sparse_table("one", 1, missing="zeros", **options)
        two = worker.sparse_table("two", 2, missing="zeros", **options)
        dense = worker.dense_table("d", (DENSE,), **options)
        ones = [(one, KEYS, np.ones((200, 1))), (two, KEYS, np.ones((200, 2)))]
        pushes, rest = 0, 2
        while rest:
            for _ in range(4):
                worker.push_many([*ones, (dense, np.ones(DENSE))])
            pushes += 4
            worker.barrier()
            for values in worker.pull_many([(one, KEYS), (two, KEYS), dense]):
                np.testing.assert_array_equal(values, -pushes)
            rest -= is_settled()

    def meddler() -> None:
        cluster.wait(lambda: cluster.app is not None and len(cluster.network.log) > 40)
        assert cluster.app is not None
        cluster.app.scale(3)
        cluster.start_server(2)

    cluster.start_worker(0, program)
    cluster.meddle(meddler)
    cluster.run()


@pytest.mark.parametrize("seed", seeds(12, fast=4))
def test_all_tables_of_a_push_arrive_once_though_a_server_is_killed(seed: int) -> None:
    plan = FaultPlan(seed, everywhere=Faults(drop=0.1, duplicate=0.05, reorder=0.1))
    cluster = Replicated(seed, plan=plan)

    def program(worker: RemoteWorker) -> None:
        options = {"optimizer": SGD(lr=1), "initializer": None}
        one = worker.sparse_table("one", 1, missing="zeros", **options)
        two = worker.sparse_table("two", 2, missing="zeros", **options)
        dense = worker.dense_table("d", (DENSE,), **options)
        ones = [(one, KEYS, np.ones((200, 1))), (two, KEYS, np.ones((200, 2)))]
        for number in range(12):
            request = worker.push_many([*ones, (dense, np.ones(DENSE))])
            if number % 4 == 0:
                worker.wait(request)
        worker.barrier()
        for values in worker.pull_many([(one, KEYS), (two, KEYS), dense]):
            np.testing.assert_array_equal(values, -12)

    cluster.start_worker(0, program)
    cluster.lose_a_server(random.Random(seed), most=150)
    cluster.run()


def test_with_copies_a_push_refused_in_one_table_changes_no_other() -> None:
    cluster = Replicated(0)

    def program(worker: RemoteWorker) -> None:
        free = worker.sparse_table("free", 1, optimizer=SGD(lr=1), missing="zeros")
        strict = worker.sparse_table("strict", 1, optimizer=SGD(lr=1), missing="error")
        cluster.wait_until_copied()
        key = KEYS[:1]
        with pytest.raises(MissingKeyError):
            worker.wait(worker.push_many([(free, key, [[1.0]]), (strict, key, [[1.0]])]))
        assert len(free) == 0

    cluster.start_worker(0, program)
    cluster.run()
