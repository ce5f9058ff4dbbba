"""Packets of the local lane: what goes in comes out, and no bytes can do more than be refused."""

from __future__ import annotations

import random
from functools import partial

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from van import lane_packets as packets
from van.codec import decode_header, decode_packed, encode
from van.config import VanConfig
from van.errors import CodecError
from van.lane_packets import INLINE_PLACE, STREAMED_PLACE, PacketKind, Tables
from van.message import Message, Meta
from van.slabs import Place

CONFIG = VanConfig()
read_header = partial(decode_header, config=CONFIG)
UINT32, UINT64 = st.integers(0, 2**32 - 3), st.integers(0, 2**64 - 1)
PLACES = st.builds(Place, UINT32, UINT64)


def bytes_of(buffers: list) -> bytes:
    return b"".join(bytes(buffer) for buffer in buffers)


@given(
    st.lists(st.tuples(UINT32, UINT64), max_size=3),
    st.lists(PLACES, max_size=3),
    st.lists(UINT32, max_size=3),
    st.lists(st.binary(max_size=20), max_size=4),
)
def test_a_packet_reads_back(slabs, returns, drops, frames) -> None:
    tables = Tables(slabs, returns, drops)

    data = bytes_of(packets.pack(PacketKind.MESSAGE, frames, (), tables))
    packet = packets.unpack(data)

    assert packet.kind is PacketKind.MESSAGE
    read = packet.tables
    assert (list(read.slabs), list(read.returns), list(read.drops)) == (slabs, returns, drops)
    at = packet.body
    for frame in frames:
        got, at = packets.inline(memoryview(data), at, len(frame))
        assert bytes(got) == frame


@given(
    st.lists(PLACES, max_size=3),
    st.lists(UINT32, max_size=3),
    st.lists(st.integers(0, 9), max_size=3),
    st.integers(1, 100),
)
def test_a_message_in_one_packet_reads_back_behind_any_tables(returns, drops, sizes, cut) -> None:
    arrays = [np.arange(size, dtype=np.float32) for size in sizes]
    message = Message(Meta(timestamp=7), arrays)
    tables = Tables((), returns, drops)
    data = bytes_of(packets.pack(PacketKind.MESSAGE, encode(message, CONFIG), (), tables))
    packet = packets.unpack(data)

    read, end = decode_packed(data, packet.body, packet.header_size, read_header)

    assert end == len(data)
    assert read.meta == message.meta
    for got, sent in zip(read.arrays, arrays, strict=True):
        np.testing.assert_array_equal(got, sent)
        assert got.flags.aligned
        assert not got.flags.writeable
    with pytest.raises(CodecError):
        decode_packed(data[:-cut], packet.body, packet.header_size, read_header)


def test_frames_that_lie_elsewhere_are_not_put_in() -> None:
    places = [INLINE_PLACE, packets.slab_place(Place(3, 64)), STREAMED_PLACE]

    data = bytes_of(packets.pack(PacketKind.MESSAGE, [b"head", b"far", b"later"], places))
    packet = packets.unpack(data)

    assert packet.places == places
    assert packets.slab_of(packet.places[1]) == (3, 64)
    assert b"far" not in data
    assert b"later" not in data


@pytest.mark.parametrize("data", [b"", b"\x01", b"\x02" * 16, b"\x01\x09" + bytes(14)])
def test_what_is_no_packet_is_refused(data: bytes) -> None:
    with pytest.raises(CodecError):
        packets.unpack(data)


def test_mutated_packets_are_read_or_refused_and_nothing_else() -> None:
    rng = random.Random(1)
    tables = Tables([(1, 4096)], [Place(0, 64)], [2])
    whole = bytes_of(
        packets.pack(PacketKind.MESSAGE, [b"header", b"x"], [INLINE_PLACE] * 2, tables)
    )
    refused = 0
    for _ in range(5000):
        data = bytearray(whole)
        for _ in range(rng.randint(1, 3)):
            data[rng.randrange(len(data))] = rng.randrange(256)
        try:
            packet = packets.unpack(bytes(data[: rng.randint(0, len(data))]))
            packets.inline(memoryview(data), packet.body, packet.header_size)
        except CodecError:
            refused += 1

    assert refused > 1000
