"""A scheduler dies amid fills, moves and failovers, and its journal lets the next one go on."""

from __future__ import annotations

import random

import numpy as np
import pytest

from kv.optimizers import SGD
from kv.placement_app import PlacementApp
from kv.remote_worker import RemoteWorker
from postoffice.errors import FencedNodeError
from tests.kv.replication.replicated import Replicated
from tests.seeds import seeds
from van.faults import FaultPlan, Faults

KEYS = np.arange(100, dtype=np.uint64)


class Trouble:
    """Kills the scheduler of a cluster at a random event of what is about to happen.

    Args:
        cluster: three servers at most.
        chance: says when.
    """

    def __init__(self, cluster: Replicated, chance: random.Random) -> None:
        self.cluster, self._chance = cluster, chance
        self.is_over = False

    @property
    def app(self) -> PlacementApp:
        assert self.cluster.app is not None
        return self.cluster.app

    def pause(self, most: int) -> None:
        """Let some messages be delivered, or some time pass where none are."""
        network = self.cluster.network
        goal = len(network.log) + self._chance.randrange(1, most)
        network.wait(lambda: len(network.log) >= goal, network.now + 3.0)

    def run(self, kind: str) -> None:
        cluster = self.cluster
        if kind == "fills":
            cluster.wait(lambda: cluster.app is not None and cluster.app.office.epoch > 0)
            self.lose_scheduler()
        elif kind == "scaling":
            cluster.wait(lambda: len(cluster.network.log) > 60)
            self.app.scale(3)
            cluster.start_server(2)
            self.pause(150)
            self.lose_scheduler()
            cluster.wait(lambda: self.app.desk.is_settled and self.app.desk.size == 3)
            self.app.scale(2)
            self.lose_scheduler()
        else:
            cluster.wait_until_copied()
            victim = self._chance.randrange(2)
            if kind == "failover":
                cluster.network.kill(f"server {victim}")
                cluster.start_server(victim)
                self.lose_scheduler()
            else:
                self.lose_scheduler(lambda: cluster.network.kill(f"server {victim}"))
                self.pause(100)
                cluster.start_server(victim)
        self.is_over = True

    def lose_scheduler(self, meanwhile: object = None) -> None:
        self.pause(120)
        self.cluster.kill_scheduler()
        self.pause(60)
        if callable(meanwhile):
            meanwhile()
        self.pause(60)
        self.cluster.restart_scheduler()
        former = self.app
        self.cluster.wait(lambda: self.app is not former and self.app.office.epoch > 0)

    def is_settled(self) -> bool:
        """Whether all is where it is to be, and all servers know it."""
        desk = self.app.desk
        return (
            self.is_over
            and desk.is_settled
            and len(desk.alive) == desk.size
            and bool((desk.backup != 0xFFFF).all()) == bool(desk.replicas)
            and {s.map_version for s in self.cluster.living()} <= {self.cluster.newest_map()}
        )


@pytest.mark.parametrize("kind", ["fills", "scaling", "failover", "death meanwhile"])
@pytest.mark.parametrize("seed", seeds(50, fast=2, slow=20))
def test_a_scheduler_that_returns_loses_no_slot_and_no_push(seed: int, kind: str) -> None:
    plan = FaultPlan(seed, everywhere=Faults(drop=0.03, duplicate=0.03, reorder=0.1))
    cluster = Replicated(seed, servers=2, plan=plan)
    trouble = Trouble(cluster, random.Random(seed))

    def program(worker: RemoteWorker) -> None:
        table = worker.sparse_table("t", 1, optimizer=SGD(lr=1), initializer=None, missing="zeros")
        pushes, rest = 0, 3
        while rest:
            worker.wait(table.push(KEYS, np.ones((KEYS.size, 1))))
            pushes += 1
            np.testing.assert_array_equal(table.pull(KEYS), -pushes)
            worker.barrier()
            if pushes % 16 == 0:  # that time passes
                worker.office.wait(lambda: False, 1.0)
            rest -= trouble.is_settled()
            assert pushes < 300, (trouble.app.desk, trouble.app.desk.orders)
        served = sum(server.mine.astype(int) for server in cluster.living())
        np.testing.assert_array_equal(served, 1)
        assert len(table) == KEYS.size
        trouble.app.desk.validate()

    cluster.start_worker(0, program)
    cluster.meddle(lambda: trouble.run(kind))
    cluster.run()


def test_a_job_that_is_over_leaves_the_next_one_nothing() -> None:
    cluster = Replicated(0)
    lives: list[int] = []

    def program(worker: RemoteWorker) -> None:
        table = worker.sparse_table("t", 1, optimizer=SGD(lr=1), initializer=None, missing="zeros")
        cluster.wait_until_copied()
        worker.wait(table.push(KEYS, np.ones((KEYS.size, 1))))
        assert cluster.app is not None
        lives.append(cluster.app.desk.version)
        if len(lives) == 1:
            worker.office.wait(lambda: False, 1000.0)

    def meddler() -> None:
        cluster.wait(lambda: len(lives) == 1)
        cluster.kill_scheduler()
        for name in ("server 0", "server 1", "worker 0"):
            cluster.network.kill(name)
        former = cluster.app
        cluster.restart_scheduler()
        cluster.wait(lambda: cluster.app is not former)
        for rank in range(2):
            cluster.start_server(rank)
        cluster.start_worker(0, program)

    cluster.start_worker(0, program)
    cluster.meddle(meddler)
    cluster.run()

    assert len(lives) == 2


def test_a_scheduler_that_knows_no_map_does_not_give_slots_to_who_has_no_rows_of_them() -> None:
    cluster = Replicated(0)

    def program(worker: RemoteWorker) -> None:
        worker.sparse_table("t", 1, optimizer=SGD(lr=1), initializer=None, missing="zeros")
        cluster.wait_until_copied()
        worker.office.wait(lambda: False, 1000.0)

    def meddler() -> None:
        cluster.wait_until_copied()
        cluster.kill_scheduler()
        cluster.records.clear()  # as without a journal
        cluster.restart_scheduler()

    cluster.start_worker(0, program)
    cluster.meddle(meddler)

    with pytest.raises(FencedNodeError, match=r"\[cluster\] journal"):
        cluster.run()
