"""A node of the cluster: knows who it is and who is there, and passes messages to its customers.

    office = Postoffice(Role.WORKER, van, cluster)
    Customer(app, customer, office, handler)      # before start: a started node must be able to
    office.start()                                # answer
    ...
    office.finalize()

Here is what a node has to do with its scheduler: it registers, says that it lives, waits at
barriers and says goodbye, each again and again until it is answered. `postoffice.exchange` moves
the messages.

Source: ps-lite, src/postoffice.cc and src/van.cc. There is no singleton, so a process may hold
several nodes; a server announces itself only when its handlers are set; servers end after the
last worker's goodbye.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from postoffice.attending import Attendance
from postoffice.errors import (
    BarrierError,
    ClusterStartError,
    ClusterStoppedError,
    FencedNodeError,
    RegistrationError,
    SchedulerLostError,
)
from postoffice.exchange import Exchange
from postoffice.node import SCHEDULER_ID, Group, Role
from postoffice.pulse import Pulse
from postoffice.repeats import Repeats
from postoffice.shape import ClusterShape as ClusterShape
from postoffice.view import ClusterView, unpack_map
from van.message import Control, Kind, Message, Meta
from van.van import Van

log = logging.getLogger(__name__)

RETRY = 1.0  # seconds between two sayings of what is not answered
_LAST_ANSWER = 10.0  # seconds to wait for the answer to a goodbye when the cluster ends


class Postoffice(Exchange):
    """A server, dispatcher or worker; `postoffice.head.SchedulerOffice` is the scheduler.

    Args:
        role: what this node does.
        van: moves its messages; bound by `start`.
        shape: the cluster.
        bind: address to listen on.
        rank: the rank it would like; None takes any.
        nonce: tells this process from all others; by default random.

    Attributes:
        statuses: what this node tells the scheduler of itself with each heartbeat and as it leaves,
            msgpack types.
    """

    def __init__(
        self,
        role: Role,
        van: Van,
        shape: ClusterShape,
        *,
        bind: str = "tcp://127.0.0.1:0",
        rank: int | None = None,
        nonce: int | None = None,
    ) -> None:
        super().__init__(role, van, shape, nonce=nonce)
        self.before_goodbye: list[Callable[[], None]] = []  # called once, as this node ends
        self.statuses: dict[str, Callable[[], Any]] = {"sent": lambda: van.counts["sent_bytes"]}
        self._bind, self._wanted_rank = bind, rank
        self._attendance = Attendance()
        self._repeats = Repeats(RETRY)
        self._pulse = Pulse(shape.heartbeat_interval, shape.scheduler_timeout)
        self._goodbye_done = False

    # -- start and end --------------------------------------------------------------------

    def start(self) -> None:
        """Listen, register, and return when all nodes have come.

        Raises:
            ClusterStartError: the scheduler does not answer, or not all come in time.
            RegistrationError: the scheduler has no room for this node.
            AddressError: the address to listen on is not to be had.
        """
        self.van.bind(self._bind)
        self._register()

    def _register(self) -> None:
        self.van.connect(SCHEDULER_ID, self.shape.scheduler)
        body = {"role": self.role.value, "rank": self._wanted_rank}
        # The scheduler gives up first, so that its reason is the one that is shown.
        deadline = self.van.now() + self.shape.start_timeout + 2 * RETRY
        while not self.nodes:
            meta = Meta(
                recipient=SCHEDULER_ID,
                incarnation=self.nonce,
                reply_to=self.van.address,
                control=Control.REGISTER,
                body=body,
            )
            self.van.send(Message(meta))
            self.van.wait(lambda: bool(self.nodes) or self._refusal is not None, timeout=RETRY)
            if self._refusal is not None:
                raise self._refusal
            if self.van.now() >= deadline:
                raise ClusterStartError(
                    f"the scheduler at {self.shape.scheduler} did not start the cluster within "
                    f"{self.shape.start_timeout:g} s; is it running, and is its address right?"
                )

    def finalize(self, failure: str | None = None, timeout: float | None = None) -> None:
        """Say goodbye and close. A worker's goodbye waits for nobody else.

        Args:
            failure: why this node ends early; then it counts as dead.
            timeout: seconds to wait until the scheduler has taken note; by default as long as a
                scheduler may be away, or 10 s when the cluster ends.
        """
        while self.before_goodbye:
            self.before_goodbye.pop()()
        if self.nodes and not self._goodbye_done and self._is_heard():
            message = self._control(Control.GOODBYE, {"failure": failure, "said": self._status()})
            message.meta.reply_to = self.van.address
            self._repeats.ask("goodbye", message, self.van.now())
            self.van.send(message)
            if timeout is None:
                is_end = self._stopped or failure is not None
                timeout = _LAST_ANSWER if is_end else self.shape.scheduler_timeout or None
            if not self.van.wait(lambda: self._goodbye_done or not self._is_heard(), timeout):
                log.warning("%s got no answer to its goodbye", self.name)
        self.van.close()

    def _is_heard(self) -> bool:
        """Whether there is a scheduler that listens to this node."""
        return self._end is None or self._end[0] is ClusterStoppedError

    def serve(self) -> None:
        """Answer until the cluster ends.

        Raises:
            ClusterStoppedError: a node failed; the text says which and why.
            FencedNodeError: this node was declared dead.
            SchedulerLostError: the scheduler has been silent for too long.
        """
        self.van.wait(lambda: self._stopped)
        self.raise_end()

    # -- barriers -------------------------------------------------------------------------

    def barrier(
        self, group: Group = Group.WORKERS, name: str = "", timeout: float | None = None
    ) -> None:
        """Return when every node of `group` that has not gone has come here.

        Raises:
            BarrierError: this node is not of the group, or time is up.
            ClusterStoppedError: the cluster ended; the text names the node that failed.
        """
        if not isinstance(name, str):
            raise BarrierError(f"a barrier's name is text, not {name!r}")
        attendance, place = self._attendance, (int(group), name)
        count = attendance.passed(place)
        message = self._control(Control.BARRIER, attendance.body(place))
        self._repeats.ask(place, message, self.van.now())
        self.van.send(message)
        try:
            is_passed = self.wait(
                lambda: attendance.passed(place) > count,
                timeout,
                lambda: attendance.describe(place),
            )
            if not is_passed:
                raise BarrierError(
                    f"barrier {name or '(no name)'} of {group!r}: {attendance.describe(place)} "
                    f"did not come within {timeout} s"
                )
        finally:
            self._repeats.answered(place)
            error = attendance.leave(place)
        if error is not None:
            raise BarrierError(error)

    def passed(self, group: Group, name: str) -> int:
        """How often a barrier has been passed, by all that is known here."""
        return self._attendance.passed((int(group), name))

    # -- the scheduler --------------------------------------------------------------------

    def _beat(self) -> None:
        """Say that this node lives, and again what is not answered."""
        if self._goodbye_done or not self._is_heard():
            return
        now = self.van.now()
        for message in self._repeats.due(now):
            self.van.send(message)
        self._send_heartbeat()
        problem = self._pulse.problem(now)
        if problem is not None:
            log.error("%s ends: %s", self.name, problem)
            self._stop(SchedulerLostError, problem)

    def _status(self) -> dict[str, Any]:
        return {name: tell() for name, tell in self.statuses.items()}

    def _send_heartbeat(self) -> None:
        message = self._control(Control.HEARTBEAT, self._status())
        message.meta.reply_to = self.van.address
        self.van.send(message)

    def _ask_news(self) -> None:
        if self.incarnation and self._pulse.wants_news(self.epoch):
            self._send_heartbeat()

    def _away(self) -> str:
        return self._pulse.describe(self.van.now())

    def _receive_control(self, message: Message) -> None:
        meta = message.meta
        if meta.control is Control.REFUSED:
            if not self.nodes:
                self._refusal = RegistrationError(str(meta.body["reason"]))
            return
        if meta.sender != SCHEDULER_ID or not self._is_scheduler(meta):
            self._drop("stranger", message)
            return
        self._pulse.heard(self.van.now())
        if meta.control is Control.NODES:
            self._take_view(meta)
        elif not self.nodes:
            self._keep_early(message)
        elif meta.control is Control.HEARTBEAT:
            if meta.kind is Kind.FENCED:
                self._stop(FencedNodeError, str(meta.body["reason"]))
        elif meta.control is Control.MAP:
            self._take_map(meta)
        elif meta.control in (Control.BARRIER, Control.BARRIER_DONE):
            self._attendance.take(meta.body)
        elif meta.control is Control.GOODBYE_DONE:
            if self._repeats.answered("goodbye"):  # else nobody asked
                self._goodbye_done = True
                self.van.send(self._control(Control.GOODBYE_SEEN))
        elif meta.control is Control.STOP:
            self._stop(ClusterStoppedError, meta.body["failure"])

    def _is_scheduler(self, meta: Meta) -> bool:
        """Whether this is the scheduler's present life, or a later one that took over.

        That it is a later one anybody can say; so it must know this node's life, which a table of
        the cluster has in its body.
        """
        known = self.nodes.get(SCHEDULER_ID)
        if known is None:
            return True
        knows_me = meta.control is Control.NODES or meta.recipient_incarnation == self.incarnation
        return knows_me and meta.incarnation >= known.incarnation

    def _take_view(self, meta: Meta) -> None:
        view, body = ClusterView.unpack(meta.body), meta.body
        if self.nodes:
            if body["life"] == self.incarnation and view.epoch > self.epoch:
                self._follow_scheduler(view.nodes[SCHEDULER_ID].address)
                self._see(view)
        elif body["nonce"] == self.nonce:
            self.node_id, self.incarnation = int(body["you"]), int(body["life"])
            self.van.every(self.shape.heartbeat_interval, self._beat)
            self._see(view)
            log.info("%r has joined", self)

    def _follow_scheduler(self, address: str) -> None:
        """Another scheduler may have taken over, at another address."""
        if address != self.nodes[SCHEDULER_ID].address:
            log.warning("%s: the scheduler is at %s now", self.name, address)
            self.van.connect(SCHEDULER_ID, address)

    def _take_map(self, meta: Meta) -> None:
        version, blob = unpack_map(meta.body["map"])
        if version > self.view.map_version:
            self._see(replace(self.view, map_version=version, map_blob=blob))
