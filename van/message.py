"""What travels between nodes: a header of plain fields and the raw memory of some arrays.

The header has room from the start for what delivery, dispatchers and consistency modes need on
the wire; `docs/requests.md` derives the fields from the state machine of requests.

Source: ps-lite, include/ps/internal/message.h; here a response also carries the error of a
handler, and a table's clock.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import IntEnum, IntFlag
from typing import Any

import numpy as np
from numpy.typing import NDArray

from van.peer import Peer

PROTOCOL_VERSION = 1

UNASSIGNED = 0
"""Sender of a node that has no id yet."""


class Control(IntEnum):
    """What a control message is about; `NONE` marks data."""

    NONE = 0
    REGISTER = 1  # a node tells the scheduler its role and address
    NODES = 2  # the scheduler tells everybody who is there
    REFUSED = 3  # the scheduler does not take a node, and why
    BARRIER = 4  # a node has come to a barrier
    BARRIER_DONE = 5  # a barrier is complete, or cannot be
    GOODBYE = 6  # a node has finished
    GOODBYE_DONE = 7  # the scheduler has taken note: the node may go
    STOP = 8  # the cluster ends
    HEARTBEAT = 9
    MAP = 10  # a newer slot map
    QUERY = 11  # somebody outside the cluster asks what a node knows
    REPORT = 12  # the answer
    GOODBYE_SEEN = 13  # the answer to a goodbye has come: the scheduler may go, too


class Flag(IntFlag):
    """What a data message is."""

    NONE = 0
    ANSWER = 1  # else it is a request
    PUSH = 2
    PULL = 4
    EVERYWHERE = 8  # of a round: also goes to servers where it has no slots

    # The standard library's own cost three times as much, several times a message.
    def __or__(self, other: int) -> Flag:
        return _FLAGS[int.__or__(self, other)]

    def __and__(self, other: int) -> Flag:
        return _FLAGS[int.__and__(self, other)]

    __ror__, __rand__ = __or__, __and__


_FLAGS = tuple(Flag(bits) for bits in range(16))  # all there can be
_ANSWER = Flag.ANSWER


class Kind(IntEnum):
    """What an answer says; a request is `NONE`."""

    NONE = 0
    OK = 1
    HELD = 2  # to a repeat: the request is known and waits for others
    WRONG_OWNER = 3  # some of its slots belong to others, by a newer map
    BEHIND = 4  # the receiver's map is older than the request's
    FENCED = 5  # the sender's incarnation may not write any more
    ERROR = 6  # a handler raised


Clock = tuple[int, int, tuple[tuple[int, int], ...]]
"""Table, clock, and (server, version) pairs."""


@dataclass(slots=True)
class Meta:
    """The header of a message; `docs/requests.md` has each field's meaning."""

    sender: int = UNASSIGNED
    reply_to: str = ""  # address of a sender that is in no node table yet
    recipient: int = UNASSIGNED
    incarnation: int = 0
    recipient_incarnation: int = 0  # 0: whichever lives
    control: Control = Control.NONE
    flags: Flag = Flag.NONE
    kind: Kind = Kind.NONE
    app: int = 0
    customer: int = 0
    timestamp: int = 0
    oldest: int = 0
    piece: int = 0
    epoch: int = 0
    map_version: int = 0
    cmd: int = 0  # may be negative, as may priority
    priority: int = 0
    clocks: tuple[Clock, ...] = ()
    constituents: tuple[tuple[Any, ...], ...] = ()
    slots: tuple[int, ...] | None = None
    refused: tuple[int, ...] = ()
    key_list: int = 0
    chunk: tuple[int, int] = (0, 1)
    body: Any = None  # msgpack types
    error: tuple[str, str, int] | None = None  # type, text and node of a handler's exception


@dataclass(slots=True)
class Message:
    """A header and its arrays.

    Received arrays are views of the frames: read-only, and kept alive by them. Arrays to be sent
    must not change before the request is answered.

    Attributes:
        is_ours: the arrays lie in ordinary memory that nobody else refers to, so who takes the
            message may keep them, and write to them.
    """

    meta: Meta
    arrays: list[NDArray[Any]] = field(default_factory=list)
    is_ours: bool = False
    peer: Peer | None = None  # who sent it, by its key; None: the way it came knows no keys

    def __repr__(self) -> str:
        meta = self.meta
        what = meta.control.name if meta.control else f"{meta.flags.name} {meta.kind.name}"
        sizes = ",".join(f"{a.dtype}{list(a.shape)}" for a in self.arrays)
        return (
            f"<{what} {meta.sender}->{meta.recipient} app={meta.app}/{meta.customer} "
            f"ts={meta.timestamp} cmd={meta.cmd}{' error' if meta.error else ''} {sizes}>"
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(int(np.asarray(a).nbytes) for a in self.arrays)


def answer_to(meta: Meta, kind: Kind = Kind.OK, **fields: Any) -> Meta:
    """The header of the answer to the request `meta`."""
    return Meta(
        recipient=meta.sender,
        recipient_incarnation=meta.incarnation,
        flags=meta.flags | _ANSWER,
        kind=kind,
        app=meta.app,
        customer=meta.customer,
        timestamp=meta.timestamp,
        piece=meta.piece,
        cmd=meta.cmd,
        priority=meta.priority,
        **fields,
    )
