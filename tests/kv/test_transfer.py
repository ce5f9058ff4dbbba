"""The kernels for values on their way, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv.kernels.digest import digest
from kv.kernels.jit import frozen
from kv.kernels.transfer import copy_finite, gather_pairs, pack_blocks, take_keys, unpack_blocks

SEEDS = st.integers(0, 2**32 - 1)
ODD = [np.float32(0), np.float32(np.nan), np.float32(np.inf), np.float32(-np.inf), np.float32(-0.0)]


def numbers(rng: np.random.Generator, shape: tuple[int, ...], odd: object) -> np.ndarray:
    """Normal numbers, one of which may be replaced; read-only."""
    values = rng.normal(size=shape).astype(np.float32)
    if odd is not None and values.size:
        values.reshape(-1)[rng.integers(values.size)] = odd
    return frozen(values)


def bits(values: np.ndarray) -> np.ndarray:
    return values.view(np.uint32)


@given(n=st.integers(0, 70), odd=st.sampled_from([None, *ODD]), seed=SEEDS)
def test_a_copy_says_whether_all_numbers_are_finite(n: int, odd: object, seed: int) -> None:
    values = numbers(np.random.default_rng(seed), (n,), odd)
    copy = np.empty(n, np.float32)

    is_finite = copy_finite(bits(values), bits(copy))

    assert is_finite == np.isfinite(values).all()
    assert copy.tobytes() == values.tobytes()


@given(n=st.integers(0, 40), dim=st.integers(1, 70), odd=st.sampled_from([None, *ODD]), seed=SEEDS)
def test_pairs_are_gathered_in_the_given_order(n: int, dim: int, odd: object, seed: int) -> None:
    rng = np.random.default_rng(seed)
    keys = frozen(rng.integers(0, 2**64, n, dtype=np.uint64))
    values, order = numbers(rng, (n, dim), odd), rng.permutation(n)
    out_keys, out_values = np.empty(n, np.uint64), np.empty((n, dim), np.float32)
    other_keys = np.empty(n, np.uint64)

    is_finite = gather_pairs(keys, bits(values), order, out_keys, bits(out_values))
    take_keys(keys, order, other_keys)

    assert is_finite == np.isfinite(values).all()
    np.testing.assert_array_equal(out_keys, keys[order])
    np.testing.assert_array_equal(other_keys, keys[order])
    assert out_values.tobytes() == values[order].tobytes()


@given(
    size=st.integers(0, 90), dim=st.integers(1, 17), odd=st.sampled_from([None, *ODD]), seed=SEEDS
)
def test_blocks_are_packed_with_zeros_and_unpacked_without(
    size: int, dim: int, odd: object, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    array, count = numbers(rng, (size,), odd), -(-size // dim)
    padded = np.zeros((count, dim), np.float32)
    padded.reshape(-1)[:size] = array
    groups = np.split(rng.permutation(count), [count // 3])
    back = np.full(size, 7, np.float32)

    is_finite = True
    for blocks in groups:
        out = np.full((blocks.size, dim), 5, np.float32)
        is_finite &= pack_blocks(bits(array), blocks, bits(out))
        assert out.tobytes() == padded[blocks].tobytes()
        unpack_blocks(frozen(out), blocks, back)

    assert is_finite == np.isfinite(array).all()
    assert back.tobytes() == array.tobytes()


@given(keys=st.sets(st.integers(0, 2**64 - 1), max_size=50), seed=SEEDS)
def test_a_digest_is_that_of_the_set(keys: set[int], seed: int) -> None:
    listed = np.array(sorted(keys), np.uint64)

    found = digest(frozen(listed), np.uint64(seed))

    assert found == digest(frozen(listed[::-1].copy()), np.uint64(seed))
    for i in range(len(listed)):
        other = listed.copy()
        other[i] ^= np.uint64(1)
        assert other[i] in keys or found != digest(frozen(other), np.uint64(seed))
        assert found != digest(frozen(np.delete(listed, i)), np.uint64(seed))


@pytest.mark.parametrize("size", [0, 1])
def test_a_digest_depends_on_the_seed(size: int) -> None:
    keys = frozen(np.arange(size, dtype=np.uint64))

    assert (digest(keys, np.uint64(1)) == digest(keys, np.uint64(2))) == (size == 0)
