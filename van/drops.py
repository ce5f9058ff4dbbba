"""What arrived and was not for us: counted, and logged once for each connection."""

from __future__ import annotations

import logging
from collections import Counter

from van.errors import CodecError, HandshakeError, ProtocolVersionError, VanError

log = logging.getLogger(__name__)

_REMEMBERED_PEERS = 1024
_LONGEST_NAME = 100  # characters of a peer's making in our log


def shown(peer: object) -> str:
    """How a log names a connection, whatever its other end calls itself.

    >>> shown(b"\\0a"), shown("tcp://h:1"), shown("a\\nb")
    ('0061', 'tcp://h:1', "'a\\\\nb'")
    """
    name = peer.hex() if isinstance(peer, bytes) else str(peer)[:_LONGEST_NAME]
    return name if name.isascii() and name.isprintable() else ascii(name)


class Drops:
    """Counts what is dropped.

    Args:
        counts: gets one more under the reason.

    Attributes:
        refused: peers of other protocol versions that were met, and those with which a handshake
            failed; whoever tells them, or of them, takes them out.
    """

    def __init__(self, counts: Counter[str]) -> None:
        self.refused: list[VanError] = []
        self._counts = counts
        self._warned: set[object] = set()

    def add(self, why: str, peer: object, text: str, level: int = logging.WARNING) -> None:
        """Count under `why`, and log `text` if nothing of connection `peer` was logged before."""
        self._counts[why] += 1
        if peer not in self._warned and len(self._warned) < _REMEMBERED_PEERS:
            self._warned.add(peer)
            log.log(level, "dropped a message from connection %s: %s", shown(peer), text)

    def add_error(self, peer: object, error: CodecError) -> None:
        """Count a message that could not be read."""
        if not isinstance(error, ProtocolVersionError):
            self.add("malformed", peer, str(error))
            return
        self.add("other_version", peer, str(error))
        if len(self.refused) < _REMEMBERED_PEERS:
            self.refused.append(error)

    def add_handshake(self, error: HandshakeError) -> None:
        """Count a peer that this node cannot speak with."""
        self._counts["handshake_failed"] += 1
        if len(self.refused) < _REMEMBERED_PEERS:
            self.refused.append(error)
