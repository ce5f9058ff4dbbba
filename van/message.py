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


class Flag(IntFlag):
    """What a data message is."""

    NONE = 0
    REQUEST = 1
    PUSH = 2
    PULL = 4
    HELD = 8  # answer to a repeat: the request is known and waits for others
    WRONG_OWNER = 16  # answer: slots in it belong to others in a newer map


@dataclass(slots=True)
class Meta:
    """The header of a message. Integers are non-negative unless said otherwise."""

    sender: int = UNASSIGNED
    recipient: int = UNASSIGNED
    incarnation: int = 0  # grows with every start of the sender
    recipient_incarnation: int = 0  # whom the sender believes to speak to; 0 is anyone
    reply_to: str = ""  # address of a sender that is in no node table yet
    control: Control = Control.NONE
    flags: Flag = Flag.NONE
    app: int = 0
    customer: int = 0
    timestamp: int = 0  # number of the request among its customer's
    oldest: int = 0  # the customer's oldest unanswered timestamp
    epoch: int = 0
    map_version: int = 0
    cmd: int = 0
    priority: int = 0  # may be negative; higher goes first
    clock: int = 0  # of the table (response) or of the worker (request)
    base_versions: tuple[int, ...] = ()  # per server, the clock a gradient was computed on
    # signatures a merged push stands for: (sender, incarnation, app, customer, timestamp, oldest)
    constituents: tuple[tuple[int, ...], ...] = ()
    key_signature: int = 0  # names a key list sent before; 0 is none
    chunk: tuple[int, int] | None = None  # (index, count) of a message sent in pieces
    error: tuple[str, str] | None = None  # (type, text) of a handler's exception
    body: Any = None  # msgpack types


@dataclass(slots=True)
class Message:
    """A header and its arrays.

    Received arrays are views of the frames: read-only, and kept alive by them. Arrays to be sent
    must not change before the request is answered.
    """

    meta: Meta
    arrays: list[NDArray[Any]] = field(default_factory=list)

    def __repr__(self) -> str:
        meta = self.meta
        what = meta.control.name if meta.control else (meta.flags.name or "RESPONSE")
        sizes = ",".join(f"{a.dtype}{list(a.shape)}" for a in self.arrays)
        return (
            f"<{what} {meta.sender}->{meta.recipient} app={meta.app}/{meta.customer} "
            f"ts={meta.timestamp} cmd={meta.cmd}{' error' if meta.error else ''} {sizes}>"
        )

    @property
    def nbytes(self) -> int:
        """Bytes of the arrays."""
        return sum(int(np.asarray(a).nbytes) for a in self.arrays)


def response_to(meta: Meta, **fields: Any) -> Meta:
    """The header of the answer to the request `meta`."""
    flags = meta.flags & ~Flag.REQUEST
    return Meta(
        recipient=meta.sender,
        recipient_incarnation=meta.incarnation,
        app=meta.app,
        customer=meta.customer,
        timestamp=meta.timestamp,
        cmd=meta.cmd,
        priority=meta.priority,
        **{"flags": flags, **fields},
    )
