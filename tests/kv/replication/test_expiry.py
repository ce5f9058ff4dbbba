"""Rows that expire go on their owner alone, and their copies with them."""

from __future__ import annotations

import numpy as np

from kv.optimizers import SGD
from kv.placement import SlotMap
from kv.policies import ByAge
from kv.remote_worker import RemoteWorker
from kv.tables import RemoteSparseTable
from tests.kv.replication.replicated import Replicated

KEYS = np.arange(60, dtype=np.uint64)
OWNERS = SlotMap.even(2).owner_of(KEYS)
FIRST, SECOND = KEYS[OWNERS == 0], KEYS[OWNERS == 1]
AGE = 100.0


class Clock:
    """The time as the rows of a cluster's table see it."""

    def __init__(self) -> None:
        self.now = 1000.0

    def drive(self, cluster: Replicated) -> None:
        for server in cluster.servers.values():
            for table in server.engine.tables:
                for _, store in table.store.stores:
                    store._now = lambda: self.now


def table_of(worker: RemoteWorker) -> RemoteSparseTable:
    return worker.sparse_table(
        "t",
        1,
        optimizer=SGD(lr=1),
        initializer=None,
        missing="zeros",
        expiry=ByAge(seconds=AGE),
    )


def push(worker: RemoteWorker, table: RemoteSparseTable, keys: np.ndarray) -> None:
    worker.wait(table.push(keys, np.ones((keys.size, 1))))


def rows_on(cluster: Replicated, rank: int) -> int:
    ((_, store),) = cluster.servers[rank].engine.tables[0].store.stores
    return len(store)


def test_a_copy_does_not_expire_by_itself_and_a_promoted_row_gets_a_full_age() -> None:
    cluster, clock = Replicated(0), Clock()

    def program(worker: RemoteWorker) -> None:
        table = table_of(worker)
        clock.drive(cluster)
        cluster.wait_until_copied()
        push(worker, table, FIRST)
        clock.now += 90
        table.pull(FIRST)  # which their owner remembers
        clock.now += 60
        push(worker, table, SECOND)  # looks for rows that are to expire on the second server
        assert rows_on(cluster, 1) == KEYS.size

        cluster.network.kill("server 0")
        np.testing.assert_array_equal(table.pull(FIRST, create=False), -1)
        clock.now += AGE - 1
        push(worker, table, SECOND)
        np.testing.assert_array_equal(table.pull(FIRST, create=False), -1)
        clock.now += AGE
        for _ in range(3):
            push(worker, table, SECOND)
        np.testing.assert_array_equal(table.pull(FIRST, create=False), 0)

    cluster.start_worker(0, program)
    cluster.run()


def test_a_row_that_expires_takes_its_copy_along() -> None:
    cluster, clock = Replicated(0), Clock()

    def program(worker: RemoteWorker) -> None:
        table = table_of(worker)
        clock.drive(cluster)
        cluster.wait_until_copied()
        push(worker, table, FIRST[1:])
        clock.now += 2 * AGE
        for _ in range(3):
            push(worker, table, FIRST[:1])
        assert (rows_on(cluster, 0), rows_on(cluster, 1)) == (1, 1)

    cluster.start_worker(0, program)
    cluster.run()
