"""Messages in pieces: whole again at the other end, whatever comes between; refused with gaps."""

from __future__ import annotations

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from van.chunks import Reassembler, cut
from van.codec import DTYPES, decode, encode
from van.config import VanConfig
from van.errors import CodecError
from van.message import Message, Meta

CONFIG = VanConfig(chunk=65536)


def pieces_of(message: Message, serial: int = 1, config: VanConfig = CONFIG) -> list[Message]:
    frames = cut(message.meta, encode(message, config), serial, config)
    return [
        decode([f if isinstance(f, bytes) else f.tobytes() for f in piece], config)
        for piece in frames
    ]


def random_message(seed: int, sizes: list[int], sender: int = 9) -> Message:
    rng = np.random.default_rng(seed)
    arrays = [
        rng.integers(0, 2, size).astype(DTYPES[(seed + n) % len(DTYPES)])
        for n, size in enumerate(sizes)
    ]
    return Message(Meta(sender=sender, recipient=8, timestamp=seed, body={"seed": seed}), arrays)


def assert_same(got: Message, sent: Message) -> None:
    assert got.meta == sent.meta
    assert len(got.arrays) == len(sent.arrays)
    for array, expected in zip(got.arrays, sent.arrays, strict=True):
        assert array.dtype == expected.dtype
        assert not array.flags.writeable
        np.testing.assert_array_equal(array, expected)


SIZES = st.lists(st.sampled_from([0, 1, 3, 8191, 65536, 70_000, 200_001]), max_size=4)


@settings(max_examples=40, deadline=None, derandomize=True)
@given(SIZES, SIZES, st.randoms(use_true_random=False))
def test_interleaved_pieces_of_two_messages_become_both(first, second, chance) -> None:
    sent = [random_message(1, first), random_message(2, second)]
    lines = [pieces_of(message, n) for n, message in enumerate(sent)]
    reassembler, got = Reassembler(CONFIG), []

    while any(lines):
        line = chance.choice([line for line in lines if line])
        whole = reassembler.add(b"a", line.pop(0))
        reassembler.validate()
        if whole is not None:
            got.append(whole)

    assert reassembler.held == 0
    for message in got:
        assert_same(message, sent[message.meta.timestamp - 1])
        assert message.is_ours
    assert len(got) == 2


def test_pieces_share_memory_with_what_they_are_cut_from() -> None:
    array = np.zeros(100_000)

    pieces = cut(Meta(), encode(Message(Meta(), [array]), CONFIG), 1, CONFIG)

    assert all(np.shares_memory(piece[-1], array) for piece in pieces)


def test_a_message_with_as_many_arrays_as_may_be_is_cut_too() -> None:
    few = VanConfig(chunk=65536, max_frames=8)
    message = random_message(1, [9000] * 8)
    reassembler = Reassembler(few)

    got = [reassembler.add(b"a", piece) for piece in pieces_of(message, config=few)]

    assert_same(got[-1], message)


@pytest.mark.parametrize("lost", [0, 1, 2])
def test_a_message_with_a_lost_piece_is_refused_and_forgotten(lost: int) -> None:
    pieces = pieces_of(random_message(1, [200_001]))
    del pieces[lost]
    reassembler = Reassembler(CONFIG)
    refused = 0
    for piece in pieces:
        try:
            assert reassembler.add(b"a", piece) is None
        except CodecError:
            refused += 1

    assert refused
    assert reassembler.held == 0


def test_first_pieces_without_bytes_of_arrays_are_held_up_to_a_limit_too() -> None:
    small = VanConfig(chunk=65536, max_frame=100_000)
    reassembler = Reassembler(small)
    header = np.frombuffer(encode(Message(Meta(sender=9, body="x" * 1000)), small)[0], np.uint8)
    for number in range(1000):
        meta = Meta(sender=1000 + number, timestamp=1, chunk=(0, 2))
        reassembler.add(b"%d" % number, Message(meta, [header]))
        reassembler.validate()

    assert 0 < reassembler.held <= 2 * small.max_frame
    with pytest.raises(CodecError, match="does not follow"):  # the stalest were forgotten
        reassembler.add(b"0", Message(Meta(sender=1000, timestamp=1, chunk=(1, 2))))


def test_pieces_with_too_many_or_too_few_bytes_are_refused() -> None:
    for change in (1, -1):
        pieces = pieces_of(random_message(1, [200_001]))
        last = pieces[-1].arrays[-1]
        pieces[-1].arrays[-1] = np.resize(last, last.size + change)
        reassembler = Reassembler(CONFIG)
        for piece in pieces[:-1]:
            reassembler.add(b"a", piece)

        with pytest.raises(CodecError, match="bytes than their message"):
            reassembler.add(b"a", pieces[-1])

        assert reassembler.held == 0


def test_a_declared_size_takes_no_memory_and_one_over_the_limit_is_refused() -> None:
    huge = VanConfig(chunk=65536, max_frame=1 << 40)
    frames = encode(Message(Meta(), [np.zeros(100_000)]), huge)
    fields = msgpack.unpackb(frames[0])
    fields[24] = [[0, [1 << 31], None]]
    first = pieces_of(random_message(1, [200_001]))[0]
    first.arrays[0] = np.frombuffer(msgpack.packb(fields), np.uint8)

    with pytest.raises(CodecError, match="max_frame"):
        Reassembler(CONFIG).add(b"a", first)
    reassembler = Reassembler(huge)
    reassembler.add(b"a", first)

    assert reassembler.held < 200_000


def test_a_node_that_comes_back_on_another_connection_loses_what_was_incomplete() -> None:
    reassembler = Reassembler(CONFIG)
    old, new = pieces_of(random_message(1, [200_001])), pieces_of(random_message(2, [200_001]))
    reassembler.add(b"old", old[0])

    got = [reassembler.add(b"new", piece) for piece in new]

    assert got[-1] is not None
    assert reassembler.held == 0
    with pytest.raises(CodecError):
        reassembler.add(b"old", old[1])


def test_incomplete_messages_are_held_up_to_a_limit() -> None:
    small = VanConfig(chunk=65536, max_frame=300_000)
    reassembler = Reassembler(small)
    for sender in range(20):
        pieces = pieces_of(random_message(1, [200_001], sender=100 + sender), config=small)
        reassembler.add(b"%d" % sender, pieces[0])
        reassembler.add(b"%d" % sender, pieces[1])
        reassembler.validate()

        assert reassembler.held <= 2 * small.max_frame


def test_memory_of_a_message_is_used_again_once_nobody_has_it() -> None:
    reassembler = Reassembler(CONFIG)

    def receive() -> Message:
        for piece in pieces_of(random_message(1, [200_001])):
            whole = reassembler.add(b"a", piece)
        assert whole is not None
        return whole

    first, second = receive(), receive()
    assert not np.shares_memory(first.arrays[0], second.arrays[0])
    place = first.arrays[0].ctypes.data
    del first

    assert receive().arrays[0].ctypes.data == place
