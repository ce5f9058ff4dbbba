"""Membership, barriers and the scheduler's desk as plain objects: any order, any repeat."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from postoffice.barrier import Barriers
from postoffice.errors import RegistrationError
from postoffice.membership import Membership, Phase, Registration
from postoffice.node import (
    SCHEDULER_ID,
    Group,
    Node,
    Role,
    node_id,
    node_name,
    role_and_rank,
)
from postoffice.scheduler import SchedulerDesk
from van.message import Control, Message, Meta

SCHEDULER = Node(Role.SCHEDULER, 0, "tcp://scheduler", 1)
EXPECTED = {Role.SERVER: 2, Role.WORKER: 3}
STATEFUL = settings(max_examples=60, stateful_step_count=40, deadline=None, derandomize=True)


@given(st.sampled_from([Role.SERVER, Role.WORKER, Role.DISPATCHER]), st.integers(0, 100_000))
@settings(derandomize=True, deadline=None)
def test_an_id_says_role_and_rank_as_in_ps_lite(role: Role, rank: int) -> None:
    identity = node_id(role, rank)

    assert role_and_rank(identity) == (role, rank)
    assert node_name(identity) == f"{role} {rank}"
    if role is not Role.DISPATCHER:
        assert identity == rank * 2 + (8 if role is Role.SERVER else 9)


def test_a_node_table_entry_survives_packing_and_nonsense_does_not() -> None:
    node = Node(Role.WORKER, 3, "tcp://a:1", 7)

    assert Node.unpack(node.pack()) == node
    for wrong in (["king", 0, "a", 1], ["worker", "0", "a", 1], ["worker"], 5):
        with pytest.raises((TypeError, ValueError)):
            Node.unpack(wrong)


def book() -> Membership:
    return Membership(EXPECTED, SCHEDULER)


def asks(role: Role, rank: int | None, number: int) -> Registration:
    return Registration(role, rank, f"tcp://h:{number}", number)


ALL = [asks(Role.SERVER, None, n) for n in range(2)] + [
    asks(Role.WORKER, None, n + 5) for n in range(3)
]


@given(st.permutations(ALL))
@settings(derandomize=True, deadline=None)
def test_equal_addresses_get_equal_ranks_whatever_the_order(order: list[Registration]) -> None:
    membership = book()

    complete = [membership.register(request) for request in order]

    assert complete == [False] * 4 + [True]
    assert [membership.nodes[node_id(Role.WORKER, rank)].address for rank in range(3)] == [
        "tcp://h:5",
        "tcp://h:6",
        "tcp://h:7",
    ]
    membership.validate()


def test_a_rank_that_is_asked_for_is_given() -> None:
    membership = Membership({Role.WORKER: 3}, SCHEDULER)
    for number, rank in ((1, 2), (2, None), (3, 0)):
        membership.register(asks(Role.WORKER, rank, number))

    assert {n.rank: n.address for n in membership.nodes.values() if n.role is Role.WORKER} == {
        2: "tcp://h:1",
        1: "tcp://h:2",
        0: "tcp://h:3",
    }
    assert len({n.incarnation for n in membership.nodes.values()}) == 4


@pytest.mark.parametrize(
    ("request_", "text"),
    [
        (asks(Role.WORKER, 3, 50), "rank 3"),
        (asks(Role.WORKER, 0, 51), "started twice"),
        (asks(Role.DISPATCHER, None, 52), "one too many"),
    ],
)
def test_who_does_not_fit_is_told_why(request_: Registration, text: str) -> None:
    membership = book()
    holder = asks(Role.WORKER, 0, 9)
    membership.register(holder, now=0.0)

    def come_twice() -> None:
        for now in (1.0, 2.0):
            membership.register(request_, now)
            membership.register(holder, now + 0.5)  # it lives: it says so again

    with pytest.raises(RegistrationError, match=text):
        come_twice()


def test_who_restarts_before_all_have_come_takes_the_place_of_its_former_self() -> None:
    membership = book()
    former, present = asks(Role.WORKER, 0, 9), asks(Role.WORKER, 0, 10)
    membership.register(former, now=0.0)
    for now in range(1, 6):
        membership.register(present, float(now))
        assert membership.missing()[Role.WORKER] == 2

    assert membership.forget_silent(now=5.5) == [former]
    membership.register(present, now=6.0)

    assert membership.waiting_addresses() == ["tcp://h:10"]
    assert membership.forget_silent(now=6.0) == []


class Clusters(RuleBasedStateMachine):
    """Nodes register, wait at barriers and leave in any order; messages repeat at will."""

    def __init__(self) -> None:
        super().__init__()
        self.desk = SchedulerDesk(book(), started=0.0, start_timeout=60.0)
        self.come: list[Registration] = []
        self.passed: dict[int, int] = {}
        self.waiting: dict[int, int] = {}
        self.told_to_stop: set[int] = set()

    @property
    def membership(self) -> Membership:
        return self.desk.membership

    def tell(self, meta: Meta) -> None:
        for _, message in [*self.desk.handle(Message(meta)), *self.desk.news(0.0)]:
            target, control = message.meta.recipient, message.meta.control
            if control is Control.BARRIER_DONE and target in self.waiting:
                count = self.waiting[target]
                if message.meta.body["passed"] > count:
                    del self.waiting[target]
                    self.passed[target] = count + 1
            elif control is Control.STOP:
                self.told_to_stop.add(target)

    @rule(number=st.integers(0, 4), repeat=st.booleans())
    def register(self, number: int, repeat: bool) -> None:
        request = ALL[number]
        if request not in self.come:
            self.come.append(request)
        meta = Meta(
            control=Control.REGISTER,
            reply_to=request.address,
            incarnation=request.incarnation,
            body={"role": request.role.value, "rank": None},
        )
        for _ in range(1 + repeat):
            self.tell(meta)

    def alive_workers(self) -> list[int]:
        return sorted(self.membership.members(Group.WORKERS))

    @precondition(lambda self: self.membership.phase is Phase.RUNNING)
    @rule(pick=st.integers(0, 2), repeat=st.booleans())
    def wait_at_barrier(self, pick: int, repeat: bool) -> None:
        workers = self.alive_workers()
        worker = workers[pick % len(workers)]
        count = self.waiting.setdefault(worker, self.passed.get(worker, 0))
        meta = Meta(
            sender=worker,
            control=Control.BARRIER,
            body={"group": 4, "name": "", "count": count},
        )
        for _ in range(1 + repeat):
            self.tell(meta)

    @precondition(lambda self: self.membership.phase in (Phase.RUNNING, Phase.STOPPING))
    @rule(pick=st.integers(0, 4), repeat=st.booleans())
    def leave(self, pick: int, repeat: bool) -> None:
        alive = sorted(self.membership.members(Group.ALL & ~Group.SCHEDULER))
        free = [node for node in alive if node not in self.waiting]
        if self.membership.phase is Phase.RUNNING:
            free = [node for node in free if role_and_rank(node)[0] is Role.WORKER]
        if free:
            meta = Meta(sender=free[pick % len(free)], control=Control.GOODBYE, body={})
            for _ in range(1 + repeat):
                self.tell(meta)

    @invariant()
    def books_are_consistent(self) -> None:
        self.membership.validate()
        self.desk.barrier_desk.barriers.validate()

    @invariant()
    def the_cluster_runs_when_and_only_when_all_have_come(self) -> None:
        assert (self.membership.phase is Phase.GATHERING) == (len(self.come) < 5)

    @invariant()
    def nobody_waits_at_a_barrier_that_all_living_have_reached(self) -> None:
        alive = self.alive_workers()
        if alive:
            assert not set(alive) <= self.waiting.keys()

    @invariant()
    def workers_are_never_more_than_one_barrier_apart(self) -> None:
        counts = [self.passed.get(worker, 0) for worker in self.alive_workers()]
        assert not counts or max(counts) - min(counts) <= 1

    @invariant()
    def servers_stop_after_the_last_worker_only(self) -> None:
        if self.membership.phase in (Phase.GATHERING, Phase.RUNNING):
            assert not self.told_to_stop
        else:
            assert not self.alive_workers()
            assert self.told_to_stop == {8, 10}


TestClusters = Clusters.TestCase
TestClusters.settings = STATEFUL


@pytest.mark.parametrize(
    "meta",
    [
        Meta(control=Control.REGISTER, reply_to="tcp://x", body=None),
        Meta(control=Control.REGISTER, reply_to="tcp://x", body={"role": "king", "rank": 0}),
        Meta(control=Control.REGISTER, reply_to="tcp://x", body={"role": "worker", "rank": "0"}),
        Meta(control=Control.REGISTER, reply_to="", body={"role": "worker"}),
        Meta(control=Control.BARRIER, sender=9, body={"group": 4}),
        Meta(control=Control.BARRIER, sender=9, body={"group": "x", "name": 1, "count": 2}),
        Meta(control=Control.BARRIER, sender=77, body={"group": 4, "name": "", "count": 0}),
        Meta(control=Control.GOODBYE, sender=77, body=3),
        Meta(control=Control.HEARTBEAT, sender=9, body=3),
    ],
)
def test_messages_without_sense_change_nothing(meta: Meta) -> None:
    desk = SchedulerDesk(book(), 0.0, 60.0)

    replies = desk.handle(Message(meta))

    assert all(reply.meta.control is Control.REFUSED for _, reply in replies)
    assert desk.membership.phase is Phase.GATHERING


def test_a_barrier_of_a_group_one_is_not_in_is_an_error_at_once() -> None:
    desk = SchedulerDesk(book(), 0.0, 60.0)
    for request in ALL:
        desk.membership.register(request)
    body = {"group": int(Group.SERVERS), "name": "", "count": 0}

    ((_, reply),) = desk.handle(Message(Meta(sender=9, control=Control.BARRIER, body=body)))

    assert "worker 0 is not in" in reply.meta.body["error"]


def stopped_desk() -> SchedulerDesk:
    """All have said goodbye, each with its answer on the way."""
    desk = SchedulerDesk(book(), 0.0, 60.0)
    for request in ALL:
        desk.membership.register(request)
    for node in list(desk.membership.nodes.values()):
        if node.id != SCHEDULER_ID:
            desk.handle(said(Control.GOODBYE, node), 0.0)
    assert desk.membership.phase is Phase.STOPPED
    return desk


def said(control: Control, node: Node) -> Message:
    return Message(Meta(sender=node.id, incarnation=node.incarnation, control=control))


def test_the_scheduler_is_needed_until_each_has_its_answer_or_can_wait_for_none() -> None:
    desk = stopped_desk()
    nodes = [n for n in desk.membership.nodes.values() if n.id != SCHEDULER_ID]
    *others, ended, silent = nodes

    for node in others:
        desk.handle(said(Control.GOODBYE_SEEN, node), 1.0)
    assert desk.is_needed(1.0)
    desk.ended(desk.membership.nonce_of(ended.id), "has ended: killed by SIGKILL", 1.0)
    assert desk.is_needed(1.0)
    desk.handle(said(Control.GOODBYE_SEEN, silent), 1.0)

    assert not desk.is_needed(1.0)
    assert stopped_desk().is_needed(2.9)
    assert not stopped_desk().is_needed(3.1)


def test_goodbyes_of_lives_without_end_fill_no_memory() -> None:
    desk = SchedulerDesk(book(), 0.0, 60.0)
    for request in ALL:
        desk.membership.register(request)
    desk.membership.die(8, "was silent", 0.0)
    desk.news(0.0)

    for life in range(12_000):
        forged = Meta(sender=8, incarnation=-life, reply_to="tcp://h:1", control=Control.GOODBYE)
        desk.goodbye_again(forged, 0.0)

    assert len(desk._unseen) <= 10_000
    forged.incarnation = -20_000
    desk.goodbye_again(forged, 4.0)
    assert len(desk._unseen) == 1


def test_missing_nodes_are_reported_in_time_and_then_end_the_start(
    caplog: pytest.LogCaptureFixture,
) -> None:
    desk = SchedulerDesk(book(), started=100.0, start_timeout=25.0, report_every=10.0)
    for now in (100.0, 109.9, 110.0, 111.0, 121.0):
        desk.membership.register(ALL[0], now)
        desk.tick(now)
        assert desk.problem is None
    desk.tick(125.0)

    assert [r.message for r in caplog.records] == ["waiting for 1 server, 3 workers"] * 2
    assert "1 server, 3 workers" in str(desk.problem)


def test_a_lost_release_is_said_again() -> None:
    barriers = Barriers()
    members = {9, 11}

    assert barriers.arrive(9, Group.WORKERS, "a", 0, members) == []
    assert barriers.arrive(11, Group.WORKERS, "a", 0, members) == [9, 11]
    assert barriers.arrive(9, Group.WORKERS, "a", 0, members) == [9]
    assert barriers.missing(Group.WORKERS, "a", members) == [9, 11]
    assert barriers.passed(Group.WORKERS, "a") == 1


def test_the_scheduler_has_an_id_of_its_own() -> None:
    assert role_and_rank(SCHEDULER_ID) == (Role.SCHEDULER, 0)
    with pytest.raises(ValueError, match="no node"):
        role_and_rank(3)
