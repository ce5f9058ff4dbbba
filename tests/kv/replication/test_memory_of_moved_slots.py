"""Rows that have moved away leave nothing behind where they were."""

from __future__ import annotations

import numpy as np
import pytest

import kv.replication.leaving
from kv.optimizers import SGD
from kv.placement import slot_of
from kv.remote_worker import RemoteWorker
from kv.replication.replicator import Replicator
from tests.kv.replication.replicated import Replicated
from van.message import Kind

KEYS = np.arange(6000, dtype=np.uint64)


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that there are many, with other work between; and no wait for scans that are over."""
    monkeypatch.setattr(kv.replication.leaving, "PLACES", 64)
    monkeypatch.setattr(kv.replication.leaving, "QUIET", 0.0)


def is_clean(server: Replicator) -> bool:
    """Whether it has its own rows, those that it backs up, and no others; and their memory only."""
    slots, rank = server.desk.slots, server.office.rank
    is_right = (slots.backup == rank) | (slots.owner == rank)
    if server.incoming.leaving or (server.incoming.present & ~is_right).any():
        return False
    for table in server.engine.tables:
        for _, store in table.store.stores:
            assert store.space.numbers.top == len(store), "a hole is left"
            rows, _ = store.export_scan(0, 1 << 20)
            assert is_right[slot_of(rows.keys)].all()
    return True


@pytest.mark.parametrize("seed", range(4))
@pytest.mark.parametrize(
    ("replicas", "before", "after"), [(0, 2, 4), (1, 2, 4), (1, 2, 3), (1, 4, 2)]
)
def test_servers_keep_no_rows_of_slots_that_have_moved(
    seed: int, replicas: int, before: int, after: int
) -> None:
    cluster = Replicated(seed, servers=before, replicas=replicas)
    has_moved = False

    def program(worker: RemoteWorker) -> None:
        table = worker.sparse_table("t", 4, optimizer=SGD(lr=1), initializer=None, missing="zeros")
        dense = worker.dense_table("d", (200_000,), optimizer=SGD(lr=1), initializer=None)
        ones = [(table, KEYS, np.ones((KEYS.size, 4))), (dense, np.ones(200_000))]
        worker.wait(worker.push_many(ones))
        pushes = 1
        full = nbytes(worker)
        while not has_moved:
            some = KEYS[pushes % 7 :: 7]
            worker.push_many([(table, some, np.zeros((some.size, 4))), (dense, np.ones(200_000))])
            pushes += 1
            np.testing.assert_array_equal(table.pull(some), -1)
            np.testing.assert_array_equal(dense.pull(), -pushes)
        cluster.wait(lambda: all(is_clean(server) for server in cluster.living()))
        np.testing.assert_array_equal(table.pull(KEYS), -1)
        np.testing.assert_array_equal(dense.pull(), -pushes)
        stats = table.stats()
        assert sum(part["rows"] for part in stats) == KEYS.size
        assert sum(part["copies"] for part in stats) == replicas * KEYS.size
        if after > before:
            share = np.array(nbytes(worker)[:before]) / full[:before]
            assert (share < 0.75).all(), f"memory has not gone back: {share}"

    def nbytes(worker: RemoteWorker) -> list[int]:
        """Of rows and records: an index does not become smaller."""
        if replicas:
            cluster.wait_until_copied()
        return [
            sum(s.nbytes - s.index.nbytes for t in server.engine.tables for _, s in t.store.stores)
            for server in cluster.living()
        ]

    def meddler() -> None:
        nonlocal has_moved
        cluster.wait(lambda: cluster.app is not None and len(cluster.network.log) > 60)
        if replicas:
            cluster.wait_until_copied()
        assert cluster.app is not None
        cluster.app.scale(after)
        for rank in range(before, after):
            cluster.start_server(rank)
            cluster.wait(lambda rank=rank: rank in cluster.living_ranks())  # type: ignore[misc]
        cluster.wait_until_settled(after)
        has_moved = True

    cluster.start_worker(0, program)
    cluster.meddle(meddler)
    cluster.run()


def test_a_late_request_for_a_slot_that_has_gone_is_sent_on() -> None:
    cluster = Replicated(1, servers=1, replicas=0)

    def program(worker: RemoteWorker) -> None:
        table = worker.sparse_table("t", 1, optimizer=SGD(lr=1), initializer=None, missing="zeros")
        worker.wait(table.push(KEYS, np.ones((KEYS.size, 1))))
        former = worker.slots
        assert cluster.app is not None
        cluster.app.scale(2)
        cluster.start_server(1)
        cluster.wait_until_settled(2)
        cluster.wait(lambda: worker.office.view.map_version == cluster.newest_map())
        cluster.wait(lambda: all(is_clean(server) for server in cluster.living()))
        heard = len(cluster.network.log)
        worker.slots, worker._lines = former, None  # as if it had been on its way all the time
        worker.wait(table.push(KEYS, np.ones((KEYS.size, 1))))
        assert any(Kind.WRONG_OWNER.name in line for line in cluster.network.log[heard:])
        np.testing.assert_array_equal(table.pull(KEYS), -2)
        assert len(table) == KEYS.size

    cluster.start_worker(0, program)
    cluster.run()
