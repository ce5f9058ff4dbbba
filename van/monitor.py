"""Handshakes of ZeroMQ connections, as its socket monitors tell of them.

`Doorway` follows those that come in: it counts what ends without a handshake and turns away who
comes while too many have not finished theirs. `Dialling` follows the first handshake of one that
goes out: where it fails, the node learns why, instead of waiting for ever.
"""

from __future__ import annotations

import contextlib
import logging
import os
import socket
from collections.abc import Callable
from typing import Any

import zmq
from zmq.utils.monitor import parse_monitor_message

from van.curve import Curve, failure
from van.drops import Drops
from van.errors import HandshakeError
from van.poller import Poller

log = logging.getLogger(__name__)

_ACCEPTED, _CLOSED = int(zmq.EVENT_ACCEPTED), int(zmq.EVENT_DISCONNECTED)
_DONE = int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
_AUTH = int(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
_PROTOCOL = int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
_NO_DETAIL = int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
_FAILED = _AUTH | _PROTOCOL | _NO_DETAIL
_EVENTS, _POLLIN = int(zmq.EVENTS), int(zmq.POLLIN)
_HUNG_UP = 3  # handshakes in a row that a peer ended without a word


class Doorway:
    """Connections that come in, from accepted to hands shaken.

    Args:
        router: receives them.
        poller: is told the descriptor to look at.
        drops: counts `foreign` (no ZeroMQ), `refused` (its handshake failed) and `half_open` (too
            many at once), and logs.
        most: connections that may be in their handshakes at the same time.
        level: at which one that ends without a handshake is logged, once.
        cut: ends the connection with a descriptor.
    """

    def __init__(
        self,
        router: zmq.Socket[Any],
        poller: Poller,
        drops: Drops,
        most: int,
        level: int = logging.INFO,
        cut: Callable[[int, int], None] | None = None,
    ) -> None:
        self.port = 0  # where the router listens by tcp
        self._router, self._poller, self._drops = router, poller, drops
        self._most, self._level, self._cut = most, level, cut or cut_off
        self._is_told = False  # the connection that ends next is counted already
        self._greeting: dict[int, None] = {}  # accepted, handshake not seen; oldest first
        self._monitor = router.get_monitor_socket(_ACCEPTED | _CLOSED | _DONE | _FAILED)
        self._fd = int(self._monitor.getsockopt(zmq.FD))
        poller.register(self._fd, self._read)
        self._read(0)  # signals begin when a socket has once been found empty

    def _read(self, events: int) -> None:
        while int(self._monitor.getsockopt(_EVENTS)) & _POLLIN:
            event = parse_monitor_message(self._monitor.recv_multipart())
            self.note(int(event["event"]), int(event["value"]))

    def note(self, event: int, value: int) -> None:
        """Take note of an event.

        The event of a handshake does not say of which connection; taking the oldest keeps the
        count right in the end.
        """
        if event == _ACCEPTED:
            if len(self._greeting) >= self._most:
                self._turn_away(value)
            else:
                self._greeting[value] = None
        elif event == _DONE and self._greeting:
            del self._greeting[next(iter(self._greeting))]
        elif event == _CLOSED:
            self._note_end(value)
        elif event == _PROTOCOL:
            self._is_told = True
            text = "its handshake failed: it expects another public key than ours, or breaks rules"
            self._drops.add("refused", "handshake", text)
        elif event == _AUTH:  # `van.zap` has counted it
            self._is_told = True

    def _note_end(self, fd: int) -> None:
        is_told, self._is_told = self._is_told, False
        if fd in self._greeting:
            del self._greeting[fd]
            if not is_told:
                text = "it ended without a handshake of ZeroMQ, or has no key where one is needed"
                self._drops.add("foreign", "foreign", text, self._level)

    def _turn_away(self, fd: int) -> None:
        """End a connection that has just come: libzmq itself knows no such limit."""
        text = f"{self._most} others have not finished their handshakes ([van] half_open)"
        self._drops.add("half_open", "half_open", text)
        self._cut(fd, self.port)

    def close(self) -> None:
        """Follow no more."""
        self._poller.unregister(self._fd)
        with contextlib.suppress(zmq.ZMQError):
            self._router.disable_monitor()
        self._monitor.close(0)


def cut_off(fd: int, port: int) -> None:
    """Shut down the connection `fd`, if that still is one that came to our `port`.

    The descriptor is libzmq's, which may have closed it meanwhile; then its number may be that of
    anything. A copy keeps what it is now while we look.
    """
    with contextlib.suppress(OSError):
        copy = os.dup(fd)
        try:
            connection = socket.socket(fileno=copy)
        except OSError:  # no socket
            os.close(copy)
            return
        with connection:
            name = connection.getsockname()
            if isinstance(name, tuple) and name[1] == port:
                connection.shutdown(socket.SHUT_RDWR)


class Dialling:
    """The first handshake of a connection that goes out; after it there is nothing to watch.

    Args:
        dealer: about to connect.
        address: where to.
        curve: this node's side of CURVE; None: it speaks without.
        poller: is told the descriptor to look at.
        report: called with what went wrong, once.
    """

    def __init__(
        self,
        dealer: zmq.Socket[Any],
        address: str,
        curve: Curve | None,
        poller: Poller,
        report: Callable[[HandshakeError], None],
    ) -> None:
        self._dealer, self._address, self._curve = dealer, address, curve
        self._poller, self._report = poller, report
        self._hung_up = 0
        self._is_over = False
        self._monitor = dealer.get_monitor_socket(_DONE | _FAILED)
        self._fd = int(self._monitor.getsockopt(zmq.FD))
        poller.register(self._fd, self._read)
        self._read(0)

    def _read(self, events: int) -> None:
        while not self._is_over and int(self._monitor.getsockopt(_EVENTS)) & _POLLIN:
            event = parse_monitor_message(self._monitor.recv_multipart())
            self.note(int(event["event"]), int(event["value"]))

    def note(self, event: int, value: int) -> None:
        """Take note of an event."""
        if event == _NO_DETAIL:
            # A peer that ends, or starts, looks like that for a moment; one without CURVE is
            # told by its protocol, so that only a wrong key is left.
            self._hung_up += 1
            if self._hung_up < _HUNG_UP or self._curve is None:
                return
        if event != _DONE:
            self._report(failure(self._curve, self._address, event, value))
        self.close()

    def close(self) -> None:
        """Follow no more."""
        if self._is_over:
            return
        self._is_over = True
        self._poller.unregister(self._fd)
        with contextlib.suppress(zmq.ZMQError):
            self._dealer.disable_monitor()
        self._monitor.close(0)
