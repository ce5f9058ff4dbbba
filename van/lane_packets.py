"""What travels on the local lane: packets of a sequenced-packet socket, as bytes.

A packet is a head, tables and, for a message, its header and the arrays that fit, each at a
multiple of 8 bytes:

    head      version, kind, entries of each table, bytes of the header
    slabs     (number, bytes) of new shared memory, whose descriptors come with the packet
    returns   (slab, offset) of regions of the other side that nobody here reads any more
    frames    where header and arrays are: absent when all are in the packet, else for each one
              inline, streamed (it follows in packets of its own, nothing else between), or
              (slab, offset)
    drops     slab numbers that will not be used again

Pure: no socket. Everything read is checked for its range; whether a slab exists and a region lies
in it is for `van.lane_connection`.
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum

from van.codec import Frame
from van.errors import CodecError
from van.shared_memory import MOST_SLABS
from van.slabs import Place

VERSION = 1
LARGEST = 128 << 10  # bytes of a packet; with the default limits of Linux a socket takes it
INLINE = 64 << 10  # bytes of header and arrays in one packet
MOST_RETURNS = 1024

_HEAD = struct.Struct("<BBHHHHxxI")
_PAIR, _NUMBER = struct.Struct("<IQ"), struct.Struct("<I")  # entries of tables
ALIGNMENT = 8
_PADDING = tuple(bytes(n) for n in range(ALIGNMENT))


class PacketKind(IntEnum):
    """What a packet is for."""

    HELLO = 1  # the first of a connection: the header is its maker's address
    MESSAGE = 2
    NOTICE = 3  # only tables


INLINE_PLACE = Place(0, 0)
STREAMED_PLACE = Place(1, 0)
_FIRST_SLAB = 2  # on the wire slab numbers begin here


def slab_place(place: Place) -> Place:
    """`place` as it stands in a packet's table of frames."""
    return Place(place.slab + _FIRST_SLAB, place.offset)


@dataclass(slots=True)
class Tables:
    """What a packet says besides its message."""

    slabs: Sequence[tuple[int, int]] = ()
    returns: Sequence[tuple[int, int]] = ()
    drops: Sequence[int] = ()


@dataclass(slots=True)
class Packet:
    """A packet as it was read."""

    kind: PacketKind
    tables: Tables
    header_size: int
    places: Sequence[tuple[int, int]]  # empty: all inline
    body: int  # where header and inline arrays begin


NO_TABLES = Tables()


def pack(
    kind: PacketKind,
    frames: Sequence[Frame] = (),
    places: Sequence[Place] = (),
    tables: Tables = NO_TABLES,
) -> list[Frame]:
    """The buffers of a packet, to be sent as one.

    Args:
        frames: header and arrays; those whose place is not inline are not put in.
        places: of each frame, or empty when all are inline.
    """
    header_size = len(frames[0]) if frames else 0
    if tables is NO_TABLES and not places:  # nearly all
        head = _HEAD.pack(VERSION, kind, 0, 0, 0, 0, header_size)
    else:
        slabs, returns, drops = tables.slabs, tables.returns, tables.drops
        sizes = len(slabs), len(returns), len(drops), len(places)
        head = _HEAD.pack(VERSION, kind, *sizes, header_size)
        head += b"".join([_PAIR.pack(*pair) for pair in (*slabs, *returns, *places)])
        head += b"".join([_NUMBER.pack(number) for number in drops])
    buffers: list[Frame] = [head]
    size = len(head)
    for number, frame in enumerate(frames):
        if places and places[number] != INLINE_PLACE:
            continue
        if gap := -size % ALIGNMENT:
            buffers.append(_PADDING[gap])
        nbytes = len(frame) if type(frame) is bytes else frame.nbytes  # type: ignore[union-attr]
        if nbytes:
            buffers.append(frame)
        size += gap + nbytes
    return buffers


def unpack(data: bytes) -> Packet:
    """What the packet `data` says.

    Raises:
        CodecError: no packet of ours.
    """
    if len(data) < _HEAD.size:
        raise CodecError(f"a packet of {len(data)} bytes")
    version, kind, slabs, returns, drops, frames, header_size = _HEAD.unpack_from(data)
    if version != VERSION or not PacketKind.HELLO <= kind <= PacketKind.NOTICE:
        raise CodecError(f"a packet of version {version} and kind {kind}")
    start = _HEAD.size
    if not slabs and not returns and not drops and not frames:
        return Packet(_KINDS[kind], NO_TABLES, header_size, (), start)
    middle = start + _PAIR.size * (slabs + returns + frames)
    end = middle + _NUMBER.size * drops
    if len(data) < end or slabs > MOST_SLABS or returns > MOST_RETURNS:
        raise CodecError("a packet whose tables are cut off or too long")
    pairs = list(_PAIR.iter_unpack(data[start:middle]))
    numbers = [number for (number,) in _NUMBER.iter_unpack(data[middle:end])]
    tables = NO_TABLES
    if slabs or returns or drops:
        tables = Tables(pairs[:slabs], pairs[slabs : slabs + returns], numbers)
    return Packet(_KINDS[kind], tables, header_size, pairs[slabs + returns :], end)


_KINDS = {int(kind): kind for kind in PacketKind}


def inline(data: memoryview, start: int, nbytes: int) -> tuple[memoryview, int]:
    """The next frame in a packet and where it ends.

    Raises:
        CodecError: the packet ends before it does.
    """
    start += -start % ALIGNMENT
    end = start + nbytes
    if end > len(data):
        raise CodecError("a packet that ends before its frames")
    return data[start:end], end


def slab_of(place: tuple[int, int]) -> Place:
    """The region that a packet's table of frames names."""
    return Place(place[0] - _FIRST_SLAB, place[1])
