"""How a node's messages go out: to members, and to peers of which only an address is known.

A link to a member is made when the first message goes to it. Where too much waits for somebody
already, who may wait does, and an answer becomes an error.

Source: ps-lite, src/van.cc.
"""

from __future__ import annotations

import logging

from postoffice.errors import DeadNodeError
from postoffice.node import SCHEDULER_ID, Node, Role, node_name
from postoffice.participant import Participant
from postoffice.scheduler import Reply
from postoffice.shape import ClusterShape
from postoffice.strangers import Strangers
from van.errors import UnreachablePeerError, VanError
from van.message import Control, Flag, Kind, Message, Meta
from van.van import Van

log = logging.getLogger(__name__)

_STRANGER = 1 << 62  # van id of a peer that has none; never in a header


class Sender(Participant):
    """Sends the messages of one node. Arguments as for `Participant`."""

    def __init__(
        self, role: Role, van: Van, shape: ClusterShape, *, nonce: int | None = None
    ) -> None:
        super().__init__(role, van, shape, nonce=nonce)
        self._connected: set[int] = {SCHEDULER_ID}
        self._strangers = Strangers()

    # -- to members -----------------------------------------------------------------------------

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

    def reach(self, node: int) -> None:
        """Connect to a node of the table, if that has not been done.

        `send` does so by itself. Where one thread drives the van all the time, only that one can;
        it calls this before others send.
        """
        peer = self.nodes.get(node)
        if peer is not None and node not in self._connected:
            self.van.connect(node, peer.address)
            self._connected.add(node)

    def _hang_up(self, node: int) -> None:
        """End the link to a life that is over: what waits for it would lie here for ever."""
        self.van.disconnect(node)
        self._connected.discard(node)

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

    # -- to whoever asks, by address ------------------------------------------------------------

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
