"""A server without room for copies: the owner of the rows goes on without them."""

from __future__ import annotations

import contextlib
import logging
import random

import numpy as np
import pytest

from kv.errors import UnknownTableError
from kv.optimizers import SGD
from kv.placement import SlotMap
from kv.placement_desk import FIRST_RETRY
from kv.remote_worker import RemoteWorker
from kv.tables import RemoteSparseTable
from tests.kv.replication.replicated import Replicated
from tests.seeds import seeds
from van.faults import FaultPlan, Faults

KEYS = np.arange(200, dtype=np.uint64)
OWNERS = SlotMap.even(2).owner_of(KEYS)
FIRST, SECOND = KEYS[OWNERS == 0], KEYS[OWNERS == 1]
ROOM = SECOND.size + 30


def table_of(cluster: Replicated, worker: RemoteWorker) -> RemoteSparseTable:
    """A table for which the second server has room for its own rows and a few more."""
    table = worker.sparse_table("t", 2, optimizer=SGD(lr=1), initializer=None, missing="zeros")
    (part,) = cluster.servers[1].engine.tables[0].store.parts
    part.store.limit.most = ROOM
    return table


def push(worker: RemoteWorker, table: RemoteSparseTable, keys: np.ndarray) -> None:
    worker.wait(table.push(keys, np.ones((keys.size, 2))))


@pytest.mark.parametrize("seed", seeds(6, fast=3))
def test_a_backup_without_room_stops_nobody_and_is_tried_again(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    plan = FaultPlan(seed, everywhere=Faults(drop=0.05, duplicate=0.05, reorder=0.1))
    cluster = Replicated(seed, plan=plan)
    caplog.set_level(logging.WARNING, "kv")

    def program(worker: RemoteWorker) -> None:
        assert cluster.app is not None
        app = cluster.app
        table = table_of(cluster, worker)
        push(worker, table, SECOND)
        push(worker, table, FIRST[:10])
        cluster.wait_until_copied()
        push(worker, table, SECOND)
        push(worker, table, FIRST)  # there is no room for the copies of these
        push(worker, table, FIRST)
        cluster.wait(lambda: 1 in app.desk.full)
        push(worker, table, KEYS)
        np.testing.assert_array_equal(table.pull(SECOND), -3)
        np.testing.assert_array_equal(table.pull(FIRST[10:]), -3)
        assert app.remarks()[0] == "slots 0-511 have no backup"
        assert app.remarks()[1].startswith("server 1 has no room for copies: table t: ")
        assert [app.is_covered(node) for node in (8, 10)] == [False, True]
        assert table.delete(FIRST[20:]) == FIRST.size - 20
        worker.office.wait(lambda: False, 2 * FIRST_RETRY)
        cluster.wait_until_copied()
        push(worker, table, FIRST[:20])
        assert sorted(stats["copies"] for stats in table.stats()) == [20, SECOND.size]
        assert app.remarks() == []

    cluster.start_worker(0, program)
    cluster.run()

    told = [r for r in caplog.records if r.name == "kv.placement_app" and "no room" in r.message]
    assert len(told) == 1


@pytest.mark.parametrize("seed", seeds(16, fast=8))
def test_a_backup_that_is_about_full_has_all_that_was_answered_or_is_none(
    seed: int, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = Replicated(seed)
    chance = random.Random(seed)
    caplog.set_level(logging.WARNING, "kv")
    answered, is_killed = 0, False
    found: list[np.ndarray] = []

    def program(worker: RemoteWorker) -> None:
        nonlocal answered
        table = table_of(cluster, worker)
        push(worker, table, SECOND)
        cluster.wait_until_copied()
        with contextlib.suppress(UnknownTableError):  # of a server that came back with nothing
            while answered < 60:
                push(worker, table, FIRST[answered : answered + 5])
                answered += 5
            cluster.wait(lambda: is_killed)
            found.append(table.pull(FIRST[:60]))

    def meddler() -> None:
        nonlocal is_killed
        cluster.wait(lambda: answered >= 25)
        goal = len(cluster.network.log) + chance.randrange(1, 60)
        cluster.wait(lambda: len(cluster.network.log) >= goal or answered == 60)
        assert cluster.app is not None
        cluster.network.kill("server 0")
        cluster.start_server(0)
        is_killed = True

    cluster.start_worker(0, program)
    cluster.meddle(meddler)
    cluster.run()

    if not any("nobody has a copy" in record.message for record in caplog.records):
        np.testing.assert_array_equal(found[0], -1)
