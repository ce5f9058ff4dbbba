"""What a server's log says to the one that keeps copies: records, and how they travel.

    record     body                                        arrays
    PROGRESS   what `Progress.state` says                  -
    TABLE      spec, clock, lr                             -
    FILL       slots                                       -                  copies of these begin
    ROWS       table, push, slots, round, clock            columns of a RowBatch
    GONE       table                                       keys
    HELD       table, rank, round, step, weight, rest,     keys, gradients
               push
    CLOSED     table, clock, slots                         -                  rounds below are over
    WINDOWS    slots, blob                                 -
    END        order                                       -                  of a FILL or GIVE

`slots` are the bits of a mask; `push` is nil or the names of the request by which it is recognised:
sender, incarnation, app, customer, timestamp, oldest, piece.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kv.placement import NUM_SLOTS
from van.message import Meta

Slots = NDArray[np.bool_]
"""Which slots, bool (1024,)."""

_OVERHEAD = 256  # bytes that a record costs besides its arrays, about


class Kind(IntEnum):
    """What a record is about."""

    PROGRESS = 1
    TABLE = 2
    FILL = 3
    ROWS = 4
    GONE = 5
    HELD = 6
    CLOSED = 7
    WINDOWS = 8
    END = 9


@dataclass(slots=True, eq=False)
class Record:
    """One entry of a log."""

    kind: Kind
    body: dict[str, Any]
    arrays: Sequence[NDArray[Any]] = field(default_factory=list)

    @property
    def nbytes(self) -> int:
        """About what it takes while it is kept."""
        return _OVERHEAD + sum(array.nbytes for array in self.arrays)

    def pack(self, log: int, number: int) -> dict[str, Any]:
        """The body of the message that carries it as record `number` of a log."""
        return {"log": log, "n": number, "kind": int(self.kind), **self.body}

    @staticmethod
    def unpack(body: Any, arrays: Sequence[NDArray[Any]]) -> tuple[int, int, Record]:
        """Log, number and record of a message; raises ValueError, KeyError, TypeError on others."""
        rest = {key: value for key, value in body.items() if key not in ("log", "n", "kind")}
        return int(body["log"]), int(body["n"]), Record(Kind(body["kind"]), rest, list(arrays))

    def __repr__(self) -> str:
        return f"<{self.kind.name} {self.nbytes} bytes>"


def pack_slots(slots: Slots) -> bytes:
    return np.packbits(slots).tobytes()


def unpack_slots(bits: bytes) -> Slots:
    """The inverse of `pack_slots`; raises ValueError on another number of bits."""
    if len(bits) != NUM_SLOTS // 8:
        raise ValueError(f"a mask of slots has {NUM_SLOTS // 8} bytes, not {len(bits)}")
    return np.unpackbits(np.frombuffer(bits, np.uint8)).astype(np.bool_)


def pack_push(push: Meta | None) -> list[int] | None:
    """What a push is recognised by."""
    if push is None:
        return None
    names = [push.sender, push.incarnation, push.app, push.customer]
    return [*names, push.timestamp, push.oldest, push.piece]


def unpack_push(packed: Sequence[int] | None) -> Meta | None:
    """A header with these names."""
    if packed is None:
        return None
    sender, incarnation, app, customer, timestamp, oldest, piece = packed
    return Meta(
        sender=sender,
        incarnation=incarnation,
        app=app,
        customer=customer,
        timestamp=timestamp,
        oldest=oldest,
        piece=piece,
    )
