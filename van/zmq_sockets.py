"""The ZeroMQ sockets of one node: a ROUTER that only receives, a DEALER for each peer.

Owned by one thread at a time (`van.courier` sees to that).

Source: ps-lite, src/zmq_van.h, which also binds one ROUTER and connects a DEALER per peer. Here
routing ids are ZeroMQ's own, sends never block, and what a peer does not take waits with us, where
its order can still be changed: ZeroMQ gets few large frames of a peer at a time.
"""

from __future__ import annotations

import errno
import logging
from collections import deque
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import zmq
from numpy.typing import NDArray

from van.addresses import place_of
from van.chunks import Reassembler
from van.codec import (
    Descriptor,
    Frame,
    decode_array,
    decode_joined,
    is_joined,
)
from van.config import VanConfig
from van.curve import Curve
from van.drops import Drops
from van.errors import AddressError, CodecError
from van.headers import HeaderReader
from van.message import Message
from van.monitor import Dialling, Doorway
from van.outgoing import Outgoing, Parcel
from van.poller import Poller
from van.zap import Gate

# Attributes of zmq cost a look-up of an enumeration's member at each use.
_FD, _EVENTS, _MORE, _POLLIN = int(zmq.FD), int(zmq.EVENTS), int(zmq.RCVMORE), int(zmq.POLLIN)
_DONTWAIT, _SNDMORE = int(zmq.DONTWAIT), int(zmq.SNDMORE)


_LEAST_MAXIMUM = 16 << 20  # bytes of a frame that ZeroMQ may take memory for

_REMEDIES = {  # of what hinders listening
    errno.EADDRINUSE: "; does another job run there? Choose another port, or 0, any free one",
    errno.EADDRNOTAVAIL: "; it is no address of this machine",
    errno.EACCES: "; ports below 1024 are not for every user, choose a higher one",
}

LENT_PIECES = 4  # of `[van] chunk` bytes; beyond it frames wait with us


def _reason(error: zmq.ZMQError) -> str:
    """The reason alone: pyzmq's own text also repeats the address."""
    return zmq.strerror(error.errno or 0)


class _Lent(np.ndarray[Any, np.dtype[Any]]):
    """A frame that ZeroMQ sends from where it lies; says so when ZeroMQ is done with it."""

    on_end: Callable[[int], None] | None = None

    def __del__(self) -> None:
        if self.on_end is not None:
            self.on_end(self.nbytes)


class ZmqPeer:
    """The way to one peer by ZeroMQ, and what waits for it.

    Args:
        dealer: connected to the peer.
        config: limits.
        wake: called, by any thread, when a peer that could take no more can again.
        is_in_process: whether the peer gets the sender's memory itself, for as long as it likes.
    """

    def __init__(
        self,
        dealer: zmq.Socket[bytes],
        config: VanConfig,
        wake: Callable[[], None],
        is_in_process: bool,
    ) -> None:
        self.waiting = Outgoing()
        self.dialling: Dialling | None = None
        self.is_in_process = is_in_process
        self._dealer, self._wake = dealer, wake
        self._zero_copy_from = config.zero_copy_from
        # Some pieces ahead keep the connection busy: giving one more takes a turn of our thread.
        self._most_lent = LENT_PIECES * config.chunk
        self._is_torn = False  # as in `lane_sender`: a message may have been begun and not ended
        self._lent = 0  # bytes that ZeroMQ has not sent yet, less those in `_returned`
        self._returned: deque[int] = deque()  # filled by ZeroMQ's thread

    @property
    def fd(self) -> int:
        """Readable when the peer may take more."""
        return int(self._dealer.getsockopt(_FD))

    def take_signal(self, events: int) -> None:
        """Let the socket take note of what its descriptor signals, which ends the signal."""
        self._dealer.getsockopt(_EVENTS)

    @property
    def pending(self) -> int:
        """Messages that ZeroMQ has not taken whole."""
        return len(self.waiting)

    def post(self, parcel: Parcel) -> bool:
        """Send `parcel`, or let it wait; True when nothing waits any more."""
        if self.waiting:  # trying costs an exception; `pump` is called when it may succeed
            self.waiting.add(parcel)
            return False
        if parcel.rest is None and self._send(parcel.frames):
            return True
        self.waiting.add(parcel)
        return self.pump()

    def pump(self) -> bool:
        """Send what the peer takes now; True when nothing waits any more."""
        while self.waiting:
            parcel = self.waiting.first()
            if not self._send(parcel.frames):
                return False
            following = None if parcel.rest is None else next(parcel.rest, None)
            if following is None:
                self.waiting.drop_first()
            else:
                parcel.frames = following
        return True

    def _send(self, frames: list[Frame]) -> bool:
        if self._lent:
            while self._returned:
                self._lent -= self._returned.popleft()
            if self._lent > self._most_lent and not self.is_in_process:
                return False
        flags, last = _DONTWAIT | _SNDMORE, len(frames) - 1
        send = self._dealer.send
        if self._is_torn and not self._end_torn():
            return False
        self._is_torn = True
        for position, frame in enumerate(frames):
            if position == last:
                flags = _DONTWAIT
            if isinstance(frame, np.ndarray):
                nbytes, view = frame.nbytes, frame.data
            else:
                nbytes, view = len(frame), frame  # type: ignore[assignment]
            try:
                if nbytes < self._zero_copy_from:
                    send(view if nbytes else b"", flags)
                else:
                    send(self._lend(frame, nbytes), flags, copy=False)
            except zmq.Again:
                if position == 0:
                    self._is_torn = False
                    return False
                raise  # libzmq takes a message whole once it took its first frame
        self._is_torn = False
        return True

    def _end_torn(self) -> bool:
        """End a message that an exception out of a signal handler came into; False: not now.

        What the peer then gets is no message, or none with as many frames as its header says.
        """
        try:
            self._dealer.send(b"", _DONTWAIT)
        except zmq.Again:
            return False
        self._is_torn = False
        return True

    def _lend(self, frame: Frame, nbytes: int) -> memoryview:
        array = frame if isinstance(frame, np.ndarray) else np.frombuffer(frame, np.uint8)
        lent = array.view(_Lent)
        lent.on_end = self._take_back
        self._lent += nbytes
        return lent.data

    def _take_back(self, nbytes: int) -> None:
        self._returned.append(nbytes)
        if self.waiting:
            self._wake()

    def close(self, linger: float | None) -> None:
        """Close; what was given to ZeroMQ still has `linger` seconds, or `[van] linger`."""
        if self.dialling is not None:
            self.dialling.close()
        self._dealer.close() if linger is None else self._dealer.close(int(1000 * linger))

    def __repr__(self) -> str:
        where = self._dealer.get_string(zmq.LAST_ENDPOINT)
        return f"<ZmqPeer {where} waiting={len(self.waiting)}>"


class ZmqSockets:
    """Receives messages from anybody and makes connections to peers.

    Args:
        context: shared by the nodes of a process, so that `inproc://` works; not closed here.
        config: limits.
        poller: is told the descriptors to look at.
        drops: counts what is dropped.
        curve: keys of this node; None: no encryption, and no peer is known.
        gate: with `curve`, knows the peers that were let in.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        config: VanConfig,
        poller: Poller,
        drops: Drops,
        curve: Curve | None = None,
        gate: Gate | None = None,
    ) -> None:
        self._drops = drops
        self._curve, self._gate = curve, gate
        self._config = config
        self._context = context
        self._poller = poller
        self._router = context.socket(zmq.ROUTER)
        self._router.setsockopt(zmq.RCVHWM, config.backlog)
        self._router.setsockopt(zmq.MAXMSGSIZE, largest_frame(config))
        self._router.setsockopt(zmq.HANDSHAKE_IVL, int(1000 * config.handshake_timeout))
        self._router.setsockopt(zmq.LINGER, 0)
        self._router_fd = self._router.getsockopt(_FD)
        # Only a frame that is not copied tells whose it is.
        self._receive_id = (
            self._router.recv if curve is None else partial(self._router.recv, copy=False)
        )
        if curve is not None:
            curve.serve(self._router)
        # Without CURVE, nodes come and go that look foreign: no reason to warn.
        level = logging.INFO if curve is None else logging.WARNING
        self._doorway = Doorway(self._router, poller, drops, config.half_open, level)
        self._reassembler = Reassembler(config)
        self._read_header = HeaderReader(config).read
        self._owns_frames = True  # those that come from other processes are nobody else's
        # ZeroMQ signals only that something has changed: after a signal its sockets are asked
        # until they have nothing more, and then the next signal is waited for.
        self.may_receive, self._is_signalled = True, False
        self._is_torn = False  # a message may have been begun and not read to its end
        poller.register(self._router_fd, self._note_change)

    @property
    def has_more(self) -> bool:
        """Whether a message, or a part of one, is there; asks ZeroMQ."""
        return self.may_receive and bool(self._router.getsockopt(_EVENTS) & _POLLIN)

    def _note_change(self, events: int) -> None:
        self.may_receive = self._is_signalled = True

    def bind(self, address: str) -> str:
        """Listen on `address` (`tcp://host:0` takes a free port) and return the real one.

        Raises:
            AddressError: taken, not ours, or no address.
        """
        if address.startswith("inproc://"):
            self._owns_frames = False
        try:
            self._router.bind(address)
        except zmq.ZMQError as error:
            reason = f"cannot listen there: {_reason(error)}{_REMEDIES.get(error.errno or 0, '')}"
            raise AddressError(address, reason) from None
        actual = str(self._router.get_string(zmq.LAST_ENDPOINT))
        port = actual.rpartition(":")[2]
        if actual.startswith("tcp://") and port.isdigit():
            self._doorway.port = int(port)
        return actual

    def connect(self, address: str) -> ZmqPeer:
        """A way to the node at `address`, whether it listens already or not.

        A handshake that fails is reported to `drops`.

        Raises:
            AddressError: no address, or no descriptor left for a socket.
        """
        try:
            dealer = self._context.socket(zmq.DEALER)
        except zmq.ZMQError as error:
            raise AddressError(address, f"cannot make a socket for it: {error.strerror}") from None
        dealer.setsockopt(zmq.SNDHWM, self._config.backlog)
        dealer.setsockopt(zmq.RECONNECT_IVL, 20)
        dealer.setsockopt(zmq.RECONNECT_IVL_MAX, 1000)
        dealer.setsockopt(zmq.LINGER, int(1000 * self._config.linger))
        place, dialling = place_of(address), None
        is_in_process = place.startswith("inproc://")
        try:
            if self._curve is not None:
                self._curve.dial(dealer, address)
            if not is_in_process:
                dialling = Dialling(
                    dealer, address, self._curve, self._poller, self._drops.add_handshake
                )
            dealer.connect(place)
        except zmq.ZMQError as error:
            if dialling is not None:
                dialling.close()
            dealer.close(0)
            raise AddressError(place, f"cannot connect to it: {_reason(error)}") from None
        peer = ZmqPeer(dealer, self._config, self._poller.wake, is_in_process)
        peer.dialling = dialling
        return peer

    def next_message(self) -> Message | None:
        """A message that is there now, or None; what is not one of ours is dropped."""
        if self._is_torn:
            self._skip_rest()
            self._is_torn = False
        while self.may_receive:
            self._is_torn = True
            # Asking costs a fifth of an attempt that fails; but just after a signal it succeeds.
            if self._is_signalled:
                self._is_signalled = False
                try:
                    routing_id = self._receive_id(_DONTWAIT)
                except zmq.Again:
                    continue
            elif self._router.getsockopt(_EVENTS) & _POLLIN:
                routing_id = self._receive_id(_DONTWAIT)
            else:
                self.may_receive = False
                break
            receive = self._receive_one if self._gate is None else self._receive_known
            message = receive(routing_id)
            if message is not None:
                self._is_torn = False
                return message
        self._is_torn = False
        return None

    def _receive_known(self, routing_id: zmq.Frame) -> Message | None:
        """A message with the key that its connection has proved; others are dropped."""
        assert self._gate is not None
        try:
            peer = self._gate.peer(str(routing_id.get("User-Id")))
        except zmq.ZMQError:  # a connection within this process, which has no handshake
            peer = None
        if peer is None:
            self._drops.add("refused", "no key", "it came without a key")
            self._skip_rest()
            return None
        # A peer may call its connection as it likes, also like another's.
        message = self._receive_one(peer.key.encode() + routing_id.bytes)
        if message is not None:
            message.peer = peer
        return message

    def _receive_one(self, routing_id: bytes) -> Message | None:
        router = self._router
        more = True  # a ROUTER puts the routing id before a message, which has a frame at least
        try:
            header = router.recv(_DONTWAIT)
            more = router.getsockopt(_MORE)
            if not more and is_joined(header):
                return decode_joined(header, self._read_header)
            meta, descriptors = self._read_header(header)
            arrays = []
            for descriptor in descriptors:
                if not more:
                    raise CodecError("fewer frames than the header says")
                arrays.append(self._receive_array(descriptor))
                more = router.getsockopt(_MORE)
            if more:
                raise CodecError("more frames than the header says")
            is_ours = self._owns_frames and all(
                descriptor[2] >= self._config.zero_copy_from for descriptor in descriptors
            )
            message = Message(meta, arrays, is_ours)
            return message if meta.chunk[1] == 1 else self._reassembler.add(routing_id, message)
        except CodecError as error:
            self._drops.add_error(routing_id, error)
        self._skip_rest()
        return None

    def _skip_rest(self) -> None:
        while self._router.getsockopt(_MORE):
            self._router.recv(_DONTWAIT, copy=False)

    def _receive_array(self, descriptor: Descriptor) -> NDArray[Any]:
        if descriptor[2] < self._config.zero_copy_from:
            return decode_array(self._router.recv(_DONTWAIT), descriptor)
        return decode_array(self._router.recv(_DONTWAIT, copy=False).buffer, descriptor)

    def close(self) -> None:
        """Close what receives."""
        self._poller.unregister(self._router_fd)
        self._doorway.close()
        self._router.close(0)


def largest_frame(config: VanConfig) -> int:
    """The bytes of a frame beyond which libzmq cuts a peer off before it takes memory for it.

    Larger messages come in pieces of the sender's `[van] chunk`, which should be ours. Some more
    is let through, so that it is dropped and counted by name.
    """
    pieces = max(_LEAST_MAXIMUM, 8 * config.chunk, 2 * config.max_header)
    return min(2 * config.max_frame, pieces)
