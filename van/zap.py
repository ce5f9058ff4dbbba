"""Who may connect: libzmq asks this node for each CURVE handshake (ZeroMQ RFC 27, ZAP).

The question comes with the peer's public key, which the handshake has proved. The answer, where
it is yes, names the key as the connection's user; ZeroMQ then hands it on with every message, and
`Gate.peer` tells which roles it stands for.
"""

from __future__ import annotations

import logging
from collections import Counter
from typing import Any

import zmq
from zmq.utils import z85

from van.addresses import short
from van.errors import AddressError
from van.keys import AllowLists
from van.peer import Peer
from van.poller import Poller

log = logging.getLogger(__name__)

ENDPOINT = "inproc://zeromq.zap.01"
_VERSION = b"1.0"
_KEY_NBYTES = 32
_FRAMES = 7  # version, request, domain, address, routing id, mechanism, key
_REMEMBERED = 1024  # peers that were refused and are not logged again
_EVENTS, _POLLIN = int(zmq.EVENTS), int(zmq.POLLIN)


class Gate:
    """Decides by the allow-lists; no socket.

    Args:
        allowed: the lists.
        counts: gets one more `refused` for each peer turned away.
    """

    def __init__(self, allowed: AllowLists, counts: Counter[str]) -> None:
        self._allowed, self._counts = allowed, counts
        self._peers: dict[str, Peer] = {}
        self._logged: set[tuple[str, str]] = set()

    def answer(self, frames: list[bytes]) -> list[bytes]:
        """The reply to a question of libzmq's."""
        version, request = frames[0], frames[1] if len(frames) > 1 else b""
        if version != _VERSION or len(frames) != _FRAMES:
            return [_VERSION, request, b"500", b"not a question of ZAP 1.0", b"", b""]
        mechanism, key = frames[5], frames[6]
        if mechanism != b"CURVE" or len(key) != _KEY_NBYTES:
            return [_VERSION, request, b"400", b"CURVE only", b"", b""]
        peer = self.admit(z85.encode(key).decode(), frames[3].decode("ascii", "replace"))
        if peer is None:
            return [_VERSION, request, b"400", b"key not allowed", b"", b""]
        return [_VERSION, request, b"200", b"", peer.key.encode(), b""]

    def admit(self, key: str, address: str) -> Peer | None:
        """The peer with `key`, or None if no list has it; that is counted and logged once."""
        roles = self._allowed.roles_of(key)
        if roles:
            peer = self._peers[key] = Peer(key, roles)
            return peer
        self._counts["refused"] += 1
        if (key, address) not in self._logged and len(self._logged) < _REMEMBERED:
            self._logged.add((key, address))
            where = self._allowed.folder
            log.warning("refused %s: its key %s is in no list of %s", address, short(key), where)
        return None

    def peer(self, user: str) -> Peer | None:
        """Who the user of a message is; None if nobody was let in under that name."""
        return self._peers.get(user)


class ZapSocket:
    """Answers libzmq in the thread that drives the van.

    Args:
        context: whose sockets ask; it can have one that answers.
        poller: is told the descriptor to look at.
        gate: decides.
    Raises:
        AddressError: somebody in this context answers already.
    """

    def __init__(self, context: zmq.Context[Any], poller: Poller, gate: Gate) -> None:
        self._poller, self._gate = poller, gate
        self._socket = context.socket(zmq.REP)
        self._socket.setsockopt(zmq.LINGER, 0)
        try:
            self._socket.bind(ENDPOINT)
        except zmq.ZMQError:
            self._socket.close(0)
            reason = "another node of this ZeroMQ context checks keys; give each its own context"
            raise AddressError(ENDPOINT, reason) from None
        self._fd = int(self._socket.getsockopt(zmq.FD))
        poller.register(self._fd, self._answer)
        self._answer(0)  # signals begin when a socket has once been found empty

    def _answer(self, events: int) -> None:
        while self._socket.getsockopt(_EVENTS) & _POLLIN:
            self._socket.send_multipart(self._gate.answer(self._socket.recv_multipart()))

    def close(self) -> None:
        """Answer no more."""
        self._poller.unregister(self._fd)
        self._socket.close(0)
