"""What a node does with a message that comes: it is handed on, kept until later, or dropped.

    from a member        to the customer it is for
    from a newer view    kept until this node has that view, too
    from a former life   dropped, and that life is told once that it was declared dead
    from anybody else    only what is needed to join, to say that one lives, and to ask

A message whose key does not fit its sender counts as nobody's, and a peer of another version of the
protocol is told so.

Source: ps-lite, src/van.cc.
"""

from __future__ import annotations

import logging

from postoffice.credentials import complaint
from postoffice.customer import Customer
from postoffice.errors import ClusterStoppedError, FencedNodeError
from postoffice.node import SCHEDULER_ID, Node, Role, node_name
from postoffice.sender import Sender
from postoffice.shape import ClusterShape
from van.addresses import key_of, place_of
from van.errors import HandshakeError, ProtocolVersionError, PsliteError, VanError
from van.message import Control, Flag, Kind, Message, Meta, answer_to
from van.van import Van

log = logging.getLogger(__name__)

_ANSWER = Flag.ANSWER
_FENCED = Kind.FENCED
_FROM_ANYBODY = (Control.REGISTER, Control.NODES, Control.REFUSED, Control.HEARTBEAT)
_REMEMBERED_REASONS = 100
_TOLD_PEERS = 100  # of another version, that are answered
_EARLY_MESSAGES = 10_000  # kept from peers who know more of the cluster than this node does
_EARLY_NBYTES = 256 << 20  # of their arrays


class Receiver(Sender):
    """Hands on the messages of one node, and answers those that are for nobody here.

    Arguments as for `Participant`.
    """

    def __init__(
        self, role: Role, van: Van, shape: ClusterShape, *, nonce: int | None = None
    ) -> None:
        super().__init__(role, van, shape, nonce=nonce)
        self._customers: dict[tuple[int, int], Customer] = {}
        self._servers_of_app: dict[int, Customer] = {}
        self._refusal: PsliteError | None = None
        self._early: list[Message] = []
        self._early_nbytes = 0
        self._former: dict[int, Node] = {}  # last lives of the dead
        self._told: set[object] = set()
        van.receiver = self._receive
        van.on_refused = self._note_refused

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

    def _receive_control(self, message: Message) -> None:
        raise NotImplementedError

    def _answer_query(self, meta: Meta) -> None:
        self._send_replies([reply] if (reply := self.queries.answer(meta)) else [])

    def _is_known(self, meta: Meta) -> bool:
        node = self.nodes.get(meta.sender)
        return node is not None and node.incarnation == meta.incarnation

    # -- requests and answers -------------------------------------------------------------------

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

    # -- too early ------------------------------------------------------------------------------

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

    def _take_early(self) -> None:
        """This node knows more than before."""
        early, self._early, self._early_nbytes = self._early, [], 0
        for message in early:
            self._receive(message)

    def _ask_news(self) -> None:
        """Somebody knows more than this node."""

    # -- of no member ---------------------------------------------------------------------------

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

    # -- peers that do not get through ----------------------------------------------------------

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
