"""Keys as differences: nothing is lost, and nothing from elsewhere is believed."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from kv.errors import KVError
from kv.kernels import deltas
from kv.kernels.jit import frozen
from kv.keylists.coding import decode, encode

LAST = 2**64 - 1


def increasing(rng: np.random.Generator, count: int, bits: int) -> np.ndarray:
    """Distinct keys below 2^bits, and now and then one from the whole range."""
    keys = rng.integers(0, 2**bits, count, dtype=np.uint64, endpoint=False)
    if count and rng.integers(2):
        keys[0] = rng.integers(0, LAST, dtype=np.uint64, endpoint=True)
    return np.unique(keys)


@given(count=st.integers(0, 700), bits=st.integers(1, 63), seed=st.integers(0, 2**32 - 1))
def test_what_is_coded_is_decoded(count: int, bits: int, seed: int) -> None:
    keys = frozen(increasing(np.random.default_rng(seed), count, bits))

    coded = encode(keys)

    if coded is not None:
        assert coded.nbytes <= 0.8 * keys.nbytes
        np.testing.assert_array_equal(decode(frozen(coded)), keys)


@pytest.mark.parametrize("step", [1, 2, 255, 256, 257, 2**16, 2**16 + 1, 2**32 + 1, 2**55])
@pytest.mark.parametrize("count", [2, 64, 65, 66, 129])
def test_every_width_comes_back(step: int, count: int) -> None:
    keys = np.uint64(LAST) - np.arange(count, dtype=np.uint64)[::-1] * np.uint64(step)
    keys = keys[:1] if step * count > LAST else keys
    widths = np.empty(deltas.blocks_of(keys.size), np.uint8)
    out = np.empty(deltas.measure(frozen(keys), widths), np.uint8)
    back = np.empty_like(keys)

    deltas.write(frozen(keys), widths, out)
    is_right = deltas.read(keys[0], frozen(widths), frozen(out), back)

    assert is_right
    np.testing.assert_array_equal(back, keys)


def test_ids_of_a_small_range_take_an_eighth_and_few_spread_ones_are_left_alone() -> None:
    close = np.arange(0, 100_000, 3, dtype=np.uint64)
    spread = np.sort(np.random.default_rng(1).integers(0, LAST, 300, dtype=np.uint64))

    coded = encode(close)

    assert coded is not None
    assert coded.nbytes < close.nbytes / 7
    assert encode(spread) is None


@given(data=st.binary(max_size=200))
@example(data=b"\xff" * 8 + bytes(8))
@example(data=(2).to_bytes(8, "little") + b"\xff" * 8 + b"\x01\x00")
@example(data=(2).to_bytes(8, "little") + bytes(8) + b"\x08" + b"\xff" * 8)
def test_any_bytes_are_increasing_keys_or_refused(data: bytes) -> None:
    try:
        keys = decode(np.frombuffer(data, np.uint8))
    except KVError:
        return

    assert (keys[1:] > keys[:-1]).all()


@given(
    count=st.integers(2, 300),
    place=st.integers(0, 400),
    value=st.integers(0, 255),
    cut=st.integers(-3, 3),
)
def test_a_changed_or_cut_list_is_increasing_keys_or_refused(
    count: int, place: int, value: int, cut: int
) -> None:
    coded = encode(np.cumsum(np.full(count, 300, np.uint64)))
    if coded is None:
        return
    bad = np.concatenate([coded, np.zeros(3, np.uint8)])[: coded.size + cut]
    bad[place % bad.size] = value

    try:
        keys = decode(frozen(bad))
    except KVError:
        return

    assert (keys[1:] > keys[:-1]).all()


@pytest.mark.parametrize(
    "wrong",
    [np.zeros(20, np.int8), np.zeros((4, 5), np.uint8), np.zeros(15, np.uint8)],
)
def test_other_arrays_are_no_coded_keys(wrong: np.ndarray) -> None:
    with pytest.raises(KVError, match="coded keys"):
        decode(wrong)
