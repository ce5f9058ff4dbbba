"""The codec: what goes in comes out, and no bytes can do more than be refused."""

from __future__ import annotations

import dataclasses
import random
import re
from functools import partial
from pathlib import Path
from typing import Any

import msgpack
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from tests.security.mutator import bent
from van.codec import (
    DTYPES,
    decode,
    decode_header,
    decode_joined,
    encode,
    is_joined,
    join,
)
from van.config import VanConfig
from van.errors import CodecError, ProtocolVersionError
from van.message import PROTOCOL_VERSION, Control, Flag, Kind, Message, Meta

CONFIG = VanConfig()
read_header = partial(decode_header, config=CONFIG)
ROOT = Path(__file__).resolve().parents[2]
UINT64 = st.integers(0, 2**64 - 1)
INT32 = st.integers(-(2**31) + 1, 2**31 - 1)
CLOCKS = st.lists(
    st.tuples(UINT64, UINT64, st.lists(st.tuples(UINT64, UINT64), max_size=2).map(tuple)),
    max_size=2,
).map(tuple)
BODIES = st.recursive(
    st.none() | st.booleans() | UINT64 | st.text(max_size=5) | st.floats(allow_nan=False),
    lambda inner: st.dictionaries(st.text(max_size=3), inner, max_size=3),
    max_leaves=5,
)
METAS = st.builds(
    Meta,
    sender=UINT64,
    reply_to=st.text(max_size=20),
    recipient=UINT64,
    incarnation=UINT64,
    recipient_incarnation=UINT64,
    control=st.sampled_from(Control),
    flags=st.integers(0, 15).map(Flag),
    kind=st.sampled_from(Kind),
    app=UINT64,
    customer=UINT64,
    timestamp=UINT64,
    oldest=UINT64,
    piece=UINT64,
    epoch=UINT64,
    map_version=UINT64,
    cmd=INT32,
    priority=INT32,
    clocks=CLOCKS,
    constituents=st.lists(
        st.tuples(UINT64, UINT64, UINT64, UINT64, UINT64, UINT64, CLOCKS), max_size=2
    ).map(tuple),
    slots=st.none() | st.lists(UINT64, max_size=3).map(tuple),
    refused=st.lists(UINT64, max_size=3).map(tuple),
    key_list=UINT64,
    chunk=st.tuples(UINT64, UINT64),
    body=BODIES,
    error=st.none() | st.tuples(st.text(max_size=5), st.text(max_size=5), UINT64),
)
SHAPES = st.lists(st.integers(0, 4), max_size=3).map(tuple)
ARRAYS = st.builds(
    lambda dtype, shape, seed: np.random.default_rng(seed).integers(0, 2, shape).astype(dtype),
    st.sampled_from(DTYPES),
    SHAPES,
    st.integers(0, 9),
)


def as_bytes(message: Message) -> list[bytes]:
    return [bytes(memoryview(frame).cast("B")) if len(frame) else b"" for frame in frames(message)]


def frames(message: Message) -> list:
    return [f.reshape(-1) if isinstance(f, np.ndarray) else f for f in encode(message, CONFIG)]


@settings(max_examples=150, deadline=None, derandomize=True)
@given(METAS, st.lists(ARRAYS, max_size=3))
def test_a_message_comes_out_as_it_went_in(meta: Meta, arrays: list[np.ndarray]) -> None:
    decoded = decode(as_bytes(Message(meta, arrays)), CONFIG)

    assert decoded.meta == meta
    assert len(decoded.arrays) == len(arrays)
    for given_array, array in zip(arrays, decoded.arrays, strict=True):
        assert array.dtype == given_array.dtype
        np.testing.assert_array_equal(array, given_array)


@settings(max_examples=100, deadline=None, derandomize=True)
@given(METAS, st.lists(ARRAYS, max_size=3))
def test_a_message_in_one_frame_comes_out_as_it_went_in(
    meta: Meta, arrays: list[np.ndarray]
) -> None:
    frame = join(encode(Message(meta, arrays), CONFIG))

    decoded = decode_joined(frame, read_header)

    assert is_joined(frame)
    assert not is_joined(encode(Message(meta, arrays), CONFIG)[0])
    assert decoded.meta == meta
    for given_array, array in zip(arrays, decoded.arrays, strict=True):
        assert array.dtype == given_array.dtype
        assert array.flags.aligned
        np.testing.assert_array_equal(array, given_array)


def test_mutated_single_frames_are_decoded_or_refused_and_nothing_else() -> None:
    rng = random.Random(3)
    message = Message(Meta(body={"a": 1}), [np.arange(3, dtype=np.uint64), np.ones((2, 2))])
    frame = join(encode(message, CONFIG))
    refused = 0
    for _ in range(5000):
        (mutated, *_) = bent([frame], rng)
        try:
            decode_joined(mutated, read_header)
        except CodecError:
            refused += 1

    assert refused > 2000


def test_large_arrays_are_not_copied() -> None:
    array = np.arange(100_000, dtype=np.float32)

    _, frame = encode(Message(Meta(), [array]), CONFIG)
    decoded = decode(
        [encode(Message(Meta(), [array]), CONFIG)[0], memoryview(array).cast("B")], CONFIG
    )

    assert np.shares_memory(frame, array)
    assert np.shares_memory(decoded.arrays[0], array)
    assert not decoded.arrays[0].flags.writeable


def test_big_endian_and_strided_arrays_travel_by_value() -> None:
    array = np.arange(12, dtype=">f8").reshape(3, 4)[:, ::2]

    decoded = decode(as_bytes(Message(Meta(), [array])), CONFIG)

    np.testing.assert_array_equal(decoded.arrays[0], array)


def test_an_unaligned_frame_gives_an_aligned_array() -> None:
    header, frame = as_bytes(Message(Meta(), [np.arange(4, dtype=np.uint64)]))
    shifted = memoryview(b"x" + frame)[1:]

    decoded = decode([header, shifted], CONFIG)

    assert decoded.arrays[0].flags.aligned
    np.testing.assert_array_equal(decoded.arrays[0], np.arange(4, dtype=np.uint64))


@pytest.mark.parametrize("array", [np.array(["a"]), np.array([1j]), np.array([{}], dtype=object)])
def test_arrays_of_other_types_are_refused_by_name(array: np.ndarray) -> None:
    with pytest.raises(CodecError, match="do not travel"):
        encode(Message(Meta(), [array]), CONFIG)


def test_what_is_over_the_limits_is_not_sent() -> None:
    small = VanConfig(max_frame=100, max_header=1000, max_frames=2)
    with pytest.raises(CodecError, match="max_frame"):
        encode(Message(Meta(), [np.zeros(101, np.uint8)]), small)
    with pytest.raises(CodecError, match="max_header"):
        encode(Message(Meta(body="x" * 1000)), small)
    with pytest.raises(CodecError, match="max_frames"):
        encode(Message(Meta(), [np.zeros(1)] * 3), small)


@pytest.mark.parametrize("value", [1.5, True, "1", None])
@pytest.mark.parametrize("field", ["priority", "cmd"])
def test_what_a_receiver_would_drop_is_not_sent(field: str, value: Any) -> None:
    with pytest.raises(CodecError, match=f"{field} must be an integer, not {value!r}"):
        encode(Message(dataclasses.replace(Meta(), **{field: value})), CONFIG)


def test_another_version_is_named_with_its_sender_and_address() -> None:
    header = msgpack.packb([PROTOCOL_VERSION + 1, 9, "tcp://127.0.0.1:1", "anything"])

    with pytest.raises(ProtocolVersionError, match="node 9 speaks protocol version 2") as caught:
        decode_header(header, CONFIG)

    assert caught.value.reply_to == "tcp://127.0.0.1:1"


@pytest.mark.parametrize(
    "described",
    [
        [[0, [2**62, 4], None]],
        [[0, [0, 2**63], None]],
        [[99, [1], None]],
        [[0, [-1], None]],
        [[0, [1] * 20, None]],
        [[0, [1], "zip"]],
        [[0, 1, None]],
        ["x"],
        7,
    ],
)
def test_descriptions_of_impossible_arrays_are_refused(described: object) -> None:
    fields = list(msgpack.unpackb(encode(Message(Meta()), CONFIG)[0]))
    fields[24] = described

    with pytest.raises(CodecError):
        decode_header(msgpack.packb(fields), CONFIG)


def fuzz(count: int, seed: int) -> int:
    """Decode mutated messages; how many were refused. Anything but a CodecError escapes."""
    rng = random.Random(seed)
    meta = Meta(
        clocks=((1, 2, ((3, 4),)),), body={"a": [1, 2]}, slots=(1, 2), error=("E", "text", 8)
    )
    template = as_bytes(Message(meta, [np.arange(3, dtype=np.uint64), np.ones((2, 2))]))
    refused = 0
    for _ in range(count):
        try:
            decode(bent(template, rng), CONFIG)
        except CodecError:
            refused += 1
    return refused


@pytest.mark.parametrize(
    "count",
    [
        20_000,
        pytest.param(200_000, marks=pytest.mark.slow),
        pytest.param(1_000_000, marks=[pytest.mark.soak, pytest.mark.timeout(1200)]),
    ],
)
def test_mutated_messages_are_decoded_or_refused_and_nothing_else(count: int) -> None:
    assert fuzz(count, seed=1) > count // 2


def test_the_page_about_the_header_lists_its_fields_in_their_order() -> None:
    page = (ROOT / "docs" / "requests.md").read_text(encoding="utf-8")
    listed = re.findall(r"^\| \d+ \| `(\w+)` \|", page, re.MULTILINE)

    fields = [field.name for field in dataclasses.fields(Meta)]
    fields.insert(fields.index("body"), "frames")
    header = msgpack.unpackb(encode(Message(Meta()), CONFIG)[0])

    assert listed == ["version", *fields]
    assert len(header) == len(listed)
