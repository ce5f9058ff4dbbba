"""The scheduler's desk against nodes that register, fall silent, die, return and leave at will.

Messages are lost and repeated, and the scheduler itself is started again from its journal.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass, field, replace

from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from postoffice.books import Books, Memory
from postoffice.failure import FailurePolicy
from postoffice.membership import Membership, Phase
from postoffice.node import SCHEDULER_ID, Node, Role, node_id
from postoffice.scheduler import SchedulerDesk
from postoffice.view import ClusterView
from van.message import Control, Kind, Message, Meta

TIMEOUT = 10.0
SEATS = [(Role.SERVER, 0), (Role.SERVER, 1), (Role.WORKER, 0), (Role.WORKER, 1), (Role.WORKER, 2)]


@dataclass
class Process:
    """One process that plays a node: all it knows is what it was told."""

    role: Role
    rank: int
    nonce: int
    node_id: int = 0
    life: int = 0
    view: ClusterView = field(default_factory=ClusterView)
    end: str = ""  # why it must end

    @property
    def address(self) -> str:
        return f"tcp://{self.nonce}"

    def message(self, control: Control, body: object = None) -> Meta:
        return Meta(
            sender=self.node_id,
            reply_to=self.address,
            incarnation=self.life or self.nonce,
            control=control,
            epoch=self.view.epoch,
            map_version=self.view.map_version,
            body=body,
        )

    def take(self, meta: Meta) -> None:
        if meta.control is Control.NODES:
            view = ClusterView.unpack(meta.body)
            if not self.life and meta.body["nonce"] == self.nonce:
                self.node_id, self.life = meta.body["you"], meta.body["life"]
            if meta.body["life"] == self.life:
                assert view.nodes[self.node_id].address == self.address
                if view.epoch > self.view.epoch:
                    self.view = view
        elif meta.kind is Kind.FENCED:
            self.end = "fenced"
        elif meta.control in (Control.REFUSED, Control.STOP, Control.GOODBYE_DONE):
            self.end = meta.control.name


class Lives(RuleBasedStateMachine):
    """A cluster of five seats."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.numbers = itertools.count(1)
        self.records: list[bytes] = []
        self.alive: dict[tuple[Role, int], Process] = {}  # the newest process of each seat
        self.former: list[Process] = []  # replaced, but perhaps still speaking
        self.lives: dict[int, list[int]] = {}
        self.epoch = 0
        self.policy = FailurePolicy()

    @initialize(worker=st.sampled_from(["continue", "restart"]))
    def begin(self, worker: str) -> None:
        self.policy = FailurePolicy(on_worker=worker, on_server="restart", restart_timeout=1e9)  # type: ignore[arg-type]
        self.open(1)
        for role, rank in SEATS:
            self.start(role, rank)
            self.speak(self.alive[role, rank], Control.REGISTER, lost=False)
        for process in self.alive.values():
            self.speak(process, Control.HEARTBEAT, lost=False)

    def open(self, incarnation: int) -> None:
        expected = {Role.SERVER: 2, Role.WORKER: 3}
        memory = Memory(self.records, "memory")
        if memory.is_of_an_open_job:
            incarnation = memory.last_incarnation + 1
        me = Node(Role.SCHEDULER, 0, "tcp://scheduler", incarnation)
        membership = Membership(expected, me, self.policy)
        self.desk = SchedulerDesk(membership, self.now, 60.0, heartbeat_timeout=TIMEOUT)
        barriers = self.desk.barrier_desk.barriers
        if memory.is_of_an_open_job:
            self.desk.resume(*memory.restore(membership, barriers, self.now), self.now)
        self.books = Books(membership, barriers, lambda: (0, b""), [])

    @property
    def membership(self) -> Membership:
        return self.desk.membership

    def start(self, role: Role, rank: int) -> None:
        self.alive[role, rank] = Process(role, rank, 1000 + next(self.numbers))

    def speak(self, process: Process, control: Control, lost: bool, body: object = None) -> None:
        if control is Control.REGISTER:
            body = {"role": process.role.value, "rank": process.rank}
        self.publish(self.desk.handle(Message(process.message(control, body)), self.now), lost)

    def publish(self, replies: list[tuple[str, Message]], lost: bool) -> None:
        replies = [*replies, *self.desk.news(self.now)]
        if record := self.books.changes():
            self.records.append(record)
        for address, message in replies:
            for process in [*self.alive.values(), *self.former]:
                is_meant = (
                    process.address == address
                    if address
                    else process.life == message.meta.recipient_incarnation
                    and process.node_id == message.meta.recipient
                )
                if is_meant and not lost:
                    process.take(message.meta)

    def running(self) -> list[Process]:
        return [p for p in self.alive.values() if not p.end]

    # -- what may happen ------------------------------------------------------------------------

    @rule(seat=st.sampled_from(SEATS), lost=st.booleans())
    def heartbeat(self, seat: tuple[Role, int], lost: bool) -> None:
        process = self.alive[seat]
        if not process.end:
            self.speak(process, Control.HEARTBEAT if process.life else Control.REGISTER, lost)

    @rule(seat=st.sampled_from(SEATS))
    def restart(self, seat: tuple[Role, int]) -> None:
        """Killed and started again at once; the former one's messages may still come."""
        self.former.append(self.alive[seat])
        self.start(*seat)

    @precondition(lambda self: self.former)
    @rule(pick=st.integers(0, 20), control=st.sampled_from([Control.HEARTBEAT, Control.GOODBYE]))
    def late_message_of_a_former_life(self, pick: int, control: Control) -> None:
        process = self.former[pick % len(self.former)]
        node = self.membership.nodes.get(process.node_id)
        if node is not None and node.incarnation == process.life:
            return  # the scheduler cannot know better yet
        before = self.membership.epoch, dict(self.membership.nodes)
        if control is Control.HEARTBEAT and process.life:
            self.speak(process, control, lost=False)
        assert (self.membership.epoch, self.membership.nodes) == before

    @rule(seconds=st.sampled_from([0.5, 3.0, 11.0]), who=st.sets(st.sampled_from(SEATS)))
    def time_passes(self, seconds: float, who: set[tuple[Role, int]]) -> None:
        """Only `who` speaks meanwhile."""
        end = self.now + seconds
        while self.now < end:
            self.now += 0.5
            for seat in SEATS:
                if seat in who and not self.alive[seat].end:
                    self.heartbeat(seat, lost=False)
            self.desk.tick(self.now)
            self.publish([], lost=False)

    @rule(seat=st.sampled_from(SEATS), fails=st.booleans(), lost=st.booleans())
    def goodbye(self, seat: tuple[Role, int], fails: bool, lost: bool) -> None:
        process = self.alive[seat]
        known = self.membership.nodes.get(process.node_id)
        if process.end or known is None or known.incarnation != process.life:
            return
        if seat[0] is Role.SERVER and self.membership.phase is Phase.RUNNING and not fails:
            return
        self.speak(process, Control.GOODBYE, lost, {"failure": "oh" if fails else None})

    @rule(seat=st.sampled_from(SEATS))
    def its_launcher_tells_of_its_end(self, seat: tuple[Role, int]) -> None:
        """Killed, and started again at once; what it has sent before may come after the news."""
        process, before = self.alive[seat], dict(self.membership.nodes)
        self.desk.ended(process.nonce, "has ended: killed by SIGKILL", self.now)
        self.publish([], lost=False)
        self.former.append(process)
        self.start(*seat)

        node = before.get(process.node_id)
        is_known = node is not None and node.incarnation == process.life
        if is_known and process.node_id not in self.membership.gone:
            assert process.node_id not in self.membership.nodes
            del before[process.node_id]
        assert before == self.membership.nodes
        self.speak(replace(process, life=0), Control.REGISTER, lost=True)
        assert before == self.membership.nodes

    @precondition(lambda self: self.former)
    @rule(pick=st.integers(0, 20))
    def news_of_a_former_life_harm_no_later_one(self, pick: int) -> None:
        process = self.former[pick % len(self.former)]
        node = self.membership.nodes.get(process.node_id)
        if node is None or node.incarnation != process.life:
            before = dict(self.membership.nodes)
            self.desk.ended(process.nonce, "has ended", self.now)
            assert before == self.membership.nodes

    @rule()
    def the_scheduler_is_killed_and_started_again(self) -> None:
        if self.membership.phase in (Phase.RUNNING, Phase.STOPPING):
            self.open(1)

    # -- what must hold -------------------------------------------------------------------------

    @invariant()
    def the_book_is_consistent(self) -> None:
        self.membership.validate()

    @invariant()
    def epochs_never_go_back_and_lives_of_a_seat_grow(self) -> None:
        assert self.membership.epoch >= self.epoch
        self.epoch = self.membership.epoch
        for node in self.membership.nodes.values():
            lives = self.lives.setdefault(node.id, [node.incarnation])
            if lives[-1] != node.incarnation:
                assert node.incarnation > lives[-1]
                lives.append(node.incarnation)

    @invariant()
    def a_life_without_its_seat_is_fenced(self) -> None:
        for node, lives in self.lives.items():
            seat = self.membership.nodes.get(node)
            if node == SCHEDULER_ID:
                continue  # there is one at a time, with the largest incarnation
            for life in lives:
                is_there = seat is not None and seat.incarnation == life
                assert is_there or self.membership.fenced.get(node, -1) >= life

    @invariant()
    def no_node_sees_a_fenced_life_alive_or_the_future(self) -> None:
        for process in self.running():
            assert process.view.epoch <= self.membership.epoch
            for node in process.view.nodes.values():
                assert not process.view.is_fenced(node.id, node.incarnation)

    @invariant()
    def a_life_has_one_process(self) -> None:
        lives = [(p.node_id, p.life) for p in [*self.alive.values(), *self.former] if p.life]
        assert len(lives) == len(set(lives))

    @invariant()
    def who_speaks_is_not_held_dead_for_long(self) -> None:
        """A running process that is told everything has its seat, or knows that it has not."""
        if self.membership.phase is not Phase.RUNNING:
            return
        for (role, rank), process in self.alive.items():
            node = self.membership.nodes.get(node_id(role, rank))
            if process.end or process.life == 0:
                continue
            if node is None or node.incarnation != process.life:
                copy = Process(role, rank, process.nonce, process.node_id, process.life)
                meta = copy.message(Control.HEARTBEAT)
                ((address, answer),) = self.desk.handle(Message(meta), self.now)
                assert (address, answer.meta.kind) == (process.address, Kind.FENCED)


TestLives = Lives.TestCase
TestLives.settings = settings(
    max_examples=40, stateful_step_count=40, deadline=None, derandomize=True
)
