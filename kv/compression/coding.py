"""Rows to a packet by a chain of schemes, and back; `kv.compression.packets` has the form.

Nothing is remembered here. `encode` leaves what is lost in the place of its input, so that who
keeps errors can keep those.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kv.compression import packets
from kv.compression.bases import Base
from kv.compression.lossless import shrink, stretch
from kv.compression.packets import Frame, Head
from kv.compression.schemes import BF16, FP16, Chain, Int8, OneBit, Selective, TopK, Zstd
from kv.errors import PacketError
from kv.kernels import onebit, quantise, residuals, rows, topk
from kv.kernels.jit import frozen

Keys = NDArray[np.uint64]
Values = NDArray[np.float32]
Mask = NDArray[np.bool_]
Absent = str
OUTRIGHT, NAMED, WHOLE = "outright", "named", "whole"
"""What a packet says of rows that a scheme leaves out: nothing, since their keys are not sent
either; which they are; or that they are zeros."""

_KINDS = {
    FP16: packets.HALVES,
    BF16: packets.BFLOATS,
    Int8: packets.BYTES,
    OneBit: packets.SIGNS,
}


@dataclass(slots=True, frozen=True)
class Packet:
    """Compressed rows.

    Attributes:
        frame: uint8, shape (nbytes,).
        kept: bool, shape (rows,): those that are in it; None: all.
        absent: what it says of the others.
    """

    frame: Frame
    kept: Mask | None
    absent: Absent


@dataclass(slots=True, frozen=True)
class Decoded:
    """What a packet says.

    Attributes:
        values: float32, shape (count, dim); `head` says whether they are differences.
        kept: bool, shape (rows,): whose they are; None: of all rows in order.
    """

    values: Values
    kept: Mask | None
    head: Head

    def whole(self) -> Decoded:
        """The same with zeros for rows that are left out, if they are to be that."""
        if self.kept is None or not self.head.flags & packets.ZERO_ROWS:
            return self
        values = np.zeros((self.head.rows, self.head.dim), np.float32)
        values[self.kept] = self.values
        return Decoded(values, None, self.head)

    def on(self, base: Base, names: Keys) -> Decoded:
        """The updates that differences on the last ones make; these are the last from now on.

        Args:
            names: of all rows, in order.
        Raises:
            UnknownBaseError: they are of other updates than those known.
        """
        base.expect(self.head.stream, self.head.place)
        base.advance(names if self.kept is None else names[self.kept], self.values)
        return self


def kind_of(chain: Chain) -> int:
    """The kind of numbers in the chain's packets."""
    return packets.FLOATS if chain.quantiser is None else _KINDS[type(chain.quantiser)]


def encode(
    chain: Chain,
    x: Values,
    absent: Absent = NAMED,
    by_row: bool = False,
    base: tuple[Base, Keys] | None = None,
) -> Packet:
    """Compress rows; what the packet does not say stays in `x`.

    Args:
        x: float32, shape (rows, dim), C-contiguous, finite; overwritten by x less what a receiver
            gets.
        by_row: whether one bit stands for means of rows, as of blocks of a dense table, instead of
            columns.
        base: the last updates and the rows' names; differences from them are sent then, and the
            rows of `x` that are sent are not to be used.
    """
    kept = _chosen_rows(chain, x)
    y, places = x, None
    if kept is not None:
        places = np.flatnonzero(kept)
        y = np.empty((places.size, x.shape[1]), np.float32)
        rows.gather(x, places, y)
    flags = 0
    if kept is not None and absent != OUTRIGHT:
        flags = packets.SOME_ROWS | (packets.ZERO_ROWS if absent == WHOLE else 0)
    total = y.shape[0] if kept is not None and absent == OUTRIGHT else x.shape[0]
    head = Head(packets.FLOATS, flags, total, x.shape[1], y.shape[0], y.size)
    if base is not None:
        last, names = base
        residuals.subtract_rows(last.data, last.find(names if kept is None else names[kept]), y)
        head.flags, head.stream, head.place = flags | packets.DELTA, last.run, last.place
    sections = _numbers(chain, head, y, by_row)
    if flags & packets.SOME_ROWS:
        assert kept is not None
        sections.insert(2, np.packbits(kept, bitorder="little"))
    if places is not None:
        rows.scatter(x, places, frozen(y))
    return Packet(_joined(chain, head, sections), kept, absent)


def _chosen_rows(chain: Chain, x: Values) -> Mask | None:
    """Which rows are sent; None: all."""
    selective, top = chain.find(Selective), chain.find(TopK)
    is_by_rows = top is not None and top.rows
    if selective is None and not is_by_rows:
        return None
    squares = np.empty(x.shape[0], np.float64)
    residuals.row_squares(frozen(x), squares)
    kept = np.ones(x.shape[0], np.bool_)
    if selective is not None:
        mean = float(squares.mean()) if squares.size else 0.0
        kept = squares > max(selective.eps**2, selective.relative**2 * mean)
    if is_by_rows:
        count = max(1, round(top.share * x.shape[0]))
        if count < x.shape[0]:
            order = np.argpartition(squares, x.shape[0] - count)
            longest = np.zeros(x.shape[0], np.bool_)
            longest[order[x.shape[0] - count :]] = True
            kept &= longest
    return None if kept.all() else kept


def _numbers(chain: Chain, head: Head, y: Values, by_row: bool) -> list[NDArray[Any]]:
    """Scales, numbers and their places, in order, as `head` then says; `y` becomes the error."""
    top = chain.find(TopK)
    if top is None or top.rows or not y.size:
        return _quantised(chain, head, y, by_row)
    flat = y.reshape(-1)
    bins = np.empty(topk.BINS, np.int64)
    count = max(1, round(top.share * flat.size))
    threshold, equals, taken = topk.threshold_of(frozen(flat), count, bins)
    mask, values = np.zeros(packets.mask_nbytes(flat.size), np.uint8), np.empty(taken, np.float32)
    nbytes = topk.take_largest(frozen(flat), threshold, equals, mask, values)
    head.chosen = taken
    head.flags |= packets.BY_GAPS if nbytes < mask.size else packets.BY_MASK
    places: Frame = mask
    if nbytes < mask.size:
        places = np.empty(nbytes, np.uint8)
        topk.to_gaps(frozen(mask), flat.size, places)
    sections = _quantised(chain, head, values.reshape(-1, 1), False)
    topk.put_by_mask(frozen(mask), frozen(values), flat)
    return [*sections, places]


def _quantised(chain: Chain, head: Head, y: Values, by_row: bool) -> list[NDArray[Any]]:
    """Scales and numbers of a matrix, which becomes the error."""
    kind, flat = kind_of(chain), y.reshape(-1)
    is_by_row = by_row and kind == packets.SIGNS
    head.kind = kind
    head.flags |= packets.BY_ROW if is_by_row else 0
    scales = np.empty(head.scales, np.float32)
    codes: NDArray[Any]
    if kind == packets.HALVES:
        greatest = int(quantise.greatest_magnitude(frozen(flat)))
        shift = min(141 - (greatest >> 23), 126)  # the exponent becomes 14, a half's greatest is 15
        head.shift = shift
        codes = np.empty(flat.size, np.uint16)
        quantise.to_halves(flat, _power(shift), _power(-shift), codes)
    elif kind == packets.BFLOATS:
        codes = np.empty(flat.size, np.uint16)
        quantise.to_bfloats(flat, codes)
    elif kind == packets.BYTES:
        codes = np.empty(flat.size, np.int8)
        quantise.to_bytes(flat, head.run, scales, codes)
    elif kind == packets.SIGNS:
        codes = np.zeros(head.values_nbytes, np.uint8)
        means = scales.reshape(2, -1)
        mean_of, lanes = (onebit.row_means, 16) if is_by_row else (onebit.column_means, y.shape[1])
        mean_of(frozen(y), np.empty((2, lanes)), np.empty((2, lanes), np.int64), means)
        onebit.to_signs(y, frozen(means), is_by_row, codes)
    else:
        codes = flat.copy()
        flat[:] = 0
    return [scales, codes]


def _power(shift: int) -> np.float32:
    return np.float32(2.0**shift)


def _joined(chain: Chain, head: Head, sections: list[NDArray[Any]]) -> Frame:
    zstd = chain.find(Zstd)
    if zstd is not None:
        small = shrink(sections, head, int(zstd.level))
        if small is not None:
            head.plain = sum(section.nbytes for section in sections)
            head.flags |= packets.ZSTD
            sections = [small]
    frame = np.empty(head.nbytes + sum(section.nbytes for section in sections), np.uint8)
    frame[: head.nbytes] = np.frombuffer(head.to_bytes(), np.uint8)
    at = head.nbytes
    for section in sections:
        frame[at : at + section.nbytes] = section.reshape(-1).view(np.uint8)
        at += section.nbytes
    return frame


def decode(frame: NDArray[Any], rows: int, dim: int) -> Decoded:
    """What a packet says about `rows` rows of `dim` floats.

    Raises:
        PacketError: it is no packet, or none about so many.
    """
    head = packets.read_head(frame, rows, dim)
    rest = np.ascontiguousarray(frame[head.nbytes :])
    if head.flags & packets.ZSTD:
        rest = stretch(rest, head)
    parts = packets.take_apart(rest, head)
    kept = _rows_kept(parts, head)
    values = np.empty((head.count, dim), np.float32)
    if head.is_list:
        found = np.empty((head.chosen, 1), np.float32)
        _read(parts, head, found)
        values[:] = 0
        put = topk.put_by_mask if head.flags & packets.BY_MASK else topk.put_by_gaps
        if not put(frozen(parts.places), frozen(found.reshape(-1)), values.reshape(-1)):
            raise PacketError(f"places of {head.chosen} numbers")
    else:
        _read(parts, head, values)
    return Decoded(values, kept, head)


def _rows_kept(parts: packets.Parts, head: Head) -> Mask | None:
    if not head.flags & packets.SOME_ROWS:
        return None
    kept = np.unpackbits(parts.row_mask, count=head.rows, bitorder="little").view(np.bool_)
    if int(kept.sum()) != head.count:
        raise PacketError(f"a mask of {head.count} rows")
    return kept


def _read(parts: packets.Parts, head: Head, out: Values) -> None:
    """The numbers, in the shape of `head.shape`."""
    codes, scales, flat = frozen(parts.values), frozen(parts.scales), out.reshape(-1)
    if head.kind == packets.HALVES:
        quantise.from_halves(codes, _power(-head.shift), flat)
    elif head.kind == packets.BFLOATS:
        quantise.from_bfloats(codes, flat)
    elif head.kind == packets.BYTES:
        quantise.from_bytes(codes, head.run, scales, flat)
    elif head.kind == packets.SIGNS:
        means, by_row = scales.view(np.uint32).reshape(2, -1), bool(head.flags & packets.BY_ROW)
        onebit.from_signs(codes, means, by_row, out.view(np.uint32))
    else:
        flat[:] = codes
