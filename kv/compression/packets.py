"""The form of compressed rows: one array of bytes that describes itself.

    version   uint8     1
    kind      uint8     of the numbers: 0 float32, 1 half, 2 bfloat16, 3 int8, 4 one bit
    flags     uint8     1 rows are left out and a mask says which, 2 rows that are left out are
                        zeros (else absent), 4 numbers are left out and a mask says which, 8 and
                        gaps do, 16 the rest is Zstandard's, 32 differences from the update before,
                        64 means (one bit) are of rows and not of columns
    shift     int8      halves are to be multiplied by 2^-shift
    rows      uint32    of the message, those left out included
    dim       uint32    numbers in a row
    count     uint32    rows that are here
    chosen    uint32    numbers that are here
    plain     uint32    bytes of the rest before Zstandard; only with its flag
    stream    uint32    number of the sender's run of differences; only with their flag, and
    place     uint32    the message's place in it
    rest      scales or means (float32), numbers, mask of rows, mask or gaps of numbers

All is little endian. What comes from elsewhere is checked here: sizes follow from the numbers of
rows and floats that the receiver expects, so nothing that a packet says makes anybody allocate more
than its keys have promised.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kv.errors import PacketError

VERSION = 1
FLOATS, HALVES, BFLOATS, BYTES, SIGNS = range(5)
SOME_ROWS, ZERO_ROWS, BY_MASK, BY_GAPS, ZSTD, DELTA, BY_ROW = (1 << n for n in range(7))
KNOWN = 0x7F
LIST_RUN = 64  # numbers of a list, of which none have rows, that share a scale
LEAST_RUN, SHORT_RUN = 4, 16  # rows below the first share scales, so many numbers one
_HEAD, _PLAIN, _DELTA = struct.Struct("<BBBbIIII"), struct.Struct("<I"), struct.Struct("<II")
_WIDTHS = {FLOATS: 4, HALVES: 2, BFLOATS: 2, BYTES: 1}
MOST = (1 << 32) - 1

Frame = NDArray[np.uint8]


@dataclass(slots=True)
class Head:
    """The header of a packet; fields as above."""

    kind: int
    flags: int
    rows: int
    dim: int
    count: int
    chosen: int
    shift: int = 0
    plain: int = 0
    stream: int = 0
    place: int = 0

    def to_bytes(self) -> bytes:
        """As it stands in the packet."""
        head = _HEAD.pack(
            VERSION,
            self.kind,
            self.flags,
            self.shift,
            self.rows,
            self.dim,
            self.count,
            self.chosen,
        )
        if self.flags & ZSTD:
            head += _PLAIN.pack(self.plain)
        if self.flags & DELTA:
            head += _DELTA.pack(self.stream, self.place)
        return head

    @property
    def nbytes(self) -> int:
        extra = bool(self.flags & ZSTD) * _PLAIN.size + bool(self.flags & DELTA) * _DELTA.size
        return _HEAD.size + extra

    @property
    def is_list(self) -> bool:
        """Whether the numbers are a list, some of the rows', and not whole rows."""
        return bool(self.flags & (BY_MASK | BY_GAPS))

    @property
    def shape(self) -> tuple[int, int]:
        """Of the matrix that the numbers make."""
        return (self.chosen, 1) if self.is_list else (self.count, self.dim)

    @property
    def run(self) -> int:
        """Numbers that share a scale."""
        if self.is_list:
            return LIST_RUN
        return self.dim if self.dim >= LEAST_RUN else SHORT_RUN

    @property
    def scales(self) -> int:
        """How many scales or means there are."""
        if self.kind == BYTES:
            return -(-self.chosen // self.run)
        if self.kind == SIGNS:
            return 2 * self.shape[0 if self.flags & BY_ROW else 1]
        return 0

    @property
    def values_nbytes(self) -> int:
        return mask_nbytes(self.chosen) if self.kind == SIGNS else self.chosen * _WIDTHS[self.kind]

    @property
    def rows_nbytes(self) -> int:
        return mask_nbytes(self.rows) if self.flags & SOME_ROWS else 0

    @property
    def fixed_nbytes(self) -> int:
        """Bytes of the rest but for gaps."""
        places = mask_nbytes(self.count * self.dim) if self.flags & BY_MASK else 0
        return 4 * self.scales + self.values_nbytes + self.rows_nbytes + places


@dataclass(slots=True, frozen=True)
class Parts:
    """The rest of a packet, taken apart; arrays are views of it."""

    scales: NDArray[np.float32]
    values: NDArray[Any]
    row_mask: Frame
    places: Frame


def mask_nbytes(bits: int) -> int:
    return -(-bits // 8)


def read_head(frame: NDArray[Any], rows: int, dim: int) -> Head:
    """The header of a packet about `rows` rows of `dim` floats.

    Raises:
        PacketError: it is no such packet.
    """
    if frame.dtype != np.uint8 or frame.ndim != 1 or frame.size < _HEAD.size:
        raise PacketError(f"{_HEAD.size} bytes or more, not {frame.dtype} of shape {frame.shape}")
    fields = _HEAD.unpack(frame[: _HEAD.size].tobytes())
    version, kind, flags, shift, all_rows, floats, count, chosen = fields
    if version != VERSION:
        raise PacketError(f"version {VERSION}, not {version}")
    if kind > SIGNS or flags & ~KNOWN:
        raise PacketError(f"no kind {kind} with flags {flags:#x}")
    at, plain, stream, place = _HEAD.size, 0, 0, 0
    if flags & ZSTD:
        (plain,) = _PLAIN.unpack(_some(frame, at, _PLAIN.size))
        at += _PLAIN.size
    if flags & DELTA:
        stream, place = _DELTA.unpack(_some(frame, at, _DELTA.size))
    head = Head(kind, flags, all_rows, floats, count, chosen, shift, plain, stream, place)
    _check(head, rows, dim)
    return head


def _check(head: Head, rows: int, dim: int) -> None:
    if (head.rows, head.dim) != (rows, dim):
        raise PacketError(f"{rows} rows of {dim} floats, not {head.rows} of {head.dim}")
    flags = head.flags
    if head.count > rows or (head.count < rows and not flags & SOME_ROWS):
        raise PacketError(f"{head.count} of {rows} rows")
    size = head.count * dim
    if head.chosen > size or (head.chosen < size and not head.is_list):
        raise PacketError(f"{head.chosen} of {size} numbers")
    wrong = (
        (flags & BY_MASK and flags & BY_GAPS)
        or (flags & ZERO_ROWS and not flags & SOME_ROWS)
        or (flags & BY_ROW and head.kind != SIGNS)
        or (head.shift and head.kind != HALVES)
    )
    if wrong:
        raise PacketError(f"flags {flags:#x} and shift {head.shift} do not fit kind {head.kind}")
    least = head.fixed_nbytes
    most = least + (head.chosen + size // 255 + 1 if flags & BY_GAPS else 0)
    if flags & ZSTD and not least <= head.plain <= most:
        raise PacketError(f"{head.plain} bytes without compression, not {least} to {most}")


def take_apart(rest: Frame, head: Head) -> Parts:
    """The parts of the rest of a packet.

    Raises:
        PacketError: it is of another size.
    """
    gaps = rest.size - head.fixed_nbytes
    if gaps < 0 or (gaps and not head.flags & BY_GAPS):
        raise PacketError(f"{head.fixed_nbytes} bytes, not {rest.size}")
    ends = np.cumsum([4 * head.scales, head.values_nbytes, head.rows_nbytes]).tolist()
    scales, values, row_mask, places = np.split(rest, ends)
    kinds = {FLOATS: np.float32, HALVES: np.uint16, BFLOATS: np.uint16, BYTES: np.int8}
    return Parts(
        scales.view(np.float32), values.view(kinds.get(head.kind, np.uint8)), row_mask, places
    )


def _some(frame: Frame, start: int, count: int) -> bytes:
    found = frame[start : start + count].tobytes()
    if len(found) < count:
        raise PacketError(f"it ends after {frame.size} bytes")
    return found
