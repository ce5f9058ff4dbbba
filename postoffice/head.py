"""The scheduler's node: a postoffice whose control messages go to the desk.

office = SchedulerOffice(van, shape)
print(office.listen())            # nodes can register from here on
office.start()                    # returns when all have come
office.serve()                    # returns when all have gone
office.finalize()
"""

from __future__ import annotations

import logging
import time
from collections.abc import Callable, Mapping
from typing import Any

from postoffice.books import Books, Memory
from postoffice.errors import ClusterStartError, ClusterStoppedError, LeadershipLostError
from postoffice.journal import Journal
from postoffice.keeping import Keeper
from postoffice.membership import Membership, Phase
from postoffice.node import SCHEDULER_ID, Node, Role, node_name
from postoffice.postoffice import Postoffice
from postoffice.scheduler import Reply, SchedulerDesk
from postoffice.scheduler_app import SchedulerApp
from postoffice.shape import ClusterShape
from van.message import Control, Message
from van.van import Van

log = logging.getLogger(__name__)

_RETURN = 10.0  # seconds for the nodes of a journal to speak, where heartbeats have no time-out
_LAST_GOODBYES = 3.0  # seconds the scheduler stays for them after a failure
_LAST_ANSWERS = 10.0  # seconds it stays for a node to get its answer, which waits no longer


class SchedulerOffice(Postoffice):
    """The scheduler of a cluster; it listens on the shape's scheduler address.

    Args:
        van: moves its messages; bound by `listen` or `start`.
        shape: the cluster.
        incarnation: grows from start to start; by default the time in nanoseconds.
        journal: what a scheduler before this one may have left for it; None: nothing is kept.

    Attributes:
        apps: what else is decided here; to be filled before `listen`.
    """

    def __init__(
        self,
        van: Van,
        shape: ClusterShape,
        *,
        incarnation: int | None = None,
        journal: Journal | None = None,
    ) -> None:
        super().__init__(Role.SCHEDULER, van, shape, bind=shape.scheduler, rank=0)
        self.node_id = SCHEDULER_ID
        self.incarnation = time.time_ns() if incarnation is None else incarnation
        self.apps: list[SchedulerApp] = []
        self._journal = journal
        self._desk: SchedulerDesk | None = None
        self._keeper: Keeper | None = None
        self._resumed: float | None = None  # since when it has waited for a former job's nodes
        self._has_lost = False  # another scheduler leads: nothing may be said any more
        self._is_publishing = False
        self.queries.offer("cluster", self._facts)

    def listen(self) -> str:
        """Bind, so that nodes can register; returns the real address.

        Raises:
            AddressError: the address is not to be had.
        """
        if self._desk is None:
            self.van.bind(self.shape.scheduler)
            self._begin(self._read_journal())
            if self._journal is not None:
                self._journal.announce(self.van.address)
            self.van.every(self._tick_every, self._tick)
        return self.van.address

    def _read_journal(self) -> Memory | None:
        """What a scheduler before this one knew, if its job may still run."""
        if self._journal is None:
            return None
        memory = Memory(self._journal.load(), repr(self._journal))
        return memory if memory.is_of_an_open_job else None

    def _begin(self, memory: Memory | None) -> None:
        """Open the books: new ones, or those of a scheduler before this one."""
        now = self.van.now()
        if memory is not None:
            self.incarnation = max(self.incarnation, memory.last_incarnation + 1)
        me = Node(Role.SCHEDULER, 0, self.van.address, self.incarnation)
        desk = self._desk = self._make_desk(me)
        barriers = desk.barrier_desk.barriers
        if memory is not None:
            desk.resume(*memory.restore(desk.membership, barriers, now), now)
            for app in self.apps:
                memory.restore_app(app)
            self._resumed = now
            log.warning("goes on with the cluster of %r", self._journal)
        books = Books(
            desk.membership, barriers, lambda: (desk.map_version, desk.map_blob), self.apps
        )
        self._keeper = Keeper(self._journal, books, is_new=memory is None)
        self._see(desk.view())
        if memory is not None:  # they may not know where this one is
            self._send_replies(desk.tables() + desk.goodbyes(now))

    def _watch_return(self, now: float) -> bool:
        """Whether the former job's nodes have not spoken yet; if they never do, begin anew.

        A journal of a job that was killed with all its nodes looks like one of a job that runs.
        """
        if self._resumed is None:
            return False
        if now - self._resumed >= (self.shape.heartbeat_timeout or _RETURN):
            self._begin_anew()
        return True

    def _begin_anew(self) -> None:
        log.warning("no node of %r lives any more: a new job begins", self._journal)
        self._resumed = None
        for app in self.apps:
            app.restore(None, [])
        self.incarnation = self._membership.last_incarnation + 1
        self._begin(None)

    @property
    def _tick_every(self) -> float:
        return min(self.shape.heartbeat_interval, 1.0)

    def _make_desk(self, me: Node) -> SchedulerDesk:
        shape = self.shape
        expected = {
            Role.SERVER: shape.servers,
            Role.WORKER: shape.workers,
            Role.DISPATCHER: shape.dispatchers,
        }
        membership = Membership(expected, me, shape.failures)
        membership.may_grow = lambda role: any(app.may_grow(role) for app in self.apps)
        membership.is_covered = lambda node: any(app.is_covered(node) for app in self.apps)
        return SchedulerDesk(
            membership,
            self.van.now(),
            shape.start_timeout,
            shape.report_every,
            shape.heartbeat_timeout,
            self._tick_every,
        )

    def _facts(self) -> dict[str, Any]:
        """What `postoffice.observer.Observer.cluster` returns."""
        desk, membership = self._open_desk, self._membership
        return {
            "phase": membership.phase.value,
            "epoch": membership.epoch,
            "map_version": desk.map_version,
            "nodes": [membership.nodes[node].pack() for node in sorted(membership.nodes)],
            "gone": sorted(membership.gone),
            "missing": membership.describe_missing() if membership.phase is Phase.GATHERING else "",
            "heartbeats": [list(pair) for pair in sorted(desk.ages(self.van.now()).items())],
            "dead": [
                [node, membership.fenced[node], why]
                for node, why in sorted(membership.deaths.items())
            ],
            "lives": [list(pair) for pair in sorted(membership.lives.items())],
            "awaited": sorted(membership.awaited),
            "statuses": [list(pair) for pair in sorted(desk.statuses.items())],
            "last_words": [list(pair) for pair in sorted(desk.last_words.items())],
            "remarks": [line for app in self.apps for line in app.remarks()],
        }

    @property
    def is_ending(self) -> bool:
        """Whether nobody waits for what a node has any more: the job is over, or has failed."""
        return self._membership.failure is not None or self._membership.phase is not Phase.RUNNING

    @property
    def said(self) -> Mapping[int, Any]:
        """What each node said of itself with its last heartbeat, see `Postoffice.statuses`."""
        return self._open_desk.statuses

    @property
    def deaths(self) -> Mapping[int, str]:
        """Why nodes are held to be dead, by id."""
        return self._membership.deaths

    @property
    def _open_desk(self) -> SchedulerDesk:
        assert self._desk is not None, "listen comes first"
        return self._desk

    @property
    def _membership(self) -> Membership:
        return self._open_desk.membership

    def start(self) -> None:
        """Return when all nodes have come.

        Raises:
            ClusterStartError: not all come in time; the text names who is missing.
            AddressError: the address to listen on is not to be had.
        """
        self.listen()
        self.van.wait(self._is_started)
        desk = self._open_desk
        if desk.problem is not None:
            self._send_replies(desk.refuse_all(desk.problem))
            raise ClusterStartError(desk.problem)

    def _is_started(self) -> bool:
        if self._has_lost:
            return True
        if self._resumed is not None:
            return False
        return self._membership.phase is not Phase.GATHERING or bool(self._open_desk.problem)

    def serve(self) -> None:
        """Return when every node has said goodbye.

        Raises:
            ClusterStoppedError: a node failed; the text says which and why.
        """
        membership = self._membership
        self.van.wait(lambda: membership.phase is not Phase.RUNNING or self._stopped)
        if self._has_lost:
            self.raise_end()
        # After a failure some nodes may be past saying goodbye.
        patience = _LAST_GOODBYES if membership.failure or self._end else None
        self.van.wait(lambda: membership.phase is Phase.STOPPED, patience)
        if patience is None:
            self.van.wait(self._may_go, _LAST_ANSWERS)
        if membership.failure is not None:
            raise ClusterStoppedError(membership.failure)
        self.raise_end()

    def _may_go(self) -> bool:
        return self._stopped or not self._open_desk.is_needed(self.van.now())

    def stop(self, failure: str | None = None) -> None:
        """End the cluster; any thread."""
        if self._desk is not None:
            self._send_replies(self._desk.stop_all(failure))
        super().stop(failure)

    def finalize(self, failure: str | None = None, timeout: float | None = None) -> None:
        """Close; what was sent last still gets the van's linger.

        The journal stays for a scheduler that goes on, unless the job is over.
        """
        self.van.close()
        if self._keeper is not None:
            is_over = self._membership.phase in (Phase.STOPPING, Phase.STOPPED)
            if is_over and not self._has_lost:
                self._keeper.end()
            self._keeper.close()

    def process_ended(self, nonce: int, why: str) -> bool:
        """Take it from who started a node's process that it has ended, before its silence says so.

        Only from the thread that drives the van.

        Args:
            nonce: what that process registers with, see `Postoffice`; nobody else has it.
            why: for people, such as `has ended: exit code 3`.
        Returns:
            Whether it has been taken in; False: say it again later, it is not clear yet which job
            this scheduler goes on with.
        """
        if self._desk is None or self._resumed is not None:
            return False
        if not self._has_lost:
            self._desk.ended(nonce, why, self.van.now())
            self._publish([])
        return True

    # -- for apps -----------------------------------------------------------------------------

    def set_map(self, blob: bytes) -> int:
        """Tell everybody a new slot map; returns its version.

        Only from the thread that drives the van, as apps are called.
        """
        version = self._open_desk.set_map(blob)
        self.publish()
        return version

    def redirect(self, ways: Mapping[int, int]) -> int:
        """Tell everybody which dispatchers workers are to go through; returns the epoch of that.

        Only from the thread that drives the van, as apps are called.

        Args:
            ways: by worker's id a dispatcher's rank, all that is not as the rule has it.
        """
        self._membership.redirect(ways)
        self.publish()
        return self._membership.epoch

    def publish(self) -> None:
        """Write down what apps have kept, and call `committed`; where that is under way, not twice.

        Only from the thread that drives the van.
        """
        if not self._is_publishing:
            self._publish([])

    def note(self, app: SchedulerApp, value: Any) -> None:
        """Keep something for a scheduler that goes on (msgpack types), with the next commit.

        `SchedulerApp.restore` gets all notes since the app's last `save`.
        """
        if self._keeper is not None:
            self._keeper.books.note(app, value)

    def save(self, app: SchedulerApp) -> None:
        """Keep the app's whole state; what it has noted before is forgotten."""
        if self._keeper is not None:
            self._keeper.books.save(app)

    def commit(self) -> None:
        """Write down what was kept, before somebody is told of it; also after each message here."""
        if self._keeper is not None and not self._has_lost:
            try:
                self._keeper.commit()
            except LeadershipLostError as error:
                self._has_lost = True
                self._stop(LeadershipLostError, error.where)
                raise

    def _call_apps(self, call: Callable[[SchedulerApp], None]) -> None:
        for app in self.apps:
            try:
                call(app)
            except Exception as error:
                log.exception("the scheduler's app %r failed", app.name)
                self._fail(f"the scheduler's {app.name} failed: {type(error).__name__}: {error}")

    def _fail(self, reason: str) -> None:
        membership = self._membership
        membership.failure = membership.failure or reason
        membership.check_awaited(self.van.now())

    # -- messages and time ----------------------------------------------------------------------

    def _receive_control(self, message: Message) -> None:
        meta = message.meta
        if self._has_lost:
            return
        if self._resumed is not None:
            is_over = self._membership.phase is Phase.STOPPED
            if is_over and meta.control is Control.REGISTER and meta.reply_to:
                self._begin_anew()
            elif not self._is_known(meta):
                return  # who registers says it again, when it is clear for which job
            elif meta.epoch >= self.epoch:  # it has heard of this scheduler, so it lives
                self._resumed = None
        self._publish(self._open_desk.handle(message, self.van.now()))
        if self._membership.phase is Phase.STOPPED:
            self._resumed = None  # its nodes did live, and have gone

    def _receive_stranger(self, message: Message) -> None:
        if message.meta.control is Control.GOODBYE:
            # Said again by one whose answer was lost; it must not end another life of its id.
            now = self.van.now()
            self._send_replies(self._open_desk.goodbye_again(message.meta, now))
        elif message.meta.control is Control.GOODBYE_SEEN:
            self._open_desk.goodbye_seen(message.meta)
        else:
            super()._receive_stranger(message)

    def _tick(self) -> None:
        now = self.van.now()
        if self._has_lost or self._watch_return(now):
            return
        self._open_desk.tick(now)
        self._call_apps(lambda app: app.tick(now))
        self._publish([])

    def _publish(self, replies: list[Reply]) -> None:
        """Let apps act on what has changed, and tell it to all."""
        if self._is_publishing:  # an app caused more, which the loop below sees
            self._send_replies(replies)
            return
        self._is_publishing = True
        try:
            self._tell_apps()
        finally:
            self._is_publishing = False
        desk = self._open_desk
        news = desk.news(self.van.now())
        self.commit()
        self._send_replies(replies)
        if (desk.membership.epoch, desk.map_version) != (self.epoch, self.view.map_version):
            self._see(desk.view())
        self._send_replies(news)
        self._call_apps(lambda app: app.committed(self.van.now()))

    def _tell_apps(self) -> None:
        changes, now = self._membership.changes, self.van.now()
        for change in changes:  # may grow meanwhile
            node = change.node
            if change.kind == "joined":
                log.info("%s is in the cluster, life %d", node, node.incarnation)
                self._call_apps(lambda app, n=node: app.joined(n, now))  # type: ignore[misc]
            elif change.kind == "died":
                why = self._membership.deaths.get(node.id, "is dead")
                log.warning("%s %s", node_name(node.id), why)
                self._call_apps(lambda app, n=node: app.died(n, now))  # type: ignore[misc]
            else:
                self._call_apps(lambda app, n=node: app.left(n, now))  # type: ignore[misc]
