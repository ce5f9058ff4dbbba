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

from postoffice.errors import ClusterStartError, ClusterStoppedError
from postoffice.membership import Membership, Phase
from postoffice.node import SCHEDULER_ID, Node, Role, node_name
from postoffice.postoffice import Postoffice
from postoffice.scheduler import Reply, SchedulerDesk
from postoffice.scheduler_app import SchedulerApp
from postoffice.shape import ClusterShape
from van.message import Control, Message
from van.van import Van

log = logging.getLogger(__name__)

_LAST_GOODBYES = 3.0  # seconds the scheduler stays for them after a failure


class SchedulerOffice(Postoffice):
    """The scheduler of a cluster; it listens on the shape's scheduler address.

    Args:
        van: moves its messages; bound by `listen` or `start`.
        shape: the cluster.
        incarnation: grows from start to start; by default the time in nanoseconds.

    Attributes:
        apps: what else is decided here; to be filled before `listen`.
    """

    def __init__(self, van: Van, shape: ClusterShape, *, incarnation: int | None = None) -> None:
        super().__init__(Role.SCHEDULER, van, shape, bind=shape.scheduler, rank=0)
        self.node_id = SCHEDULER_ID
        self.incarnation = time.time_ns() if incarnation is None else incarnation
        self.apps: list[SchedulerApp] = []
        self._desk: SchedulerDesk | None = None
        self._is_publishing = False
        self.queries.offer("cluster", self._facts)

    def listen(self) -> str:
        """Bind, so that nodes can register; returns the real address.

        Raises:
            AddressError: the address is not to be had.
        """
        if self._desk is None:
            me = Node(Role.SCHEDULER, 0, self.van.bind(self.shape.scheduler), self.incarnation)
            self._desk = self._make_desk(me)
            self._see(self._desk.view())
            self.van.every(self._tick_every, self._tick)
        return self.van.address

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
            "awaited": sorted(membership.awaited),
            "statuses": [list(pair) for pair in sorted(desk.statuses.items())],
        }

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
        desk, membership = self._open_desk, self._membership
        self.van.wait(lambda: membership.phase is not Phase.GATHERING or desk.problem is not None)
        if desk.problem is not None:
            self._send_replies(desk.refuse_all(desk.problem))
            raise ClusterStartError(desk.problem)

    def serve(self) -> None:
        """Return when every node has said goodbye.

        Raises:
            ClusterStoppedError: a node failed; the text says which and why.
        """
        membership = self._membership
        self.van.wait(lambda: membership.phase is not Phase.RUNNING or self._stopped)
        # After a failure some nodes may be past saying goodbye.
        patience = _LAST_GOODBYES if membership.failure or self._end else None
        self.van.wait(lambda: membership.phase is Phase.STOPPED, patience)
        if membership.failure is not None:
            raise ClusterStoppedError(membership.failure)
        self.raise_end()

    def stop(self, failure: str | None = None) -> None:
        """End the cluster; any thread."""
        if self._desk is not None:
            self._send_replies(self._desk.stop_all(failure))
        super().stop(failure)

    def finalize(self, failure: str | None = None, timeout: float | None = None) -> None:
        """Close; what was sent last still gets the van's linger."""
        self.van.close()

    # -- for apps -----------------------------------------------------------------------------

    def set_map(self, blob: bytes) -> int:
        """Tell everybody a new slot map; returns its version.

        Only from the thread that drives the van, as apps are called.
        """
        version = self._open_desk.set_map(blob)
        if not self._is_publishing:
            self._publish([])
        return version

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
        self._publish(self._open_desk.handle(message, self.van.now()))

    def _receive_stranger(self, message: Message) -> None:
        if message.meta.control is Control.GOODBYE:
            # Said again by one whose answer was lost; it must not end another life of its id.
            self._send_replies(self._open_desk.goodbye_again(message.meta))
        else:
            super()._receive_stranger(message)

    def _tick(self) -> None:
        now = self.van.now()
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
        news = self._open_desk.news(self.van.now())
        self._send_replies(replies)
        view = self._open_desk.view()
        if (view.epoch, view.map_version) != (self.view.epoch, self.view.map_version):
            self._see(view)
        self._send_replies(news)

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
