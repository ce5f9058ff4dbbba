"""What a worker has pushed is in what it pulls after that, waited for or not, while slots move."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np
import pytest

from kv.optimizers import SGD
from kv.remote_worker import RemoteWorker
from tests.kv.replication.replicated import Replicated

KEYS = np.arange(200, dtype=np.uint64)


class Writer:
    """Pushes ones to some keys and to an array, and pulls what must be there by now."""

    def __init__(self, worker: RemoteWorker, chance: random.Random) -> None:
        self.worker, self.chance = worker, chance
        kind = {"optimizer": SGD(lr=1), "initializer": None}
        self.table = worker.sparse_table("t", 1, missing="zeros", **kind)
        self.dense = worker.dense_table(f"d{worker.rank}", (40_000,), **kind)
        self.keys = KEYS[worker.rank == KEYS % 2]
        self.pushed, self.of_dense = np.zeros(self.keys.size), 0

    def some(self) -> np.ndarray:
        count = self.chance.choice([1, 10, self.keys.size])
        return np.sort(self.chance.sample(range(self.keys.size), count))

    def push(self) -> None:
        some = self.some()
        ones = np.ones((some.size, 1))
        if self.chance.randrange(3):
            self.table.push(self.keys[some], ones)
        else:
            both = [(self.table, self.keys[some], ones), (self.dense, np.ones(40_000))]
            self.worker.push_many(both)
            self.of_dense += 1
        self.pushed[some] += 1

    def check(self) -> None:
        some = self.some()
        if self.chance.randrange(3):
            rows = self.table.pull(self.keys[some])
        else:
            rows, array = self.worker.pull_many([(self.table, self.keys[some]), self.dense])
            np.testing.assert_array_equal(array, -self.of_dense)
        np.testing.assert_array_equal(rows[:, 0], -self.pushed[some])

    def check_until(self, is_over: Callable[[], bool]) -> None:
        rest = 5
        while rest:
            for _ in range(self.chance.randrange(1, 4)):
                self.push()
            self.check()
            rest -= is_over()


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("replicas", "before", "after"), [(0, 2, 3), (1, 2, 3), (0, 3, 1), (1, 3, 2)]
)
def test_a_pull_sees_the_pushes_before_it_while_slots_move(
    seed: int, replicas: int, before: int, after: int
) -> None:
    cluster = Replicated(seed, servers=before, replicas=replicas, workers=2)

    def is_settled() -> bool:
        assert cluster.app is not None
        desk = cluster.app.desk
        return desk.size == after and desk.is_settled and len(desk.alive) == after

    def program(worker: RemoteWorker) -> None:
        Writer(worker, random.Random(seed + 100 * worker.rank)).check_until(is_settled)
        worker.barrier()

    def meddler() -> None:
        cluster.wait(lambda: cluster.app is not None and len(cluster.network.log) > 60)
        assert cluster.app is not None
        cluster.app.scale(after)
        for rank in range(before, after):
            cluster.start_server(rank)

    for rank in range(2):
        cluster.start_worker(rank, program)
    cluster.meddle(meddler)
    cluster.run()


@pytest.mark.parametrize("seed", range(8))
def test_a_pull_sees_the_pushes_before_it_though_a_server_is_killed(seed: int) -> None:
    cluster = Replicated(seed, servers=2, workers=2)
    is_over = False

    def program(worker: RemoteWorker) -> None:
        Writer(worker, random.Random(seed + 100 * worker.rank)).check_until(lambda: is_over)
        worker.barrier()

    def meddler() -> None:
        nonlocal is_over
        cluster.wait_until_copied()
        cluster.wait_for_events(seed * 17)
        cluster.replace_server(seed % 2)
        is_over = True

    for rank in range(2):
        cluster.start_worker(rank, program)
    cluster.meddle(meddler)
    cluster.run()
