"""The local lane of a node: connections to nodes of the same user on the same host.

A node that listens on a tcp address listens on a Unix socket too, under the same address in the
abstract namespace. That namespace belongs to the network namespace, as ports do: so who finds the
name there would reach the same node by tcp, nothing needs to be announced, and nothing is left
when a process is killed. Both sides ask the kernel for the other's user.

A connection serves both directions: a node that is asked answers on the connection it was asked on.

Owned by one thread at a time (`van.courier` sees to that).
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
import struct
from collections import deque
from collections.abc import Callable

from van.config import VanConfig
from van.drops import Drops
from van.errors import CodecError
from van.lane_connection import LaneConnection
from van.lane_receiver import ConnectionEndedError
from van.message import Message
from van.outgoing import Parcel
from van.poller import READ, WRITE, Poller

log = logging.getLogger(__name__)

_LONGEST_NAME = 100  # bytes; the kernel's limit is 108
_CONNECTIONS_AT_ONCE = 4096
_MANY_RETURNS = 32
_TORN = "the sending of a packet was interrupted; the connection is made anew"
_CREDENTIALS = struct.Struct("=3i")  # process, user, group

PeerUser = Callable[[socket.socket], int]


def user_of_peer(sock: socket.socket) -> int:
    """The user who made the other end of a connected Unix socket, as the kernel knows it."""
    raw = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _CREDENTIALS.size)
    return int(_CREDENTIALS.unpack(raw)[1])


def name_of(address: str) -> str | None:
    """The name in the abstract namespace that goes with a tcp address; None for any other."""
    if not address.startswith("tcp://") or len(address) > _LONGEST_NAME:
        return None
    return f"\0pslite/{address}"


class LocalLane:
    """Listens for nodes of this host and connects to them.

    Args:
        config: limits.
        poller: is told the descriptors to look at.
        drops: counts what is dropped.
        on_end: called with a connection that has ended.
        peer_user: tells the user behind a socket.

    Attributes:
        ready: connections with something to read.
        returning: connections with memory of others to be given back.
    """

    def __init__(
        self,
        config: VanConfig,
        poller: Poller,
        drops: Drops,
        on_end: Callable[[LaneConnection], None],
        peer_user: PeerUser = user_of_peer,
    ) -> None:
        self._config, self._poller, self._drops = config, poller, drops
        self._on_end, self._peer_user = on_end, peer_user
        self._address = ""
        self._listener: socket.socket | None = None
        self._connections: dict[int, LaneConnection] = {}
        self._writing: set[LaneConnection] = set()  # those the poller watches for room
        self.returning: set[LaneConnection] = set()
        self.ready: deque[LaneConnection] = deque()

    def listen(self, address: str) -> bool:
        """Be found by nodes of this host that know `address`; False when that cannot be."""
        name = name_of(address)
        if name is None:
            return False
        listener = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        try:
            listener.bind(name)
            listener.listen(_CONNECTIONS_AT_ONCE)
        except OSError as error:
            log.warning("no local lane at %s: %s", address, error.strerror)
            listener.close()
            return False
        listener.setblocking(False)
        self._address, self._listener = address, listener
        self._poller.register(listener.fileno(), self._accept)
        return True

    def _accept(self, events: int) -> None:
        assert self._listener is not None
        try:
            sock, _ = self._listener.accept()
        except (BlockingIOError, ConnectionAbortedError):
            return
        except OSError as error:  # no descriptors left: who is turned away takes tcp
            log.warning("the local lane takes no more connections: %s", error.strerror)
            self._stop_listening()
            return
        if self._is_other_user(sock):
            self._drops.add("other_user", "local", "another user's process on the local lane")
            sock.close()
        else:
            self._adopt(sock, "")

    def _is_other_user(self, sock: socket.socket) -> bool:
        try:
            return self._peer_user(sock) != os.geteuid()
        except OSError:
            return True

    def _adopt(self, sock: socket.socket, address: str) -> LaneConnection:
        made = LaneConnection(sock, self._config, address, self.returning)
        self._connections[made.fd] = made
        self._poller.register(made.fd, lambda events: self._note_ready(made, events))
        return made

    def _note_ready(self, connection: LaneConnection, events: int) -> None:
        if events & WRITE:
            self.pump(connection)
        if events & ~WRITE:
            self.ready.append(connection)

    @property
    def has_peers(self) -> bool:
        """Whether anybody is connected."""
        return bool(self._connections)

    def connect(self, address: str) -> LaneConnection | None:
        """A connection to the node at `address`; None when it is not to be had this way."""
        name = name_of(address)
        if name is None:
            return None
        for connection in self._connections.values():  # it has asked: answer there
            if connection.address == address and not connection.is_ended:
                return connection
        sock = self._open(name)
        if sock is None:
            return None
        connection = self._adopt(sock, address)
        connection.greet(self._address)
        self.pump(connection)
        return connection

    def is_there(self, address: str) -> bool:
        """Whether a node of this user and this host listens at `address`."""
        name = name_of(address)
        sock = None if name is None else self._open(name)
        if sock is None:
            return False
        sock.close()
        return True

    def _open(self, name: str) -> socket.socket | None:
        sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
        sock.setblocking(False)
        try:
            sock.connect(name)
        except OSError:
            sock.close()
            return None
        if self._is_other_user(sock):
            log.warning("%s belongs to another user and is not used", name[1:])
            sock.close()
            return None
        return sock

    def post(self, connection: LaneConnection, parcel: Parcel) -> None:
        """Send `parcel`, or let it wait."""
        if connection.is_torn:
            connection.waiting.add(parcel)  # goes another way
            self._end(connection, _TORN, "interrupted")
            return
        try:
            if connection.post(parcel):
                return
            self._watch(connection, True)
        except ConnectionEndedError:
            self._note_broken(connection)

    def pump(self, connection: LaneConnection) -> None:
        """Send what the connection takes now."""
        if connection.is_ended:
            return
        if connection.is_torn:
            self._end(connection, _TORN, "interrupted")
            return
        try:
            self._watch(connection, connection.is_blocked_after_pump())
        except ConnectionEndedError:
            self._note_broken(connection)

    def _note_broken(self, connection: LaneConnection) -> None:
        # What the other side sent before it closed may still be there to read, and after that
        # its end, which `receive` sees.
        self._watch(connection, False)

    def _watch(self, connection: LaneConnection, is_blocked: bool) -> None:
        if is_blocked != (connection in self._writing):
            self._poller.modify(connection.fd, READ | WRITE if is_blocked else READ)
            (self._writing.add if is_blocked else self._writing.discard)(connection)

    def next_message(self) -> Message | None:
        """A message that is there now, or None; what is not one of ours is dropped."""
        while self.ready:
            connection = self.ready.popleft()
            if connection.is_ended:
                continue
            try:
                message = connection.receive()
            except CodecError as error:
                self._drops.add_error(connection.address or "local", error)
            except ConnectionEndedError as end:
                self._end(connection, str(end))
            else:
                if message is not None:
                    return message
        return None

    def _end(self, connection: LaneConnection, why: str, count: str = "malformed") -> None:
        """End a connection. May come a second time, where the first was interrupted anywhere."""
        if why:
            self._drops.add(count, connection.address or "local", why)
        if self._connections.get(connection.fd) is connection:
            self._poller.unregister(connection.fd)
            del self._connections[connection.fd]
        self._writing.discard(connection)
        self.returning.discard(connection)
        connection.close()
        self._on_end(connection)

    def send_returns(self, is_idle: bool) -> None:
        """Give memory back in packets of their own, when much of it waits or nothing else goes."""
        for connection in list(self.returning):
            if connection.is_ended or not connection.returnable:
                self.returning.discard(connection)
            elif is_idle or connection.returnable >= _MANY_RETURNS:
                self.returning.discard(connection)
                connection.send_returns()
                if connection.returnable:
                    self.returning.add(connection)
                self.pump(connection)

    def _stop_listening(self) -> None:
        if self._listener is not None:
            self._poller.unregister(self._listener.fileno())
            self._listener.close()
            self._listener = None

    def close(self) -> None:
        """End all connections."""
        self._stop_listening()
        for connection in self._connections.values():
            with contextlib.suppress(ConnectionEndedError):
                connection.is_blocked_after_pump()
            self._poller.unregister(connection.fd)
            connection.close()
        self._connections.clear()
