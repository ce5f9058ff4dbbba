"""The root of every error that pslite raises on purpose, and the van's own branch.

    PsliteError
    ├── ConfigError              an ini file, option or environment variable is wrong
    ├── VanError                 moving messages
    │   ├── CodecError           bytes that are no message of ours
    │   │   └── ProtocolVersionError   a peer speaks another version
    │   ├── HandshakeError       a peer and this node do not accept each other's keys
    │   ├── AddressError         an address cannot be bound or reached
    │   └── UnreachablePeerError a peer does not take messages
    ├── postoffice.errors.*      membership, barriers, time-outs
    └── kv.errors.*              tables, keys, handlers

Errors keep their facts as attributes; the text says what happened, to whom, and what to try.
"""

from __future__ import annotations

_LONGEST = 2000  # characters of a problem that are shown


class PsliteError(Exception):
    """Base of all errors raised by pslite: catch this to catch them all."""


class ConfigError(PsliteError):
    """A setting is wrong.

    Args:
        problem: what is wrong and what to do.
        file: the ini file, or None where the setting came from elsewhere.
        section: section of the ini file.
        key: key in the section.
    """

    def __init__(
        self,
        problem: str,
        *,
        file: str | None = None,
        section: str | None = None,
        key: str | None = None,
    ) -> None:
        if len(problem) > _LONGEST:  # it quotes a value that is no setting at all
            problem = f"{problem[: _LONGEST // 2]} … {problem[-_LONGEST // 4 :]}"
        self.problem, self.file, self.section, self.key = problem, file, section, key
        place = " ".join(
            part for part in (file or "", f"[{section}]" if section else "", key or "") if part
        )
        super().__init__(f"{place}: {problem}" if place else problem)


class VanError(PsliteError):
    """Moving a message went wrong."""


class CodecError(VanError):
    """Received bytes are not a message of ours; they are counted and dropped."""


class ProtocolVersionError(CodecError):
    """A peer speaks another version of the protocol."""

    def __init__(self, theirs: object, ours: int, sender: object = None) -> None:
        self.theirs, self.ours, self.sender = theirs, ours, sender
        self.reply_to = ""  # where the peer can be told, if its message says so
        super().__init__(
            f"node {sender} speaks protocol version {theirs}, this node {ours}; "
            f"run the same release of pslite on every node"
        )


class AddressError(VanError):
    """An address cannot be bound or connected to."""

    def __init__(self, address: str, reason: str) -> None:
        self.address, self.reason = address, reason
        super().__init__(f"address {address}: {reason}")


class HandshakeError(VanError):
    """A peer and this node do not accept each other's keys, or only one of them has any.

    Args:
        address: of the peer.
        reason: what is wrong and what to do.
        is_final: whether ZeroMQ has given up, so that nothing more can reach the peer.
    """

    def __init__(self, address: str, reason: str, *, is_final: bool) -> None:
        self.address, self.reason, self.is_final = address, reason, is_final
        super().__init__(f"no connection with the node at {address}: {reason}")


class UnreachablePeerError(VanError):
    """A peer is unknown here or does not take messages."""

    def __init__(self, node: int, reason: str) -> None:
        self.node, self.reason = node, reason
        super().__init__(f"node {node} is unreachable: {reason}")
