"""All ways from and to one node: ZeroMQ, and the local lane to nodes of this host.

Which way a peer is reached by is chosen when it is connected, and all its messages go there, so
that they keep their order; when a connection of the lane ends it is chosen anew.

Owned by one thread at a time (`van.courier` sees to that), except `parcel`, `has_room`, `empty`
and `wake`, which any thread may call.
"""

from __future__ import annotations

import itertools
import logging
import time
from collections import Counter
from typing import Any

import numpy as np
import zmq
from numpy.typing import DTypeLike, NDArray

from van.addresses import key_of, place_of, with_host, with_key, with_port_of
from van.chunks import cut
from van.codec import encode, join
from van.config import VanConfig
from van.cores import has_several_cores, times_taken
from van.curve import Curve
from van.drops import Drops
from van.errors import AddressError, ConfigError, UnreachablePeerError, VanError
from van.lane_connection import LaneConnection
from van.local_lane import LocalLane, PeerUser, name_of, user_of_peer
from van.message import Message
from van.outgoing import Outgoing, Parcel
from van.poller import Poller
from van.spinning import Spinning
from van.zap import Gate, ZapSocket
from van.zmq_sockets import ZmqPeer, ZmqSockets

log = logging.getLogger(__name__)

_RETURN_AFTER = 0.01  # seconds that memory of others waits for a message that takes it back
_STAYS = 5e-3  # seconds that one who looks may then sleep without being moved to another core
_JOIN_BELOW = 16 << 10  # bytes of a message that one frame of ZeroMQ's holds
_WHOLE = 4  # times `[van] chunk`: what a message may have to go in one piece
_LANE_ATTEMPTS = 3  # connections of the lane to one address before ZeroMQ is used


class Endpoints:
    """Sends parcels to connected peers and receives messages from anybody.

    Args:
        context: of ZeroMQ, shared by the nodes of a process; not closed here.
        config: limits, and which ways may be used.
        peer_user: tells the user behind a Unix socket.
        curve: keys of this node; None: no encryption.
        listen_on: host to listen on where that is not the one in the address.

    Raises:
        ConfigError: `[van] transport` asks for the lane, which CURVE rules out.

    Attributes:
        address: where this node is reached, once bound.
        counts: messages `received` and `sent`, and how many were dropped and why.
    """

    def __init__(
        self,
        context: zmq.Context[Any],
        config: VanConfig,
        peer_user: PeerUser = user_of_peer,
        curve: Curve | None = None,
        listen_on: str = "",
    ) -> None:
        self.address = ""
        self.counts: Counter[str] = Counter()
        self._config, self._curve, self._listen_on = config, curve, listen_on
        self._way = way_under(curve, config.transport)
        self._drops = Drops(self.counts)
        self._poller = Poller()
        gate = None if curve is None else Gate(curve.allowed, self.counts)
        self._zap = None if gate is None else ZapSocket(context, self._poller, gate)
        self._zmq = ZmqSockets(context, config, self._poller, self._drops, curve, gate)
        self._lane = LocalLane(config, self._poller, self._drops, self._note_end, peer_user)
        self._peers: dict[int, ZmqPeer | LaneConnection] = {}
        self._addresses: dict[int, str] = {}
        self._blocked: dict[int, ZmqPeer] = {}  # ZeroMQ takes no more of these now
        self._lane_ends: Counter[str] = Counter()
        self._serials = itertools.count(1)
        # With one core the peer cannot answer while we look.
        spin = config.spin if has_several_cores() else 0.0
        self._spinning = Spinning(spin, times_taken)
        self.wake = self._poller.wake

    # -- who is reached how ---------------------------------------------------------------

    def bind(self, address: str) -> str:
        """Be reachable at `address`, and for nodes of this host in the ways that are allowed.

        Raises:
            AddressError: taken, not ours, or no address; or a way that was asked for is not there.
        """
        actual = self._listen(address)
        way = self._way
        if way == "ipc" and (name := _ipc_address(actual)):
            self._zmq.bind(name)
        if way != "tcp" and actual.startswith("tcp://"):
            is_there = self._lane.listen(actual)
            if not is_there and way != "auto":
                raise AddressError(actual, f"[van] transport = {way} is not to be had here")
        self.address = with_key(actual, "" if self._curve is None else self._curve.pair.public)
        return self.address

    def _listen(self, address: str) -> str:
        if not self._listen_on or not address.startswith("tcp://"):
            return self._zmq.bind(address)
        return with_port_of(address, self._zmq.bind(with_host(address, self._listen_on)))

    def connect(self, node: int, address: str) -> None:
        """Make `node` reachable at `address`; a former address of it is forgotten.

        Raises:
            AddressError: no address, of another kind than our own, or not to be reached in the way
                that was asked for.
        """
        if self._addresses.get(node) == address:
            return
        self._check_kind(address)
        self.disconnect(node)
        self._peers[node] = self._way_to(address)
        self._addresses[node] = address
        log.info("node %d at %s: %r", node, place_of(address), self._peers[node])

    def _check_kind(self, address: str) -> None:
        """Refuse an address of another kind than our own: it may be of a stranger's making.

        A socket that connects within a process to a name that nobody has cannot even be closed;
        libzmq waits for somebody to bind it, and ends the process when there are too many.
        """
        kind, own = address.partition("://")[0], self.address.partition("://")[0]
        if own and kind != own:
            raise AddressError(place_of(address), f"a node at {own}:// reaches others by {own}://")

    def _way_to(self, keyed: str) -> ZmqPeer | LaneConnection:
        way, address = self._way, place_of(keyed)
        if way == "tcp" or not address.startswith("tcp://"):
            return self._zmq.connect(keyed)
        if way == "ipc":
            if not self._lane.is_there(address):
                raise AddressError(address, _unreachable(way))
            return self._zmq.connect(with_key(_ipc_address(address) or address, key_of(keyed)))
        if self._lane_ends[keyed] < _LANE_ATTEMPTS or way == "local":
            connection = self._lane.connect(address)
            if connection is not None:
                return connection
        if way == "local":
            raise AddressError(address, _unreachable(way))
        return self._zmq.connect(keyed)

    def disconnect(self, node: int) -> None:
        """Forget a peer; what was given to ZeroMQ for it still gets `linger` seconds."""
        self._addresses.pop(node, None)
        self._blocked.pop(node, None)
        peer = self._peers.pop(node, None)
        if isinstance(peer, ZmqPeer):
            self._unwatch(peer)
            peer.close(None)
        # A connection of the lane stays: the other side may speak on it. It ends with its process.

    def _note_end(self, connection: LaneConnection) -> None:
        """What still waits for a peer whose connection has ended goes another way."""
        for node in [n for n, peer in self._peers.items() if peer is connection]:
            self._lane_ends[self._addresses[node]] += 1
            del self._peers[node]
            for parcel in [p for p in connection.waiting if p.node == node]:
                try:
                    self.post(parcel)
                except (UnreachablePeerError, AddressError):
                    self.counts["undeliverable"] += 1

    # -- sending --------------------------------------------------------------------------

    def parcel(self, message: Message) -> Parcel:
        """`message` ready to be sent: what must be copied is copied. Any thread.

        Raises:
            CodecError: it has what cannot travel.
        """
        meta = message.meta
        frames = encode(message, self._config)
        nbytes = len(frames[0])
        for frame in frames[1:]:
            nbytes += frame.nbytes  # type: ignore[union-attr]  # all but the first are arrays
        parcel = Parcel(meta.recipient, meta.priority, nbytes, frames)
        way = parcel.way = self._peers.get(meta.recipient)
        if isinstance(way, LaneConnection):
            parcel.places = way.pack(frames, nbytes)
        elif way is None or len(frames) == 1:
            pass
        elif nbytes < _JOIN_BELOW:
            parcel.frames = [join(frames)]
        elif nbytes - len(frames[0]) > _WHOLE * self._config.chunk and not way.is_in_process:
            pieces = iter(cut(meta, frames, next(self._serials), self._config))
            parcel.frames, parcel.rest = next(pieces), pieces
        return parcel

    def post(self, parcel: Parcel) -> None:
        """Send, or let wait what the peer does not take now.

        Raises:
            UnreachablePeerError: never connected, or made for a former address.
            AddressError: its connection has ended and it is not to be reached any more.
        """
        peer = self._peers.get(parcel.node)
        if peer is None or parcel.way is not peer:
            peer = self._way_of(parcel)
        self.counts["sent"] += 1  # or soon, unless it counts as undeliverable
        self.counts["sent_bytes"] += parcel.nbytes
        if isinstance(peer, LaneConnection):
            self._lane.post(peer, parcel)
        elif not peer.post(parcel):
            self._note_blocked(parcel.node, peer)

    def _way_of(self, parcel: Parcel) -> ZmqPeer | LaneConnection:
        """The way a parcel goes that was made for another: that one has ended, or is new."""
        peer = self._peers.get(parcel.node)
        if peer is None:
            address = self._addresses.get(parcel.node)
            if address is None:
                raise UnreachablePeerError(parcel.node, "no address of it is known here")
            peer = self._peers[parcel.node] = self._way_to(address)
        if isinstance(parcel.way, LaneConnection):
            parcel.way.give_back(parcel.places)
            parcel.places = ()
        if isinstance(peer, LaneConnection):
            if parcel.way is not None and not isinstance(parcel.way, LaneConnection):
                raise UnreachablePeerError(parcel.node, "it has got another address meanwhile")
            parcel.places = peer.pack(parcel.frames, parcel.nbytes)
        parcel.way = peer
        return peer

    def _note_blocked(self, node: int, peer: ZmqPeer) -> None:
        if node not in self._blocked:
            self._blocked[node] = peer
            # Its descriptor makes `poll` return, which then tries all that are blocked.
            self._poller.register(peer.fd, peer.take_signal)

    def _pump(self, node: int, peer: ZmqPeer) -> None:
        if peer.pump():
            del self._blocked[node]
            self._unwatch(peer)

    def _unwatch(self, peer: ZmqPeer) -> None:
        self._poller.unregister(peer.fd)

    def waiting_for(self, node: int) -> Outgoing | None:
        """What waits for a peer. Any thread may look at its sizes."""
        peer = self._peers.get(node)
        return None if peer is None else peer.waiting

    @property
    def pending(self) -> int:
        """Messages that wait for any peer."""
        return sum(peer.pending for peer in self._peers.values())

    def empty(self, node: int, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """See `van.van.Van.empty`. Any thread."""
        peer = self._peers.get(node)
        if isinstance(peer, LaneConnection):
            made = peer.empty(shape, np.dtype(dtype))
            if made is not None:
                return made
        return np.empty(shape, dtype)

    def shares_memory(self, node: int) -> bool:
        """Whether `node` is reached by the local lane. Any thread."""
        return isinstance(self._peers.get(node), LaneConnection)

    # -- receiving ------------------------------------------------------------------------

    @property
    def refused(self) -> list[VanError]:
        """Peers of other protocol versions or keys; whoever tells them takes them out."""
        return self._drops.refused

    def poll(self, timeout: float, may_spin: bool = False) -> None:
        """Wait at most `timeout` seconds for something to do.

        Args:
            timeout: seconds.
            may_spin: whether it may look for a message before it sleeps.
        """
        lane = self._lane
        if lane.returning and timeout > _RETURN_AFTER:
            timeout = _RETURN_AFTER
        if timeout and may_spin and (self._peers or lane.has_peers):
            self._look_and_wait(timeout)
        else:
            self._poller.wait(timeout)
        if self._blocked:
            for node, peer in list(self._blocked.items()):
                self._pump(node, peer)
        if lane.returning:
            lane.send_returns(is_idle=not (lane.ready or self._zmq.may_receive))

    def _look_and_wait(self, timeout: float) -> None:
        spinning, began = self._spinning, time.monotonic()
        looking = spinning.window(began)
        is_early = self._poller.wait(timeout, looking, _STAYS if looking else 0.0)
        if looking:
            has_helped = bool(is_early and (self._lane.ready or self._zmq.may_receive))
            spinning.note_looked(began, time.monotonic(), has_helped)
        else:
            spinning.note_slept(time.monotonic())
        if is_early is None:
            spinning.note_idle()

    @property
    def has_more(self) -> bool:
        """Whether another message is known to be there."""
        return bool(self._lane.ready) or self._zmq.has_more

    def next_message(self) -> Message | None:
        """A message that is there now, or None."""
        message = self._lane.next_message() if self._lane.ready else None
        if message is None and self._zmq.may_receive:
            message = self._zmq.next_message()
        if message is not None:
            self.counts["received"] += 1
        return message

    def close(self, linger: float | None = None) -> None:
        """Close everything; what was given to ZeroMQ still gets `linger` seconds."""
        self._lane.close()
        for peer in self._peers.values():
            if isinstance(peer, ZmqPeer):
                peer.close(linger)
        self._peers.clear()
        self._zmq.close()
        if self._zap is not None:
            self._zap.close()
        self._poller.close()


def way_under(curve: Curve | None, transport: str) -> str:
    """The way that messages go: the lane checks users and no keys, so CURVE leaves it out.

    >>> way_under(None, "auto")
    'auto'

    Raises:
        ConfigError: only the lane will do, but it is not trusted.
    """
    if curve is None or curve.trusts_lane or transport == "tcp":
        return transport
    if transport != "auto":
        problem = (
            f"{transport} checks users and no keys; under [security] curve use auto or tcp, or "
            f"[security] lane = trusted"
        )
        raise ConfigError(problem, section="van", key="transport")
    return "tcp"


def _ipc_address(address: str) -> str | None:
    """Where ZeroMQ's ipc finds the node of a tcp address: a name without a file."""
    name = name_of(address)
    return None if name is None else f"ipc://@{name[1:]}-ipc"


def _unreachable(way: str) -> str:
    return (
        f"no node of this user and this host is there, which [van] transport = {way} asks for; "
        f"is it running? auto or tcp reach other hosts"
    )
