"""The ZeroMQ sockets of one node: a ROUTER that only receives, a DEALER for each peer.

Owned by one thread at a time (`van.courier` sees to that); only `wake` may be called by others.

Source: ps-lite, src/zmq_van.h, which also binds one ROUTER and connects a DEALER per peer. Here
routing ids are ZeroMQ's own, sends never block, and what a peer does not take waits in a bounded
backlog.
"""

from __future__ import annotations

import contextlib
import logging
import math
import socket
from collections import Counter, deque
from collections.abc import Iterator, Sequence
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from van.codec import Descriptor, Frame, decode_array, decode_header
from van.config import VanConfig
from van.errors import AddressError, CodecError, ProtocolVersionError, UnreachablePeerError
from van.message import Message

log = logging.getLogger(__name__)

_CONNECTION_EVENTS = zmq.EVENT_ACCEPTED | zmq.EVENT_HANDSHAKE_SUCCEEDED | zmq.EVENT_DISCONNECTED
_REMEMBERED_PEERS = 1024


class ZmqSockets:
    """Sends frames to connected peers and receives messages from anybody.

    Args:
        context: shared by the nodes of a process, so that `inproc://` works; not closed here.
        config: limits.

    Attributes:
        counts: how many messages were `received` and `sent`, and how many dropped and why.
    """

    def __init__(self, context: zmq.Context[Any], config: VanConfig) -> None:
        self.counts: Counter[str] = Counter()
        self.address = ""
        self.refused: list[ProtocolVersionError] = []
        self._config = config
        self._context = context
        self._router = context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.RCVHWM, config.backlog)
        # Twice our own limit: what lies between is counted, beyond it libzmq cuts the peer off.
        self._router.setsockopt(zmq.MAXMSGSIZE, 2 * config.max_frame)
        self._router.setsockopt(zmq.LINGER, 0)
        self._monitor = self._router.get_monitor_socket(_CONNECTION_EVENTS)
        self._dealers: dict[int, zmq.Socket[bytes]] = {}
        self._connected: dict[int, str] = {}
        self._backlog: dict[int, deque[Sequence[Frame]]] = {}
        self._warned: set[object] = set()
        self._greeting: dict[int, None] = {}  # accepted, handshake not seen; oldest first
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self._poller = zmq.Poller()
        self._poller.register(self._router, zmq.POLLIN)
        self._poller.register(self._monitor, zmq.POLLIN)
        self._poller.register(self._wake_out.fileno(), zmq.POLLIN)

    def bind(self, address: str) -> str:
        """Listen on `address` (`tcp://host:0` takes a free port) and return the real one.

        Raises:
            AddressError: taken, not ours, or no address.
        """
        try:
            self._router.bind(address)
        except zmq.ZMQError as error:
            raise AddressError(address, f"cannot listen there: {error.strerror}") from None
        self.address = str(self._router.get_string(zmq.LAST_ENDPOINT))
        return self.address

    def connect(self, node: int, address: str) -> None:
        """Make `node` reachable at `address`; a former address of it is forgotten."""
        if self._connected.get(node) == address:
            return
        self.disconnect(node)
        dealer = self._context.socket(zmq.DEALER)
        dealer.setsockopt(zmq.SNDHWM, self._config.backlog)
        dealer.setsockopt(zmq.RECONNECT_IVL, 20)
        dealer.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        dealer.setsockopt(zmq.LINGER, int(1000 * self._config.linger))
        try:
            dealer.connect(address)
        except zmq.ZMQError as error:
            dealer.close(0)
            raise AddressError(address, f"cannot connect to it: {error.strerror}") from None
        self._dealers[node] = dealer
        self._connected[node] = address

    def disconnect(self, node: int) -> None:
        """Forget a peer; what is on its way to it still gets `linger` seconds."""
        self._backlog.pop(node, None)
        self._connected.pop(node, None)
        dealer = self._dealers.pop(node, None)
        if dealer is not None:
            if dealer in self._poller:
                self._poller.unregister(dealer)
            dealer.close()

    def send(self, node: int, frames: Sequence[Frame]) -> None:
        """Send, or keep in the backlog what the peer does not take now.

        Raises:
            UnreachablePeerError: never connected, or its backlog is full.
        """
        waiting = self._backlog.get(node)
        if waiting is None and self._send_now(node, frames):
            return
        if waiting is None:
            waiting = self._backlog[node] = deque()
            self._poller.register(self._dealers[node], zmq.POLLOUT)
        if len(waiting) >= self._config.backlog:
            self.counts["backlog_full"] += 1
            raise UnreachablePeerError(
                node, f"{len(waiting)} messages wait for it ([van] backlog); is it running?"
            )
        waiting.append(frames)

    def _send_now(self, node: int, frames: Sequence[Frame]) -> bool:
        dealer = self._dealers.get(node)
        if dealer is None:
            raise UnreachablePeerError(node, "no address of it is known here")
        last = len(frames) - 1
        for position, frame in enumerate(frames):
            flags = zmq.DONTWAIT | (zmq.SNDMORE if position < last else 0)
            view = memoryview(frame)  # type: ignore[arg-type]  # an ndarray is a buffer
            copy = view.nbytes < self._config.zero_copy_from
            try:
                dealer.send(view if view.nbytes else b"", flags, copy=copy)
            except zmq.Again:
                if position == 0:
                    return False
                raise  # libzmq takes a message whole once it took its first frame
        self.counts["sent"] += 1
        return True

    def flush(self) -> None:
        """Try once more to send what waits."""
        for node in list(self._backlog):
            waiting = self._backlog[node]
            while waiting and self._send_now(node, waiting[0]):
                waiting.popleft()
            if not waiting:
                del self._backlog[node]
                self._poller.unregister(self._dealers[node])

    @property
    def pending(self) -> int:
        """Messages in all backlogs."""
        return sum(map(len, self._backlog.values()))

    def poll(self, timeout: float | None) -> bool:
        """Wait at most `timeout` seconds for something; True when messages may be there."""
        ready = dict(self._poller.poll(None if timeout is None else math.ceil(1000 * timeout)))
        if self._wake_out.fileno() in ready:
            self._drain_wakes()
        if self._monitor in ready:
            self._note_handshakes()
        if self._backlog:
            self.flush()
        return self._router in ready

    def _drain_wakes(self) -> None:
        try:
            while len(self._wake_out.recv(4096)) == 4096:
                pass
        except BlockingIOError:
            pass

    def _note_handshakes(self) -> None:
        """Count connections that end without a handshake: libzmq hangs up on what is not ZMTP.

        The event of a handshake does not say of which connection; taking the oldest keeps the
        count right in the end.
        """
        while self._monitor.poll(0):
            event = parse_monitor_message(self._monitor.recv_multipart())
            kind, connection = event["event"], event["value"]
            if kind == zmq.EVENT_ACCEPTED:
                self._greeting[connection] = None
            elif kind == zmq.EVENT_HANDSHAKE_SUCCEEDED and self._greeting:
                del self._greeting[next(iter(self._greeting))]
            elif kind == zmq.EVENT_DISCONNECTED and connection in self._greeting:
                del self._greeting[connection]
                self._drop("foreign", "foreign", "it ended without a ZeroMQ handshake")

    def wake(self) -> None:
        """Make a `poll` under way return; any thread may call this."""
        # Full: a wake is under way. Closed: nobody polls.
        with contextlib.suppress(BlockingIOError, OSError):
            self._wake_in.send(b"\0")

    def receive(self, limit: int) -> Iterator[Message]:
        """Up to `limit` messages that are there now; what is not one of ours is dropped."""
        for _ in range(limit):
            try:
                routing_id = self._router.recv(zmq.DONTWAIT)
            except zmq.Again:
                return
            message = self._receive_one(routing_id)
            if message is not None:
                self.counts["received"] += 1
                yield message

    def _receive_one(self, routing_id: bytes) -> Message | None:
        try:
            if not self._router.getsockopt(zmq.RCVMORE):
                raise CodecError("a message without a header")
            header = self._router.recv(zmq.DONTWAIT)
            meta, descriptors = decode_header(header, self._config)
            arrays = [self._receive_array(descriptor) for descriptor in descriptors]
            if self._router.getsockopt(zmq.RCVMORE):
                raise CodecError("more frames than the header says")
            return Message(meta, arrays)
        except ProtocolVersionError as error:
            self._drop("other_version", routing_id, str(error))
            if len(self.refused) < _REMEMBERED_PEERS:
                self.refused.append(error)
        except CodecError as error:
            self._drop("malformed", routing_id, str(error))
        finally:
            while self._router.getsockopt(zmq.RCVMORE):
                self._router.recv(zmq.DONTWAIT, copy=False)
        return None

    def _receive_array(self, descriptor: Descriptor) -> Any:
        if not self._router.getsockopt(zmq.RCVMORE):
            raise CodecError("fewer frames than the header says")
        if descriptor[2] < self._config.zero_copy_from:
            return decode_array(self._router.recv(zmq.DONTWAIT), descriptor)
        return decode_array(self._router.recv(zmq.DONTWAIT, copy=False).buffer, descriptor)

    def _drop(self, why: str, peer: object, text: str) -> None:
        """Count what is not ours, and log it once per connection."""
        self.counts[why] += 1
        if peer not in self._warned and len(self._warned) < _REMEMBERED_PEERS:
            self._warned.add(peer)
            name = peer.hex() if isinstance(peer, bytes) else peer
            # A node that goes while another connects looks foreign too: no reason to warn.
            level = logging.INFO if why == "foreign" else logging.WARNING
            log.log(level, "dropped a message from connection %s: %s", name, text)

    def close(self, linger: float | None = None) -> None:
        """Close all sockets; what was sent still gets `linger` seconds to leave the process."""
        for dealer in self._dealers.values():
            dealer.close() if linger is None else dealer.close(int(1000 * linger))
        self._dealers.clear()
        self._router.disable_monitor()
        self._monitor.close(0)
        self._router.close(0)
        self._wake_in.close()
        self._wake_out.close()
