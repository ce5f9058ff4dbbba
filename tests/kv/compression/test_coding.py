"""Rows to packets and back: what a packet says and what it leaves make the rows again."""

from __future__ import annotations

import importlib.util

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kv.compression import packets
from kv.compression.coding import NAMED, OUTRIGHT, WHOLE, decode, encode
from kv.compression.schemes import Chain
from kv.errors import PacketError
from tests.kv.compression.values import KINDS, SEEDS, floats, read_only

has_zstd = importlib.util.find_spec("zstandard") is not None
CHAINS = [
    "fp16",
    "bf16",
    "int8",
    "onebit",
    "topk:0.1",
    "topk:0.6",
    "topk:0.1+fp16",
    "topk:0.3+bf16",
    "topk:0.3+int8",
    "topk:0.2+onebit",
    "topk:0.3:rows=1",
    "topk:0.3:rows=1+int8",
    "selective:relative=0.7",
    "selective:0.5+onebit",
    "selective:relative=0.7+topk:0.2+fp16",
]
ZSTD_CHAINS = ["zstd", "fp16+zstd", "int8+zstd:3", "topk:0.1+zstd", "selective:0.5+onebit+zstd"]
ALL_CHAINS = CHAINS + (ZSTD_CHAINS if has_zstd else [])
ROWS = st.integers(0, 60)
SOME_DIMS = st.sampled_from([1, 2, 3, 8, 17, 64])


def whole(found: object, rows: int, dim: int) -> np.ndarray:
    """What is decoded, with zeros where rows are absent."""
    values = np.zeros((rows, dim), np.float32)
    values[slice(None) if found.kept is None else found.kept] = found.values  # type: ignore[attr-defined]
    return values


@settings(max_examples=60)
@given(ROWS, SOME_DIMS, st.sampled_from(KINDS), SEEDS, st.sampled_from(ALL_CHAINS), st.booleans())
def test_what_is_decoded_and_what_is_left_make_the_rows(
    rows: int, dim: int, kind: str, seed: int, text: str, by_row: bool
) -> None:
    x = floats(rows * dim, kind, seed).reshape(rows, dim)
    left = x.copy()

    packet = encode(Chain.parse(text), left, NAMED, by_row)
    found = decode(read_only(packet.frame), rows, dim)

    assert found.values.flags.c_contiguous
    assert np.isfinite(found.values).all()
    np.testing.assert_array_equal(
        np.ones(rows, np.bool_) if found.kept is None else found.kept,
        np.ones(rows, np.bool_) if packet.kept is None else packet.kept,
    )
    got = whole(found, rows, dim).astype(np.float64)
    # Nothing is lost but the rounding of a difference, half a unit in the last place of the larger.
    assert (np.abs(got + left - x) <= 2.0**-24 * np.maximum(np.abs(got), np.abs(x))).all()
    if not Chain.parse(text).loses:
        assert not left.any()


@pytest.mark.parametrize("text", ["fp16", "bf16", "topk:0.1", "topk:0.1+fp16", "topk:0.3:rows=1"])
@given(ROWS, st.sampled_from(KINDS), SEEDS)
def test_of_these_schemes_nothing_at_all_is_lost(
    text: str, rows: int, kind: str, seed: int
) -> None:
    x = floats(rows * 8, kind, seed).reshape(rows, 8)
    left = x.copy()

    packet = encode(Chain.parse(text), left)

    again = whole(decode(packet.frame, rows, 8), rows, 8).astype(np.float64) + left
    np.testing.assert_array_equal(again, x)


@pytest.mark.parametrize("text", ["selective:relative=1", "topk:0.2:rows=1+fp16"])
def test_rows_that_are_left_out_are_absent_zeros_or_not_even_counted(text: str) -> None:
    x = floats(30 * 4, "plain", 1).reshape(30, 4)
    chain = Chain.parse(text)

    named, outright, zeros = (encode(chain, x.copy(), how) for how in (NAMED, OUTRIGHT, WHOLE))

    assert named.kept is not None
    count = int(named.kept.sum())
    assert 0 < count < 30
    plain = decode(outright.frame, count, 4)
    assert plain.kept is None
    np.testing.assert_array_equal(decode(named.frame, 30, 4).values, plain.values)
    found = decode(zeros.frame, 30, 4).whole()
    assert found.kept is None
    np.testing.assert_array_equal(found.values[named.kept], plain.values)
    assert not found.values[~named.kept].any()


@given(st.integers(1, 200), st.sampled_from(KINDS), SEEDS)
def test_halves_are_scaled_so_that_the_largest_keeps_all_its_bits(
    rows: int, kind: str, seed: int
) -> None:
    x = floats(rows, kind, seed).reshape(rows, 1)

    values = decode(encode(Chain.parse("fp16"), x.copy()).frame, rows, 1).values

    greatest = np.abs(x).max()
    np.testing.assert_allclose(
        values, x, rtol=2**-11, atol=max(float(greatest) * 2.0**-39, 2.0**-149)
    )


def test_one_bit_of_columns_or_of_rows() -> None:
    x = np.array([[1, -20], [3, -40], [-2, 60]], np.float32)

    columns = decode(encode(Chain.parse("onebit"), x.copy()).frame, 3, 2)
    rows = decode(encode(Chain.parse("onebit"), x.copy(), by_row=True).frame, 3, 2)

    np.testing.assert_array_equal(columns.values, [[2, -30], [2, -30], [-2, 60]])
    np.testing.assert_array_equal(rows.values, x)


def test_narrow_rows_share_the_scales_of_bytes() -> None:
    x = floats(1000, "plain", 2).reshape(1000, 1)

    packet = encode(Chain.parse("int8"), x.copy())

    assert packet.frame.nbytes < 0.36 * x.nbytes  # a scale for each number would make it larger
    np.testing.assert_allclose(decode(packet.frame, 1000, 1).values, x, atol=4 / 250)


@pytest.mark.parametrize(("text", "share"), [
    ("fp16", 0.5), ("bf16", 0.5), ("int8", 0.3125), ("onebit", 0.033), ("topk:0.1", 0.126),
    ("topk:0.01", 0.0131), ("topk:0.5", 0.532), ("topk:0.1+fp16", 0.076), ("topk:0.1:rows=1", 0.11),
])  # fmt: skip
def test_the_size_of_packets(text: str, share: float) -> None:
    x = floats(2000 * 16, "plain", 3).reshape(2000, 16)

    packet = encode(Chain.parse(text), x.copy())

    assert packet.frame.nbytes <= share * x.nbytes + 24


def test_an_array_that_is_not_contiguous_is_read_as_any_other() -> None:
    x = floats(100 * 8, "plain", 4).reshape(100, 8)
    packet = encode(Chain.parse("topk:0.2+int8"), x.copy())
    spread = np.zeros(2 * packet.frame.size + 1, np.uint8)
    spread[1::2] = packet.frame
    shifted = np.concatenate([np.zeros(1, np.uint8), packet.frame])

    expected = decode(packet.frame, 100, 8).values

    np.testing.assert_array_equal(decode(spread[1::2], 100, 8).values, expected)
    np.testing.assert_array_equal(decode(shifted[1:], 100, 8).values, expected)


# -- what comes from elsewhere ---------------------------------------------------------------


def sample(text: str, rows: int = 40, dim: int = 8) -> np.ndarray:
    x = floats(rows * dim, "plain", 5).reshape(rows, dim)
    return encode(Chain.parse(text), x, NAMED).frame


def fails(frame: np.ndarray, rows: int = 40, dim: int = 8) -> str:
    with pytest.raises(PacketError) as caught:
        decode(frame, rows, dim)
    return str(caught.value)


def changed(frame: np.ndarray, place: int, *values: int) -> np.ndarray:
    copy = frame.copy()
    copy[place : place + len(values)] = values
    return copy


@pytest.mark.parametrize("text", ALL_CHAINS)
def test_packets_of_other_rows_or_sizes_are_refused(text: str) -> None:
    frame = sample(text)

    for rows, dim in ((41, 8), (40, 7), (0, 8), (40 * 8, 1), (1 << 40, 1 << 20)):
        assert f"{rows} rows of {dim} floats" in fails(frame, rows, dim)
    fails(frame[:-1])
    fails(frame[:10])
    fails(frame[:0])
    if "zstd" not in text:
        fails(np.concatenate([frame, frame[:1]]))


@pytest.mark.parametrize(("place", "values", "words"), [
    (0, [2], "version 1, not 2"),
    (1, [5], "no kind 5"),
    (2, [0x80], "flags 0x80"),
    (2, [12], "do not fit"),
    (2, [2], "do not fit"),
    (2, [64], "do not fit"),
    (12, [39], "39 of 40 rows"),
    (12, [41], "41 of 40 rows"),
    (16, [65], "of 320 numbers"),
    (16, [0xFF, 0xFF, 0xFF, 0xFF], "of 320 numbers"),
])  # fmt: skip
def test_each_field_is_checked(place: int, values: list[int], words: str) -> None:
    assert words in fails(changed(sample("fp16"), place, *values))


def test_masks_and_gaps_must_lead_to_as_many_places_as_there_are_numbers() -> None:
    by_mask, by_gaps = sample("topk:0.5"), sample("topk:0.1")

    assert by_mask[2] == packets.BY_MASK
    assert by_gaps[2] == packets.BY_GAPS
    assert "places of" in fails(changed(by_mask, by_mask.size - 1, 0))
    assert "places of" in fails(changed(by_gaps, by_gaps.size - 1, 255))
    some = sample("topk:0.3:rows=1")
    assert "a mask of 12 rows" in fails(changed(some, some.size - 1, 0xFF))


@pytest.mark.skipif(not has_zstd, reason="the package zstandard is not installed")
@pytest.mark.parametrize("claimed", [0, 100, 1 << 31])
def test_a_packet_that_is_larger_inside_than_it_may_be_is_refused(claimed: int) -> None:
    import zstandard

    frame = sample("int8+zstd", 2000)
    bomb = zstandard.ZstdCompressor(level=19).compress(bytes(1 << 26))
    head = changed(frame[:24], 20, *claimed.to_bytes(4, "little"))

    assert "without compression" in fails(np.concatenate([head, frame[24:]]), 2000)
    hidden = np.concatenate([frame[:24], np.frombuffer(bomb, np.uint8)])
    assert "without compression" in fails(hidden, 2000)


@settings(max_examples=300)
@given(st.sampled_from(ALL_CHAINS), st.data())
def test_changed_packets_are_refused_or_mean_as_many_numbers(
    text: str, data: st.DataObject
) -> None:
    frame = sample(text).copy()
    for _ in range(data.draw(st.integers(1, 6))):
        place = data.draw(st.integers(0, min(frame.size - 1, 60)))
        frame[place] = data.draw(st.integers(0, 255))
    frame = frame[: frame.size - data.draw(st.sampled_from([0, 0, 1, 30]))]

    try:
        with np.errstate(all="ignore"):
            found = decode(read_only(frame), 40, 8)
    except PacketError:
        return

    count = 40 if found.kept is None else int(found.kept.sum())
    assert found.values.shape == (count, 8)
    assert found.values.dtype == np.float32


@settings(max_examples=300)
@given(st.binary(max_size=300), st.integers(0, 50), st.integers(1, 50))
def test_any_bytes_are_refused_or_mean_as_many_numbers(data: bytes, rows: int, dim: int) -> None:
    head = packets.Head(data[0] % 5 if data else 0, 0, rows, dim, rows, rows * dim).to_bytes()
    for frame in (data, head + data):
        try:
            found = decode(np.frombuffer(frame, np.uint8), rows, dim)
        except PacketError:
            continue
        assert found.values.shape == (rows, dim)


@pytest.mark.parametrize("frame", [np.zeros(30, np.float32), np.zeros((5, 6), np.uint8)])
def test_other_arrays_are_no_packets(frame: np.ndarray) -> None:
    assert "bytes or more, not" in fails(frame) or "20 bytes" in fails(frame)
