"""The part of a node that moves messages: to its customers, from them, and past former selves.

Who is in the cluster comes as views (`ClusterView`); where they come from is not known here.
`postoffice.postoffice` adds what a node has to do with its scheduler.

Source: ps-lite, src/postoffice.cc and src/van.cc.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections import Counter
from collections.abc import Callable

from postoffice.credentials import complaint
from postoffice.customer import Customer
from postoffice.errors import (
    ClusterStoppedError,
    DeadNodeError,
    FencedNodeError,
    PostofficeError,
)
from postoffice.failure import Verdict
from postoffice.metrics import Metrics
from postoffice.node import SCHEDULER_ID, Node, Role, node_name, role_and_rank
from postoffice.queries import Queries
from postoffice.resending import Resend, Resending
from postoffice.scheduler import Reply
from postoffice.shape import ClusterShape
from postoffice.strangers import Strangers
from postoffice.view import ClusterView
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
_FENCED = Kind.FENCED
_STRANGER = 1 << 62  # van id of a peer that has none; never in a header
_FROM_ANYBODY = (Control.REGISTER, Control.NODES, Control.REFUSED, Control.HEARTBEAT)
_REMEMBERED_REASONS = 100
_TOLD_PEERS = 100  # of another version, that are answered
_EARLY_MESSAGES = 10_000  # kept from peers who know more of the cluster than this node does
_EARLY_NBYTES = 256 << 20  # of their arrays

OnView = Callable[[ClusterView, ClusterView], None]
"""Called with the former view and the new one, before any later message is handed on."""


class Exchange:
    """Sends and hands on the messages of one node.

    Args:
        role: what this node does.
        van: moves its messages.
        shape: the cluster.
        nonce: tells this process from all others until the scheduler has given it an incarnation;
            by default random.

    Attributes:
        view: what this node knows of the cluster.
        nodes: the node table of `view`.
        epoch: that of `view`.
        on_view: called with each new view, by the thread that drives the van.
        incarnation: this node's life; 0 until it is in the cluster.
    """

    def __init__(
        self, role: Role, van: Van, shape: ClusterShape, *, nonce: int | None = None
    ) -> None:
        self.role, self.van, self.shape = role, van, shape
        self.view = ClusterView()
        self.nodes: dict[int, Node] = {}
        self.node_id = 0  # until it is given one
        self.epoch = 0
        self.incarnation = 0
        self.nonce = secrets.randbits(63) if nonce is None else nonce
        self.on_view: list[OnView] = []
        self.counts: Counter[str] = Counter()
        self.queries, self.metrics = Queries(), Metrics()
        self.metrics.offer(
            "pslite_network_tx_bytes",
            "counter",
            "Bytes of the messages that this node has sent.",
            lambda: [({}, self.van.counts["sent_bytes"])],
        )
        self.queries.offer("metrics", self.metrics.facts)
        self._customers: dict[tuple[int, int], Customer] = {}
        self._servers_of_app: dict[int, Customer] = {}
        self._refusal: PsliteError | None = None
        self._end: tuple[type[PostofficeError], str] | None = None
        self._stopped = False
        self._early: list[Message] = []
        self._early_nbytes = 0
        self._resend: Resend | None = None
        self._connected: set[int] = {SCHEDULER_ID}
        self._former: dict[int, Node] = {}  # last lives of the dead
        self._told: set[object] = set()
        self._strangers = Strangers()
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
        """Whether this node must end: the cluster has, or this node is no part of it any more."""
        return self._stopped

    def members(self, role: Role) -> list[int]:
        """Ids of the nodes of `role` in the node table, by rank."""
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
        if self._resend is not None:
            customer.resending = Resending(self._resend)
        if customer.handle_request is not None:
            self._servers_of_app.setdefault(customer.app, customer)

    def _see(self, view: ClusterView) -> None:
        """Take a newer view, then what came too early for the former one."""
        old, self.view = self.view, view
        self.nodes, self.epoch = dict(view.nodes), view.epoch
        for node in old.nodes.values():
            now = view.nodes.get(node.id)
            if now is not None and now.address == node.address:
                continue
            if node.id != SCHEDULER_ID and node.id != self.node_id:
                # What waits for a dead node would lie here for ever.
                self.van.disconnect(node.id)
                self._connected.discard(node.id)
                self._former[node.id] = node
        for call in self.on_view:
            call(old, view)
        for customer in list(self._customers.values()):
            customer.see(old, view, self._patience)
        if view.epoch > old.epoch:
            early, self._early, self._early_nbytes = self._early, [], 0
            for message in early:
                self._receive(message)

    def _patience(self, node: int) -> float:
        """Seconds to wait for somebody in the place of a node that has died.

        A server may have a backup, which a newer slot map says, or be started again; where neither
        is wanted the scheduler ends the job.
        """
        role, _ = role_and_rank(node)
        failures = self.shape.failures
        if self._resend is None:
            return 0.0
        if role in (Role.SERVER, Role.DISPATCHER) or failures.verdict(role, False) is Verdict.AWAIT:
            return failures.restart_timeout
        return 0.0

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
            FencedNodeError: this node was declared dead.
            SchedulerLostError: the scheduler has been silent for too long.
        """
        started, every = self.van.now(), self.van.reports_waits
        while True:
            left = None if timeout is None else timeout - (self.van.now() - started)
            turn = left if every is None else min(every, math.inf if left is None else left)
            if self.van.wait(lambda: done() or self._stopped, turn):
                if done():
                    return True
                self.raise_end()
                raise ClusterStoppedError("the cluster has stopped")
            waited = self.van.now() - started
            if every is None or self.van.is_closed or (timeout is not None and waited >= timeout):
                return False
            log.warning("%s has waited %.0f s for %s%s", self.name, waited, what(), self._away())

    def _away(self) -> str:
        """For people who wait: what else is wrong."""
        return ""

    def stop(self, failure: str | None = None) -> None:
        """End this node's `serve`, from any thread."""
        self._stop(ClusterStoppedError, failure)

    def _stop(self, kind: type[PostofficeError], failure: str | None) -> None:
        if self._end is None and failure is not None:
            self._end = (kind, failure)
        self._stopped = True

    def raise_end(self) -> None:
        """Raise why this node must end, if it must and not because all is done."""
        if self._end is not None:
            kind, text = self._end
            raise kind(text)

    # -- sending --------------------------------------------------------------------------

    def send(self, message: Message, *, may_connect: bool = True) -> None:
        """Fill in who speaks to whom, and queue.

        Where too much waits for the recipient already, a worker waits until there is room. A
        server does not, since all others depend on it: its answer becomes an error.

        Args:
            may_connect: for who must not wait for the thread that drives the van: what is for a
                node that is not connected is refused.
        Raises:
            UnreachablePeerError: the recipient is not in the node table, or a request of a node
                that does not wait finds no room.
            DeadNodeError: the recipient is dead.
            ClusterStoppedError: the cluster ended while this waited for room.
        """
        meta = message.meta
        peer = self.nodes.get(meta.recipient)
        if peer is None:
            if meta.recipient in self.view.fenced:
                raise DeadNodeError(meta.recipient, node_name(meta.recipient))
            raise UnreachablePeerError(meta.recipient, "it is not in the node table")
        meta.sender, meta.incarnation, meta.epoch = self.node_id, self.incarnation, self.epoch
        meta.recipient_incarnation = peer.incarnation
        if meta.recipient not in self._connected:  # most pairs of nodes never speak
            if not may_connect:
                raise UnreachablePeerError(peer.id, "it is not connected")
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

    def resend_with(self, settings: Resend) -> None:
        """Send again what nobody answers; to be called once, before the start."""
        self._resend = settings
        for customer in self._customers.values():
            customer.resending = Resending(settings)
        self.van.every(settings.tick, self._send_again)

    def _send_again(self) -> None:
        if not self._stopped:
            now = self.van.now()
            for customer in list(self._customers.values()):
                customer.send_again(now)

    def reach(self, node: int) -> None:
        """Connect to a node of the table, if that has not been done.

        `send` does so by itself. Where one thread drives the van all the time, only that one can;
        it calls this before others send.
        """
        peer = self.nodes.get(node)
        if peer is not None and node not in self._connected:
            self.van.connect(node, peer.address)
            self._connected.add(node)

    def _control(self, control: Control, body: object = None) -> Message:
        """A message to the scheduler."""
        meta = Meta(
            sender=self.node_id,
            recipient=SCHEDULER_ID,
            incarnation=self.incarnation,
            control=control,
            epoch=self.epoch,
            map_version=self.view.map_version,
            body=body,
        )
        return Message(meta)

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
        elif address:  # somebody who will not get an id
            if not self._strangers.admits(self.van.now()):
                raise UnreachablePeerError(0, f"more than {self._strangers.most} strangers ask")
            message.meta.recipient = _STRANGER
            self.van.connect(_STRANGER, address)
            self.van.send(message)
            self.van.disconnect(_STRANGER)

    # -- receiving ------------------------------------------------------------------------

    def _receive(self, message: Message) -> None:
        meta = message.meta
        try:
            if not self.incarnation and meta.control not in _FROM_ANYBODY:
                if meta.control is Control.QUERY:
                    self._answer_query(meta)
                else:
                    self._keep_early(message)
            elif meta.recipient_incarnation not in (0, self.incarnation):
                self._drop("misdirected", message)
            elif message.peer is not None and (why := complaint(message, self.nodes)):
                self._refuse_key(message, why)
            elif meta.sender == self.node_id == SCHEDULER_ID:  # which needs no words with itself
                self._drop("stranger", message)
            elif not meta.control:  # nearly all
                self._receive_data(message)
            elif meta.control in _FROM_ANYBODY:
                self._receive_control(message)
            elif meta.control is Control.QUERY:
                self._answer_query(meta)
            elif meta.sender != SCHEDULER_ID and not self._is_known(meta):
                self._receive_stranger(message)
            else:
                self._receive_control(message)
        except Exception as error:  # a message must not stop the node that gets it
            self._drop(f"failed ({type(error).__name__}: {error})", message)

    def _answer_query(self, meta: Meta) -> None:
        self._send_replies([reply] if (reply := self.queries.answer(meta)) else [])

    def _receive_data(self, message: Message) -> None:
        meta = message.meta
        node = self.nodes.get(meta.sender)
        if node is None or node.incarnation != meta.incarnation:
            self._receive_stranger(message)
        elif not meta.flags & _ANSWER:
            if meta.epoch > self.epoch:
                self._keep_early(message)  # it may be about what this node does not know yet
            else:
                self._receive_request(message)
        elif meta.kind is _FENCED:
            self._note_fenced(meta)
        else:
            customer = self._customers.get((meta.app, meta.customer))
            if customer is not None:
                customer.take_answer(message)

    def _receive_stranger(self, message: Message) -> None:
        """A message of a life that is not in the node table: too new, or too old."""
        meta = message.meta
        if meta.epoch > self.epoch:
            self._keep_early(message)
            return
        if self.view.is_fenced(meta.sender, meta.incarnation):
            self._drop("fenced", message)
            if not meta.control and not meta.flags & _ANSWER:
                self._tell_fenced(meta)
        else:
            self._drop("stranger", message)

    def _tell_fenced(self, meta: Meta) -> None:
        """Tell a node that it was declared dead, once; the scheduler tells it too."""
        former, life = self._former.get(meta.sender), (meta.sender, meta.incarnation)
        if former is None or former.incarnation != meta.incarnation or life in self._told:
            return
        self._told.add(life)
        text = f"{node_name(meta.sender)} was declared dead, and {self.name} does not hear it"
        answer = answer_to(meta, _FENCED, error=(FencedNodeError.__name__, text, self.node_id))
        answer.recipient = 0  # another life may have that id
        self._send_replies([(former.address, Message(answer))])

    def _note_fenced(self, meta: Meta) -> None:
        reason = meta.error[1] if meta.error is not None else "this node was declared dead"
        self._stop(FencedNodeError, reason)

    def _keep_early(self, message: Message) -> None:
        """Others may have got the node table, and begun to ask, before this node."""
        nbytes = message.nbytes
        is_full = len(self._early) >= _EARLY_MESSAGES
        if is_full or self._early_nbytes + nbytes > _EARLY_NBYTES:
            self._drop("too early", message)
            return
        self._early.append(message)
        self._early_nbytes += nbytes
        self._ask_news()

    def _ask_news(self) -> None:
        """Somebody knows more than this node."""

    def _is_known(self, meta: Meta) -> bool:
        node = self.nodes.get(meta.sender)
        return node is not None and node.incarnation == meta.incarnation

    def _drop(self, why: str, message: Message, text: str = "") -> None:
        if why not in self.counts and len(self.counts) >= _REMEMBERED_REASONS:
            why = "others"  # a text of a peer's making must not fill our memory
        self.counts[why] += 1
        if self.counts[why] == 1 and len(self.counts) < _REMEMBERED_REASONS:
            log.warning("%s drops %r: %s", self.name, message, text or why)

    def _refuse_key(self, message: Message, why: str) -> None:
        """Drop a message whose key does not fit; who only wants to join hears why."""
        self._drop("false key", message, why)
        meta, peer = message.meta, message.peer
        is_own_address = peer is not None and key_of(meta.reply_to) == peer.key
        if meta.control is Control.REGISTER and self.role is Role.SCHEDULER and is_own_address:
            refusal = Message(Meta(control=Control.REFUSED, body={"reason": why}))
            self._send_replies([(meta.reply_to, refusal)])

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
        raise NotImplementedError

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
            self._stop(ClusterStoppedError, str(error))

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
