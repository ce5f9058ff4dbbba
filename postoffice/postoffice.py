"""A node of the cluster: knows who it is and who is there, and passes messages to its customers.

    office = Postoffice(Role.WORKER, van, cluster)
    Customer(app, customer, office, handler)      # before start: a started node must be able to
    office.start()                                # answer
    ...
    office.finalize()

Source: ps-lite, src/postoffice.cc and src/van.cc. There is no singleton, so a process may hold
several nodes; a server announces itself only when its handlers are set; servers end after the
last worker's goodbye.
"""

from __future__ import annotations

import logging
import math
import time
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass

from postoffice.credentials import complaint
from postoffice.customer import Customer
from postoffice.errors import (
    BarrierError,
    ClusterStartError,
    ClusterStoppedError,
    PostofficeError,
    RegistrationError,
)
from postoffice.node import SCHEDULER_ID, Group, Node, Role, node_name
from postoffice.queries import Queries
from postoffice.scheduler import Reply
from postoffice.strangers import Allowance
from van.addresses import key_of, place_of
from van.errors import (
    HandshakeError,
    ProtocolVersionError,
    PsliteError,
    UnreachablePeerError,
    VanError,
)
from van.message import Control, Flag, Kind, Message, Meta, answer_to
from van.van import Van

log = logging.getLogger(__name__)

_ANSWER = Flag.ANSWER
_STRANGER = 1 << 62  # van id of a peer that has none; never in a header
_FROM_ANYBODY = (Control.REGISTER, Control.NODES, Control.REFUSED)  # of nodes without an id
_REMEMBERED_REASONS = 100
_TOLD_PEERS = 100  # of another version, that are answered
_EARLY_MESSAGES = 10_000  # kept from peers who know of the cluster before this node does
RETRY = 1.0  # seconds between two registrations


@dataclass(frozen=True, kw_only=True)
class ClusterShape:
    """How many nodes there are and where the scheduler is."""

    servers: int
    workers: int
    scheduler: str  # its address, such as tcp://127.0.0.1:4000
    dispatchers: int = 0
    start_timeout: float = 60.0  # seconds until all nodes must have come
    report_every: float = 10.0  # seconds between two reports of who is missing


class Postoffice:
    """A server, dispatcher or worker; `postoffice.head.SchedulerOffice` is the scheduler.

    Args:
        role: what this node does.
        van: moves its messages; bound by `start`.
        shape: the cluster.
        bind: address to listen on.
        rank: the rank it would like; None takes any.
        incarnation: grows from start to start of one node; by default the time in nanoseconds.
    """

    def __init__(
        self,
        role: Role,
        van: Van,
        shape: ClusterShape,
        *,
        bind: str = "tcp://127.0.0.1:0",
        rank: int | None = None,
        incarnation: int | None = None,
    ) -> None:
        self.role, self.van, self.shape = role, van, shape
        self.nodes: dict[int, Node] = {}
        self.node_id = 0  # until it is given one
        self.epoch = 0
        self.incarnation = time.time_ns() if incarnation is None else incarnation
        self.counts: Counter[str] = Counter()
        self.queries = Queries()
        self.before_goodbye: list[Callable[[], None]] = []  # called once, as this node ends
        self._bind, self._wanted_rank = bind, rank
        self._customers: dict[tuple[int, int], Customer] = {}
        self._servers_of_app: dict[int, Customer] = {}
        self._barrier_counts: dict[tuple[int, str], int] = {}
        self._barrier_errors: dict[tuple[int, str], str | None] = {}
        self._refusal: PsliteError | None = None
        self._failure: str | None = None
        self._stopped = False
        self._goodbye_done = False
        self._early: list[Message] = []
        self._connected: set[int] = {SCHEDULER_ID}
        self._told: set[str] = set()
        self._allowance = Allowance()
        van.receiver = self._receive
        van.on_refused = self._note_refused

    # -- who is there ---------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This node's rank within its role."""
        return self.nodes[self.node_id].rank

    @property
    def name(self) -> str:
        """Such as `worker 0`."""
        return node_name(self.node_id) if self.node_id else f"{self.role} (not started)"

    @property
    def is_stopped(self) -> bool:
        """Whether the scheduler has ended the cluster."""
        return self._stopped

    def members(self, role: Role) -> list[int]:
        """Ids of the nodes of `role`, by rank."""
        return sorted(node.id for node in self.nodes.values() if node.role is role)

    def add_customer(self, customer: Customer) -> None:
        """Let `customer` get its messages; called by its constructor."""
        key = (customer.app, customer.customer)
        if key in self._customers:
            raise PostofficeError(
                f"app {key[0]} customer {key[1]} exists already on {self.name}; "
                f"give the second one another customer id"
            )
        self._customers[key] = customer
        if customer.handle_request is not None:
            self._servers_of_app.setdefault(customer.app, customer)

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
                incarnation=self.incarnation,
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

    def finalize(self, failure: str | None = None, timeout: float = 10.0) -> None:
        """Say goodbye and close. A worker's goodbye waits for nobody else.

        Args:
            failure: why this node ends early; the scheduler then ends the job.
            timeout: seconds to wait until the scheduler has taken note.
        """
        while self.before_goodbye:
            self.before_goodbye.pop()()
        if self.nodes and not self._goodbye_done:
            message = self._control(Control.GOODBYE, {"failure": failure})
            self.van.send(message)
            if not self.van.wait(lambda: self._goodbye_done, timeout):
                log.warning("%s got no answer to its goodbye", self.name)
        self.van.close()

    def serve(self) -> None:
        """Answer until the cluster ends.

        Raises:
            ClusterStoppedError: a node failed; the text says which and why.
        """
        self.van.wait(lambda: self._stopped)
        if self._failure is not None:
            raise ClusterStoppedError(self._failure)

    def stop(self, failure: str | None = None) -> None:
        """End this node's `serve`, from any thread."""
        self._failure = self._failure or failure
        self._stopped = True

    # -- waiting --------------------------------------------------------------------------

    def wait(
        self,
        done: Callable[[], bool],
        timeout: float | None = None,
        what: Callable[[], str] = lambda: "others",
    ) -> bool:
        """Move messages until `done()`; False when `timeout` seconds are over.

        A long wait is reported from time to time, with `what()` it is for.

        Raises:
            ClusterStoppedError: the cluster ended first.
        """
        started, every = self.van.now(), self.van.reports_waits
        while True:
            left = None if timeout is None else timeout - (self.van.now() - started)
            turn = left if every is None else min(every, math.inf if left is None else left)
            if self.van.wait(lambda: done() or self._stopped, turn):
                if done():
                    return True
                raise ClusterStoppedError(self._failure or "the cluster has stopped")
            waited = self.van.now() - started
            if every is None or self.van.is_closed or (timeout is not None and waited >= timeout):
                return False
            log.warning("%s has waited %.0f s for %s", self.name, waited, what())

    def barrier(
        self, group: Group = Group.WORKERS, name: str = "", timeout: float | None = None
    ) -> None:
        """Return when every node of `group` that has not gone has come here.

        Raises:
            BarrierError: this node is not of the group, or time is up.
            ClusterStoppedError: the cluster ended.
        """
        if not isinstance(name, str):
            raise BarrierError(f"a barrier's name is text, not {name!r}")
        place = (int(group), name)
        count = self._barrier_counts.get(place, 0)
        body = {"group": place[0], "name": name, "count": count}
        self.van.send(self._control(Control.BARRIER, body))
        what = f"the others at barrier {name}".rstrip
        if not self.wait(lambda: self._barrier_counts.get(place, 0) > count, timeout, what):
            raise BarrierError(
                f"barrier {name or '(no name)'} of {group!r}: not everybody came within {timeout} s"
            )
        error = self._barrier_errors.pop(place, None)
        if error is not None:
            raise BarrierError(error)

    # -- messages -------------------------------------------------------------------------

    def send(self, message: Message) -> None:
        """Fill in who speaks to whom, and queue.

        Where too much waits for the recipient already, a worker waits until there is room. A
        server does not, since all others depend on it: its answer becomes an error.

        Raises:
            UnreachablePeerError: the recipient is not in the node table, or a request of a node
                that does not wait finds no room.
            ClusterStoppedError: the cluster ended while this waited for room.
        """
        meta = message.meta
        peer = self.nodes.get(meta.recipient)
        if peer is None:
            raise UnreachablePeerError(meta.recipient, "it is not in the node table")
        meta.sender, meta.incarnation, meta.epoch = self.node_id, self.incarnation, self.epoch
        meta.recipient_incarnation = peer.incarnation
        if meta.recipient not in self._connected:  # most pairs of nodes never speak
            self.reach(meta.recipient)
        if not self.van.has_room(meta.recipient):
            message = self._with_room(peer, message)
        self.van.send(message)

    def _with_room(self, peer: Node, message: Message) -> Message:
        """`message`, when there is room for it, or what to send in its place."""
        name = node_name(peer.id)
        if self.role is Role.WORKER and not self.van.is_driving:

            def has_room() -> bool:
                return self.van.has_room(peer.id)

            if self.wait(has_room, what=lambda: f"{name} to take what was sent before"):
                return message
        is_answer = bool(message.meta.flags & Flag.ANSWER)
        if is_answer and not message.arrays:
            return message  # it is small, and somebody waits for it
        text = f"too much waits for it already ([van] backlog, backlog_bytes); does {name} read?"
        if not is_answer:
            raise UnreachablePeerError(peer.id, text)
        self.counts["answers without room"] += 1
        meta = message.meta
        meta.kind, meta.error = Kind.ERROR, (UnreachablePeerError.__name__, text, self.node_id)
        return Message(meta)

    def reach(self, node: int) -> None:
        """Connect to a node of the table, if that has not been done.

        `send` does so by itself. Where one thread drives the van all the time, only that one can;
        it calls this before others send.
        """
        peer = self.nodes.get(node)
        if peer is not None and node not in self._connected:
            self.van.connect(node, peer.address)
            self._connected.add(node)

    def _control(self, control: Control, body: object) -> Message:
        meta = Meta(
            sender=self.node_id,
            recipient=SCHEDULER_ID,
            incarnation=self.incarnation,
            control=control,
            epoch=self.epoch,
            body=body,
        )
        return Message(meta)

    def _receive(self, message: Message) -> None:
        meta = message.meta
        try:
            if meta.recipient_incarnation not in (0, self.incarnation):
                self._drop("misdirected", message)
            elif message.peer is not None and (why := complaint(message, self.nodes)):
                self._refuse_key(message, why)
            elif not meta.control:  # nearly all
                self._receive_data(message)
            elif meta.control in _FROM_ANYBODY:
                self._receive_control(message)
            elif meta.control is Control.QUERY:
                self._send_replies([reply] if (reply := self.queries.answer(meta)) else [])
            elif not self.nodes:
                self._keep_early(message)
            elif not self._is_known(meta):
                self._drop("stranger", message)
            else:
                self._receive_control(message)
        except Exception as error:  # a message must not stop the node that gets it
            self._drop(f"failed ({type(error).__name__}: {error})", message)

    def _receive_data(self, message: Message) -> None:
        meta = message.meta
        if not self.nodes:
            self._keep_early(message)
        elif not self._is_known(meta):
            self._drop("stranger", message)
        elif not meta.flags & _ANSWER:
            self._receive_request(message)
        else:
            customer = self._customers.get((meta.app, meta.customer))
            if customer is not None:
                customer.take_answer(message)

    def _keep_early(self, message: Message) -> None:
        """Others may have got the node table, and begun to ask, before this node."""
        if len(self._early) < _EARLY_MESSAGES:
            self._early.append(message)
        else:
            self._drop("too early", message)

    def _is_known(self, meta: Meta) -> bool:
        node = self.nodes.get(meta.sender)
        return node is not None and node.incarnation == meta.incarnation

    def _refuse_key(self, message: Message, why: str) -> None:
        """Drop a message whose key does not fit; who only wants to join hears why."""
        self._drop("false key", message, why)
        meta, peer = message.meta, message.peer
        is_own_address = peer is not None and key_of(meta.reply_to) == peer.key
        if meta.control is Control.REGISTER and self.role is Role.SCHEDULER and is_own_address:
            reason = f"{why}, which its allow-list at the scheduler does not say"
            refusal = Message(Meta(control=Control.REFUSED, body={"reason": reason}))
            self._send_replies([(meta.reply_to, refusal)])

    def _drop(self, why: str, message: Message, text: str = "") -> None:
        if why not in self.counts and len(self.counts) >= _REMEMBERED_REASONS:
            why = "others"  # a text of a peer's making must not fill our memory
        self.counts[why] += 1
        if self.counts[why] == 1 and len(self.counts) < _REMEMBERED_REASONS:
            log.warning("%s drops %r: %s", self.name, message, text or why)

    def _receive_request(self, message: Message) -> None:
        customer = self._servers_of_app.get(message.meta.app)
        if customer is not None and customer.handle_request is not None:
            customer.handle_request(message)
            return
        text = f"{self.name} has no app {message.meta.app}"
        self.send(
            Message(
                answer_to(message.meta, Kind.ERROR, error=("PostofficeError", text, self.node_id))
            )
        )

    def _receive_control(self, message: Message) -> None:
        meta = message.meta
        if meta.control is Control.NODES:
            self._join(meta)
        elif meta.control is Control.REFUSED:
            if not self.nodes:
                self._refusal = RegistrationError(str(meta.body["reason"]))
        elif meta.sender != SCHEDULER_ID:
            self._drop("stranger", message)
        elif meta.control is Control.BARRIER_DONE:
            place = (int(meta.body["group"]), str(meta.body["name"]))
            self._barrier_errors[place] = meta.body["error"]
            passed = int(meta.body["passed"])
            self._barrier_counts[place] = max(passed, self._barrier_counts.get(place, 0))
        elif meta.control is Control.GOODBYE_DONE:
            self._goodbye_done = True
        elif meta.control is Control.STOP:
            self._failure = meta.body["failure"]
            self._stopped = True

    def _join(self, meta: Meta) -> None:
        if self.nodes:
            return
        self.node_id, self.epoch = int(meta.body["you"]), meta.epoch
        self.nodes = {node.id: node for node in map(Node.unpack, meta.body["nodes"])}
        log.info("%r has joined", self)
        early, self._early = self._early, []
        for message in early:
            self._receive(message)

    def _send_replies(self, replies: list[Reply]) -> None:
        for address, message in replies:
            try:
                self._send_reply(address, message)
            except VanError as error:
                self.counts["unanswerable"] += 1
                if self.counts["unanswerable"] == 1:
                    log.warning("%s cannot answer %r: %s", self.name, address, error)

    def _send_reply(self, address: str, message: Message) -> None:
        peer = message.meta.recipient
        message.meta.sender, message.meta.incarnation = self.node_id, self.incarnation
        if peer:
            if address:
                self.van.connect(peer, address)
            self.van.send(message)
        elif address and not self._allowance.take(self.van.now()):
            self.counts["strangers not answered"] += 1
        elif address:  # somebody who will not get an id
            message.meta.recipient = _STRANGER
            self.van.connect(_STRANGER, address)
            self.van.send(message)
            self.van.disconnect(_STRANGER)

    def _note_refused(self, error: VanError) -> None:
        if isinstance(error, ProtocolVersionError):
            self._note_other_version(error)
        elif isinstance(error, HandshakeError):
            self._note_handshake(error)

    def _note_handshake(self, error: HandshakeError) -> None:
        """Nothing gets through to a peer: that ends a registration, and a worker.

        A server or the scheduler must not end because one of many does not let it in.
        """
        if not self.nodes and error.address == place_of(self.shape.scheduler):
            self._refusal = error
            return
        log.warning("%s: %s", self.name, error)
        is_member = any(node.place == error.address for node in self.nodes.values())
        if error.is_final and is_member and self.role is Role.WORKER:
            self.stop(str(error))

    def _note_other_version(self, error: ProtocolVersionError) -> None:
        """Tell a peer of another version, once; and if it is our scheduler, give up."""
        if error.reply_to and error.reply_to not in self._told and len(self._told) < _TOLD_PEERS:
            self._told.add(error.reply_to)
            body = {"reason": str(error)}
            self._send_replies(
                [(error.reply_to, Message(Meta(control=Control.REFUSED, body=body)))]
            )
        if not self.nodes and error.sender == SCHEDULER_ID:
            self._refusal = error

    def __repr__(self) -> str:
        mark = {Role.SCHEDULER: "H", Role.SERVER: "S", Role.WORKER: "W", Role.DISPATCHER: "D"}
        pending = sum(c.pending for c in list(self._customers.values()))
        return f"<{mark[self.role]}[{self.node_id}] {place_of(self.van.address)} pending={pending}>"
