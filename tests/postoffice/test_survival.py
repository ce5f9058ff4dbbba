"""Whole clusters whose nodes die, fall silent and come back, on the seeded loopback network."""

from __future__ import annotations

import itertools
import random
import re
from collections.abc import Callable

import pytest

from postoffice.customer import Customer
from postoffice.errors import (
    ClusterStoppedError,
    FencedNodeError,
    PostofficeError,
    RequestTimeoutError,
)
from postoffice.failure import FailurePolicy
from postoffice.head import SchedulerOffice
from postoffice.node import SCHEDULER_ID, Group, Node, Role
from postoffice.observer import Observer
from postoffice.postoffice import Postoffice
from postoffice.scheduler_app import SchedulerApp
from postoffice.shape import ClusterShape
from postoffice.view import ClusterView
from pslite.looking import status
from tests.postoffice.journals import MemoryJournal
from tests.seeds import seeds
from van.faults import FaultPlan, Faults
from van.loopback import LoopbackNetwork
from van.message import Control, Message, Meta, answer_to

APP = 7
SCHEDULER = "scheduler"

Program = Callable[[Postoffice], None]


class Recorder(SchedulerApp):
    """Notes what the scheduler's apps are told, and keeps it for the next scheduler."""

    name = "recorder"

    def __init__(self) -> None:
        self.seen: list[tuple[str, int]] = []
        self.restored: list[object] = []

    def restore(self, state: object, notes: object) -> None:
        self.restored.append((state, notes))

    def joined(self, node: Node, now: float) -> None:
        self.seen.append(("joined", node.id))

    def died(self, node: Node, now: float) -> None:
        self.seen.append(("died", node.id))

    def left(self, node: Node, now: float) -> None:
        self.seen.append(("left", node.id))


class Cluster:
    """One cluster on a loopback network.

    Args:
        seed: of the order of events.
        servers: how many, each of which echoes.
        workers: their programs by rank.
        policy: what a death means.
        faults: of all links.
    """

    def __init__(
        self,
        seed: int,
        servers: int,
        workers: list[Program],
        policy: FailurePolicy | None = None,
        faults: Faults | None = None,
    ) -> None:
        self.plan = FaultPlan(seed, faults or Faults())
        self.network = LoopbackNetwork(seed, plan=self.plan)
        self.shape = ClusterShape(
            servers=servers,
            workers=len(workers),
            scheduler=SCHEDULER,
            failures=policy or FailurePolicy(),
        )
        self.programs = workers
        self.head: SchedulerOffice | None = None
        self.app = Recorder()
        self.records: list[bytes] = []
        self.journal = MemoryJournal(self.records)
        self.offices: dict[str, Postoffice] = {}
        self.ends: dict[str, BaseException | None] = {}
        self._numbers = itertools.count(100)
        self.spawn("scheduler", self.run_scheduler)
        for rank in range(servers):
            self.start_server(rank)
        for rank in range(len(workers)):
            self.start_worker(rank)

    def spawn(self, name: str, run: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                run()
                self.ends[name] = None
            except PostofficeError as error:
                self.ends[name] = error

        self.network.spawn(name, guarded)

    def run_scheduler(self) -> None:
        journal = self.journal = MemoryJournal(self.records)
        office = self.head = SchedulerOffice(
            self.network.van(), self.shape, incarnation=1, journal=journal
        )
        office.apps.append(self.app)
        try:
            office.start()
            office.serve()
        finally:
            office.finalize()

    def office(self, role: Role, rank: int) -> Postoffice:
        number = next(self._numbers)
        name = f"{role} {rank}"
        office = Postoffice(
            role, self.network.van(), self.shape, bind=f"{name} {number}", rank=rank, nonce=number
        )
        self.offices[name] = office
        return office

    def start_server(self, rank: int) -> None:
        def run() -> None:
            office = self.office(Role.SERVER, rank)

            def answer(message: Message) -> None:
                office.send(Message(answer_to(message.meta), message.arrays))

            Customer(APP, 0, office, answer)
            try:
                office.start()
                office.serve()
            finally:
                office.finalize()

        self.spawn(f"server {rank}", run)

    def start_worker(self, rank: int, program: Program | None = None) -> None:
        def run() -> None:
            office = self.office(Role.WORKER, rank)
            try:
                office.start()
                (program or self.programs[rank])(office)
            finally:
                office.finalize()

        self.spawn(f"worker {rank}", run)

    def after(self, seconds: float, act: Callable[[], None]) -> None:
        """Do `act` when the cluster has run for some virtual seconds."""

        def run() -> None:
            van = self.network.van()
            van.wait(lambda: self.head is not None and self.head.epoch > 0)
            van.wait(lambda: False, seconds)
            act()

        self.network.spawn(f"at {seconds}", run)

    def restart(self, role: Role, rank: int) -> None:
        self.network.kill(f"{role} {rank}")
        (self.start_server if role is Role.SERVER else self.start_worker)(rank)

    def kill_scheduler(self) -> None:
        """As kill -9 would: what its program does to clean up changes nothing."""
        if not self.network.is_over("scheduler"):
            self.journal.is_cut = True
            self.network.kill("scheduler")

    def restart_scheduler(self) -> None:
        """Start another one at the same address, if the former one was killed."""
        if self.journal.is_cut:
            self.spawn("scheduler", self.run_scheduler)

    def run(self) -> None:
        self.network.run_all()


def wait_for(office: Postoffice, seconds: float) -> None:
    """Some virtual time passes."""
    office.wait(lambda: False, seconds)


def until(office: Postoffice, done: Callable[[ClusterView], bool]) -> None:
    """Wait until the node sees a cluster like that."""
    assert office.wait(lambda: done(office.view), 300.0)


@pytest.mark.parametrize("seed", seeds(60, 10))
def test_a_killed_worker_is_noticed_in_time_and_the_others_go_on(seed: int) -> None:
    passed: list[int] = []
    noticed: list[float] = []

    def lives(office: Postoffice) -> None:
        until(office, lambda view: 11 in view.dead)
        noticed.append(cluster.network.now)
        office.barrier(Group.WORKERS)
        passed.append(office.rank)

    def dies(office: Postoffice) -> None:
        wait_for(office, 1000.0)

    policy = FailurePolicy(on_worker="continue")
    cluster = Cluster(seed, 2, [lives, dies, lives], policy)
    cluster.after(5.0, lambda: cluster.network.kill("worker 1"))
    cluster.run()

    assert sorted(passed) == [0, 2]
    assert max(noticed) <= 5.0 + 10.0 + 2.0
    assert ("died", 11) in cluster.app.seen
    assert cluster.ends["scheduler"] is None


@pytest.mark.parametrize("is_scheduler_killed", [False, True])
@pytest.mark.parametrize("seed", seeds(30, 4))
def test_who_started_a_worker_need_not_wait_for_its_silence(
    seed: int, is_scheduler_killed: bool
) -> None:
    noticed: list[float] = []

    def lives(office: Postoffice) -> None:
        until(office, lambda view: 11 in view.dead)
        noticed.append(cluster.network.now)

    def dies(office: Postoffice) -> None:
        wait_for(office, 1000.0)

    def tell() -> None:
        """As a launcher does to each scheduler; called from its van's thread."""
        victim = cluster.offices["worker 1"].nonce
        if not told and heads[-1].process_ended(victim, "has ended: killed by SIGKILL"):
            told.append(heads[-1].deaths[11])

    def kill() -> None:
        cluster.network.kill("worker 1")
        if is_scheduler_killed:
            former = cluster.head
            cluster.kill_scheduler()
            cluster.restart_scheduler()
            cluster.network.wait(lambda: cluster.head is not former, None)
        assert cluster.head is not None
        heads.append(cluster.head)
        cluster.head.van.every(0.1, tell)

    told: list[str] = []
    heads: list[SchedulerOffice] = []
    cluster = Cluster(seed, 2, [lives, dies, lives], FailurePolicy(on_worker="continue"))
    cluster.after(5.0, kill)
    cluster.run()

    assert told == ["has ended: killed by SIGKILL"]
    assert max(noticed) <= 5.0 + 5.0  # the time-out is 10 s
    assert cluster.ends["scheduler"] is None


@pytest.mark.parametrize("seed", seeds(10, 4))
def test_by_default_a_death_ends_the_job_and_every_wait_names_it(seed: int) -> None:
    def waits(office: Postoffice) -> None:
        office.barrier(Group.WORKERS)

    def dies(office: Postoffice) -> None:
        wait_for(office, 1000.0)

    cluster = Cluster(seed, 2, [waits, dies])
    cluster.after(5.0, lambda: cluster.network.kill("worker 1"))
    cluster.run()

    for name in ("scheduler", "server 0", "server 1", "worker 0"):
        assert isinstance(cluster.ends[name], ClusterStoppedError), name
        assert "worker 1 was silent for 1" in str(cluster.ends[name])


@pytest.mark.parametrize("seed", seeds(60, 10))
def test_a_worker_restarted_within_a_second_is_another_life_of_its_rank(seed: int) -> None:
    lives: list[tuple[int, int]] = []
    answers: list[int] = []

    def asks(office: Postoffice) -> None:
        lives.append((office.rank, office.incarnation))
        customer = Customer(APP, 0, office)
        timestamp = customer.new_request([8], finish=len)  # its numbers start at 0 again
        office.send(Message(Meta(recipient=8, app=APP, timestamp=timestamp)))
        answers.append(customer.wait(timestamp, 60.0))
        office.barrier(Group.WORKERS, "end")

    def first_life(office: Postoffice) -> None:
        lives.append((office.rank, office.incarnation))
        wait_for(office, 1000.0)

    policy = FailurePolicy(on_worker="restart")
    cluster = Cluster(seed, 1, [asks, first_life], policy)

    def restart() -> None:
        cluster.network.kill("worker 1")
        cluster.start_worker(1, asks)

    cluster.after(0.5, restart)
    cluster.run()

    assert cluster.ends == dict.fromkeys(cluster.ends)
    assert answers == [1, 1]
    former, present = sorted(life for rank, life in lives if rank == 1)
    assert former < present
    assert cluster.head is not None
    assert cluster.head.view.fenced == {11: former}
    assert cluster.network.now < 10.0  # nobody had to wait for a time-out


@pytest.mark.parametrize("seed", seeds(20, 6))
def test_a_node_that_was_cut_off_learns_that_it_is_fenced(seed: int) -> None:
    def lives(office: Postoffice) -> None:
        until(office, lambda view: 11 in view.dead)
        wait_for(office, 30.0)

    def is_cut_off(office: Postoffice) -> None:
        wait_for(office, 1000.0)

    cluster = Cluster(seed, 1, [lives, is_cut_off], FailurePolicy(on_worker="continue"))

    def cut() -> None:
        cluster.plan.cut(11, SCHEDULER_ID)
        cluster.plan.cut(SCHEDULER_ID, 11)

    def heal() -> None:
        cluster.plan.heal(11, SCHEDULER_ID)
        cluster.plan.heal(SCHEDULER_ID, 11)

    cluster.after(3.0, cut)
    cluster.after(20.0, heal)
    cluster.run()

    error = cluster.ends["worker 1"]
    assert isinstance(error, FencedNodeError)
    assert "worker 1 was silent for" in str(error)
    assert cluster.ends["scheduler"] is None


@pytest.mark.parametrize("seed", seeds(10, 4))
def test_a_server_tells_a_fenced_worker_that_still_reaches_it(seed: int) -> None:
    """The way to the scheduler stays cut, so only the server can say it."""

    def lives(office: Postoffice) -> None:
        until(office, lambda view: 11 in view.dead)
        wait_for(office, 30.0)

    def asks_on(office: Postoffice) -> None:
        customer = Customer(APP, 0, office)
        while True:
            timestamp = customer.new_request([8])
            office.send(Message(Meta(recipient=8, app=APP, timestamp=timestamp)))
            try:
                customer.wait(timestamp, 0.5)
            except RequestTimeoutError:
                customer.forget(timestamp)
            wait_for(office, 0.5)

    cluster = Cluster(seed, 1, [lives, asks_on], FailurePolicy(on_worker="continue"))
    cluster.after(3.0, lambda: cluster.plan.cut(11, SCHEDULER_ID))
    cluster.after(3.0, lambda: cluster.plan.cut(SCHEDULER_ID, 11))
    cluster.run()

    error = cluster.ends["worker 1"]
    assert isinstance(error, FencedNodeError)
    assert "server 0 does not hear it" in str(error)


@pytest.mark.parametrize("seed", seeds(60, 10))
def test_control_messages_survive_loss_repeats_and_reordering(seed: int) -> None:
    passed: list[int] = []

    def program(office: Postoffice) -> None:
        for _ in range(3):
            office.barrier(Group.WORKERS)
        passed.append(office.rank)

    cluster = Cluster(seed, 2, [program] * 3, faults=Faults.all(0.2))
    cluster.run()

    assert sorted(passed) == [0, 1, 2]
    assert cluster.ends == dict.fromkeys(cluster.ends)


@pytest.mark.parametrize("seed", seeds(20, 6))
def test_a_dead_server_that_is_awaited_gets_its_seat_again(seed: int) -> None:
    seen: list[int] = []

    def program(office: Postoffice) -> None:
        former = office.nodes[8].incarnation
        until(office, lambda view: 8 in view.dead)
        until(office, lambda view: 8 in view.nodes)
        seen.append(office.nodes[8].incarnation - former)
        customer = Customer(APP, 0, office)
        timestamp = customer.new_request([8], finish=len)
        office.send(Message(Meta(recipient=8, app=APP, timestamp=timestamp)))
        assert customer.wait(timestamp, 60.0) == 1

    cluster = Cluster(seed, 2, [program] * 2, FailurePolicy(on_server="restart"))
    cluster.after(2.0, lambda: cluster.network.kill("server 0"))
    cluster.after(25.0, lambda: cluster.start_server(0))
    cluster.run()

    assert len(seen) == 2
    assert min(seen) > 0
    assert cluster.ends == dict.fromkeys(cluster.ends)


def test_one_that_is_awaited_in_vain_ends_the_job_with_its_name() -> None:
    def program(office: Postoffice) -> None:
        wait_for(office, 1000.0)

    policy = FailurePolicy(on_server="restart", restart_timeout=30.0)
    cluster = Cluster(1, 2, [program], policy)
    cluster.after(2.0, lambda: cluster.network.kill("server 1"))
    cluster.run()

    assert "server 1 was silent for" in str(cluster.ends["worker 0"])
    assert "nobody has restarted it within 30 s" in str(cluster.ends["worker 0"])


def test_a_scheduler_that_never_returns_ends_every_wait() -> None:
    def program(office: Postoffice) -> None:
        office.barrier(Group.WORKERS, "never")

    def other(office: Postoffice) -> None:
        wait_for(office, 1000.0)

    cluster = Cluster(1, 1, [program, other])
    cluster.after(2.0, lambda: cluster.network.kill("scheduler"))
    cluster.run()

    for name in ("worker 0", "worker 1", "server 0"):
        assert "the scheduler was silent for 6" in str(cluster.ends[name]), name


@pytest.mark.parametrize("seed", seeds(20, 6))
def test_a_new_slot_map_reaches_everybody_though_messages_are_lost(seed: int) -> None:
    maps: list[bytes] = []

    def program(office: Postoffice) -> None:
        until(office, lambda view: view.map_version >= 2)
        maps.append(office.view.map_blob)

    class Placing(SchedulerApp):
        name = "placing"

        def tick(self, now: float) -> None:
            assert cluster.head is not None
            if cluster.head.epoch and cluster.head.view.map_version < 2:
                cluster.head.set_map(b"map %d" % cluster.head.view.map_version)

    cluster = Cluster(seed, 1, [program] * 3, faults=Faults.all(0.2))
    placing = Placing()
    cluster.after(0.5, lambda: cluster.head is not None and cluster.head.apps.append(placing))
    cluster.run()

    assert maps == [b"map 1"] * 3
    assert cluster.ends == dict.fromkeys(cluster.ends)


def test_a_new_rank_joins_where_an_app_allows_it_and_else_is_refused() -> None:
    seen: list[list[int]] = []

    class Growing(SchedulerApp):
        name = "growing"

        def may_grow(self, role: Role) -> bool:
            return role is Role.SERVER

    def program(office: Postoffice) -> None:
        until(office, lambda view: 12 in view.nodes)
        wait_for(office, 5.0)
        seen.append(office.view.alive(Role.SERVER))

    cluster = Cluster(1, 2, [program])
    growing = Growing()
    cluster.after(0.5, lambda: cluster.head is not None and cluster.head.apps.append(growing))
    cluster.after(1.0, lambda: cluster.start_server(2))
    cluster.after(1.0, lambda: cluster.start_worker(1, program))
    cluster.run()

    assert seen == [[8, 10, 12]]
    assert "comes too late" in str(cluster.ends["worker 1"])
    assert cluster.ends["server 2"] is None


def ask_server(office: Postoffice, customer: Customer) -> int:
    """One request to server 0; how many answered."""
    timestamp = customer.new_request([8], finish=len)
    office.send(Message(Meta(recipient=8, app=APP, timestamp=timestamp)))
    answered: int = customer.wait(timestamp, 120.0)
    return answered


@pytest.mark.parametrize("seed", seeds(120, 10))
def test_a_cluster_rides_through_the_death_of_its_scheduler(seed: int) -> None:
    """Killed at any moment, once or twice, and started again at the same address."""
    chance = random.Random(seed)
    passed: list[tuple[int, int]] = []

    def program(office: Postoffice) -> None:
        customer = Customer(APP, 0, office)
        for number in range(8):
            assert ask_server(office, customer) == 1
            wait_for(office, 1.0)
            office.barrier(Group.WORKERS)
            passed.append((number, office.rank))

    cluster = Cluster(seed, 2, [program] * 3)
    moment = 0.0
    for _ in range(chance.choice([1, 2])):
        moment += chance.uniform(0.0, 6.0)
        cluster.after(moment, cluster.kill_scheduler)
        moment += chance.choice([0.01, 1.0, 9.0, 25.0])
        cluster.after(moment, cluster.restart_scheduler)
    cluster.run()

    assert cluster.ends == dict.fromkeys(cluster.ends)
    assert [number for number, _ in passed] == sorted(number for number, _ in passed)
    assert len(passed) == 24
    assert not cluster.app.seen.count(("died", 9))


def kill_at_the_end(seed: int, *others: str) -> Cluster:
    """The scheduler is killed when all have said goodbye and only worker 0 lacks the answer."""
    cluster = Cluster(seed, 1, [lambda office: wait_for(office, 1.0)] * 2, faults=Faults(drop=1.0))
    killed: list[float] = []

    def kill() -> None:
        assert cluster.head is not None
        assert cluster.head.is_ending
        cluster.kill_scheduler()
        for name in others:
            cluster.network.kill(name)
        killed.append(cluster.network.now)

    cluster.plan.hits = lambda meta: (
        meta.control is Control.GOODBYE_DONE and meta.recipient == 9 and not killed
    )
    cluster.after(4.5, kill)
    return cluster


@pytest.mark.parametrize("seed", range(5))
def test_a_scheduler_killed_at_the_very_end_gives_the_last_answers_in_its_next_life(
    seed: int,
) -> None:
    cluster = kill_at_the_end(seed)
    cluster.after(5.5, cluster.restart_scheduler)

    cluster.run()

    assert cluster.ends == dict.fromkeys(cluster.ends)
    assert cluster.network.now < 11.0  # nobody waits for the nodes of a new job


def test_a_scheduler_that_is_told_to_stop_gives_no_last_answers() -> None:
    """The job's launcher has gone, say, and nobody may be left behind."""
    cluster = Cluster(0, 1, [lambda office: wait_for(office, 1.0)], faults=Faults(drop=1.0))
    cluster.plan.hits = lambda meta: meta.control is Control.GOODBYE_DONE
    seen: list[bool] = []

    def stop() -> None:
        assert cluster.head is not None
        cluster.head.stop("the launcher has ended")

    cluster.after(2.0, stop)
    cluster.after(2.5, lambda: seen.append(cluster.network.is_over("scheduler")))
    cluster.run()

    assert seen == [True]


def test_a_new_job_begins_at_once_on_the_journal_of_one_that_was_killed_at_the_very_end() -> None:
    cluster = kill_at_the_end(0, "worker 0")
    began: list[float] = []

    def program(office: Postoffice) -> None:
        began.append(cluster.network.now)

    def start_all() -> None:
        cluster.programs[:] = [program] * 2
        cluster.restart_scheduler()
        cluster.start_server(0)
        for rank in range(2):
            cluster.start_worker(rank)

    cluster.after(20.0, start_all)
    cluster.run()

    assert cluster.ends == dict.fromkeys(cluster.ends)
    assert max(began) < 23.0


@pytest.mark.parametrize("seed", seeds(20, 6))
def test_who_dies_while_the_scheduler_is_away_is_missed_by_the_next_one(seed: int) -> None:
    def lives(office: Postoffice) -> None:
        until(office, lambda view: 11 in view.dead)
        office.barrier(Group.WORKERS)

    def dies(office: Postoffice) -> None:
        wait_for(office, 1000.0)

    cluster = Cluster(seed, 1, [lives, dies], FailurePolicy(on_worker="continue"))
    cluster.after(3.0, cluster.kill_scheduler)
    cluster.after(4.0, lambda: cluster.network.kill("worker 1"))
    cluster.after(8.0, cluster.restart_scheduler)
    cluster.run()

    assert cluster.ends == dict.fromkeys(cluster.ends)
    assert ("died", 11) in cluster.app.seen


@pytest.mark.parametrize("seed", seeds(20, 6))
def test_lives_grow_and_fences_stay_over_schedulers(seed: int) -> None:
    lives: list[int] = []

    def first(office: Postoffice) -> None:
        until(office, lambda view: len(lives) == 4 and view.fenced[11] >= max(lives[:3]))

    def second(office: Postoffice) -> None:
        lives.append(office.incarnation)
        wait_for(office, 40.0 if len(lives) == 4 else 1000.0)

    cluster = Cluster(seed, 1, [first, second], FailurePolicy(on_worker="restart"))
    cluster.after(2.0, lambda: cluster.restart(Role.WORKER, 1))
    cluster.after(5.0, cluster.kill_scheduler)
    cluster.after(6.0, cluster.restart_scheduler)
    cluster.after(9.0, lambda: cluster.restart(Role.WORKER, 1))
    cluster.after(12.0, cluster.kill_scheduler)
    cluster.after(12.5, lambda: cluster.restart(Role.WORKER, 1))
    cluster.after(14.0, cluster.restart_scheduler)
    cluster.run()

    assert len(lives) == 4
    assert lives == sorted(set(lives))
    assert cluster.ends == dict.fromkeys(cluster.ends)


@pytest.mark.parametrize("seed", seeds(20, 6))
def test_without_a_journal_the_nodes_register_anew_by_heartbeat(seed: int) -> None:
    passed: list[int] = []

    def program(office: Postoffice) -> None:
        life = office.incarnation
        wait_for(office, 20.0)
        office.barrier(Group.WORKERS)
        passed.append(office.rank)
        assert office.incarnation == life

    def forget_all() -> None:
        cluster.kill_scheduler()
        cluster.records.clear()

    cluster = Cluster(seed, 1, [program] * 2)
    cluster.after(3.0, forget_all)
    cluster.after(8.0, cluster.restart_scheduler)
    cluster.run()

    assert sorted(passed) == [0, 1]
    assert cluster.ends == dict.fromkeys(cluster.ends)


def test_a_journal_whose_nodes_are_all_dead_does_not_hinder_a_new_job() -> None:
    done: list[int] = []

    def stuck(office: Postoffice) -> None:
        wait_for(office, 1000.0)

    def program(office: Postoffice) -> None:
        office.barrier(Group.WORKERS)
        done.append(office.rank)

    cluster = Cluster(3, 1, [stuck, stuck])

    def kill_all() -> None:
        cluster.kill_scheduler()
        for name in ("server 0", "worker 0", "worker 1"):
            cluster.network.kill(name)

    def start_all() -> None:
        cluster.restart_scheduler()
        cluster.start_server(0)
        for rank in (0, 1):
            cluster.start_worker(rank, program)

    cluster.after(3.0, kill_all)
    cluster.after(4.0, start_all)
    cluster.run()

    assert sorted(done) == [0, 1]
    assert cluster.ends == dict.fromkeys(cluster.ends)
    assert cluster.records == []


def test_status_tells_of_lives_heartbeats_and_the_dead() -> None:
    texts: list[str] = []

    def lives(office: Postoffice) -> None:
        until(office, lambda view: 11 in view.dead)
        with Observer(cluster.network.van(), SCHEDULER, bind="observer") as observer:
            texts.append(status(observer))

    def dies(office: Postoffice) -> None:
        wait_for(office, 1000.0)

    cluster = Cluster(4, 1, [lives, dies], FailurePolicy(on_worker="continue"))
    cluster.after(2.0, lambda: cluster.restart(Role.WORKER, 1))
    cluster.after(5.0, lambda: cluster.network.kill("worker 1"))
    cluster.run()

    heading, _, *rows = texts[0].splitlines()
    assert re.fullmatch(r"running, epoch \d+, slot map 0", heading)
    assert [row.split()[:2] for row in rows] == [
        ["scheduler", "scheduler"],
        ["server", "0"],
        ["worker", "0"],
        ["worker", "1"],
    ]
    assert re.search(r"server 0 +server 0 \d+ +1 +\d\.\d s ago +[\d.]+ K?i?B +there", texts[0])
    assert re.search(r"worker 1 +- +2 +- +- +dead: it was silent for 1\d\.\d s", texts[0])
