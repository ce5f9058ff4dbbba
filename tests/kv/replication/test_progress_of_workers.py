"""Who rests, has finished or has died is known to whichever server comes to own a row."""

from __future__ import annotations

import random
from typing import Literal

import numpy as np
import pytest

from kv.consistency.settings import SSP, Consistency, SemiSync, Sync
from kv.optimizers import SGD
from kv.remote_worker import RemoteWorker
from kv.tables import RemoteSparseTable
from tests.kv.replication.replicated import Replicated

KEYS = np.arange(40, dtype=np.uint64)
MODES = [SSP(1), Sync(), SemiSync(1.0)]
Leaving = Literal["rests", "finishes", "dies"]


def table_of(worker: RemoteWorker) -> RemoteSparseTable:
    return worker.sparse_table("t", 1, optimizer=SGD(lr=1), initializer=None, missing="zeros")


def push(worker: RemoteWorker, steps: int) -> int:
    table = table_of(worker)
    for _ in range(steps):
        table.pull(KEYS)
        table.push(KEYS, np.ones((KEYS.size, 1)))
        worker.step()
    return steps


@pytest.mark.parametrize("leaving", ["rests", "finishes", "dies"])
@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("seed", range(3))
def test_nobody_waits_for_a_worker_that_has_left_whichever_servers_are_killed(
    seed: int, mode: Consistency, leaving: Leaving
) -> None:
    cluster = Replicated(seed, workers=3, servers=2, mode=mode, on_worker="continue")
    chance = random.Random(seed)
    sums: list[np.ndarray] = []
    pushed = [0, 0, 0]
    is_left, may_go_on = False, False

    def stays(worker: RemoteWorker) -> None:
        pushed[worker.rank] = push(worker, 2)
        cluster.wait(lambda: is_left)
        pushed[worker.rank] += push(worker, 6)
        worker.finish()
        worker.barrier()
        sums.append(table_of(worker).pull(KEYS))
        worker.barrier()

    def leaves(worker: RemoteWorker) -> None:
        nonlocal is_left
        pushed[2] = push(worker, 2)
        if leaving == "dies":
            is_left = True
            cluster.wait(lambda: False)
        worker.rest() if leaving == "rests" else worker.finish()
        is_left = True
        cluster.wait(lambda: may_go_on)
        if leaving == "rests" and not isinstance(mode, Sync):  # there its rounds are over
            pushed[2] += push(worker, 1)
        worker.barrier()
        worker.barrier()

    def meddler() -> None:
        nonlocal may_go_on
        cluster.wait_until_copied()
        cluster.wait(lambda: is_left)
        if leaving == "dies":
            cluster.network.kill("worker 2")
        for victim in chance.sample(range(2), 2):  # then no server was there when it left
            cluster.wait_for_events(chance.randrange(1, 60))
            cluster.replace_server(victim)
        may_go_on = True

    cluster.start_worker(0, stays)
    cluster.start_worker(1, stays)
    cluster.start_worker(2, leaves)
    cluster.meddle(meddler)
    cluster.run()

    assert len(sums) == 2
    for found in sums:
        np.testing.assert_array_equal(found, -sum(pushed))
