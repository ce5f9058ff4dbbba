"""CURVE on ZeroMQ sockets: who this node is, and whose key it expects at the other end.

Every connection is encrypted and both ends prove their keys; who receives checks the other's
against its allow-lists (`van.zap`), who connects names the key it wants to meet. A recorded
handshake or message is of no use to another connection, nor twice on its own: each connection has
keys and counters of its own.

Source: ZeroMQ RFC 25/26 (CurveZMQ), after Bernstein's CurveCP.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any

import zmq

from van.addresses import key_of, place_of, short
from van.errors import HandshakeError
from van.keys import PUBLIC, AllowLists, KeyPair

DOMAIN = b"pslite"  # with a domain libzmq lets nobody in when no one checks keys

# What a socket's monitor says of a handshake that failed, measured with libzmq 4.3.5: a key that
# is not allowed is told (AUTH), and so is the other mechanism (PROTOCOL); a peer that has not the
# expected key cannot even read our first message, and hangs up without a word (NO_DETAIL).
_MISMATCH = int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)
_AUTH = int(zmq.EVENT_HANDSHAKE_FAILED_AUTH)
_PROTOCOL = int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)


@dataclass(frozen=True)
class Curve:
    """What one node needs to speak CURVE.

    Args:
        pair: its own keys.
        allowed: who may connect to it, and as what.
        scheduler_key: of the scheduler, whose address others know from their settings: what is
            expected at an address without a key.
        trusts_lane: whether nodes of the same user and host may come by the local lane, which
            knows users and no keys.
    """

    pair: KeyPair
    allowed: AllowLists
    scheduler_key: str
    trusts_lane: bool = False

    def serve(self, router: zmq.Socket[Any]) -> None:
        """Let `router` take only peers that speak CURVE and are let in by `van.zap`."""
        router.setsockopt(zmq.CURVE_SERVER, 1)
        router.setsockopt(zmq.CURVE_SECRETKEY, self.pair.secret.encode())
        router.setsockopt(zmq.ZAP_DOMAIN, DOMAIN)

    def dial(self, dealer: zmq.Socket[Any], address: str) -> None:
        """Let `dealer` connect only to the holder of the key that belongs to `address`."""
        dealer.setsockopt(zmq.CURVE_PUBLICKEY, self.pair.public.encode())
        dealer.setsockopt(zmq.CURVE_SECRETKEY, self.pair.secret.encode())
        dealer.setsockopt(zmq.CURVE_SERVERKEY, self.key_at(address).encode())

    def key_at(self, address: str) -> str:
        """The key that is expected at `address`."""
        return key_of(address) or self.scheduler_key

    @property
    def file(self) -> str:
        """Where this node's secret key is."""
        return str(self.pair.file or "its key")


def failure(curve: Curve | None, address: str, event: int, value: int) -> HandshakeError:
    """The error for a handshake with the node at `address` that failed.

    Args:
        curve: this node's side; None: it speaks without CURVE.
        address: where it connected to.
        event, value: of the socket's monitor.
    """
    place = place_of(address)
    if curve is None:
        text = "it did not take part in a handshake; is it a node of pslite?"
        if event == _PROTOCOL and value == _MISMATCH:
            text = (
                "it speaks CURVE only: set [security] curve = on and keys = FOLDER here too "
                "(`pslite keygen` makes keys), or give a command --keys FOLDER or --run RUN"
            )
        return HandshakeError(place, text, is_final=event == _PROTOCOL)
    if event == _AUTH:
        text = (
            f"it does not let in the key {short(curve.pair.public)} of {curve.file}; the public "
            f"key belongs into ROLE.allowed in the [security] keys folder over there"
        )
        return HandshakeError(place, text, is_final=True)
    if event == _PROTOCOL and value == _MISMATCH:
        text = "it speaks without CURVE; set [security] curve = on for every node, or for none"
        return HandshakeError(place, text, is_final=True)
    expected = curve.key_at(address)
    source = "the node table"
    if expected == curve.scheduler_key:
        source = str(Path(curve.allowed.folder) / f"scheduler{PUBLIC}")
    text = (
        f"it ended the handshake: it does not hold the secret key of {short(expected)} "
        f"({source}); are the key folders of both from one `pslite keygen`? Or it "
        f"speaks without CURVE: [security] curve must be the same for all nodes"
    )
    return HandshakeError(place, text, is_final=event == _PROTOCOL)
