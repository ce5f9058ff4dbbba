"""Key lists in any order against np.unique, and sums against a loop."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kv.kernels import merge
from kv.kernels.jit import frozen
from kv.kernels.merge import add_rows, first_not_finite, first_unsorted, merge_keys
from kv.kernels.sums import sum_parts

LAST = 2**64 - 1
anywhere = st.integers(0, LAST)
near_an_end = st.one_of(st.integers(0, 5), st.integers(LAST - 5, LAST), st.just(2**63))
fields = st.builds(lambda field, key: field << 48 | key, st.integers(0, 60), st.integers(0, 9))
key_lists = st.one_of(
    arrays(np.uint64, st.integers(0, 60), elements=e) for e in (anywhere, near_an_end, fields)
)


@given(key_lists)
def test_merging_agrees_with_numpy(keys: np.ndarray) -> None:
    unique, inverse = merge_keys(frozen(keys))

    expected, places = np.unique(keys, return_inverse=True)
    np.testing.assert_array_equal(unique, expected)
    if inverse is None:
        np.testing.assert_array_equal(unique, keys)
    else:
        np.testing.assert_array_equal(inverse, places)


@pytest.mark.parametrize("size", [3, 1000, 70_000])
@pytest.mark.parametrize("shift", [0, 40, 63])
def test_large_lists_merge_also_where_packed_words_lose_bits(size: int, shift: int) -> None:
    rng = np.random.default_rng(size + shift)
    low = rng.integers(0, size, size).astype(np.uint64)  # crowded: many differ in low bits only
    high = rng.integers(0, 2, size).astype(np.uint64) << np.uint64(shift)
    spread = rng.integers(0, 2**64, size, dtype=np.uint64)
    for keys in (low | high, spread, np.where(low % 2 == 0, low, spread)):
        unique, inverse = merge_keys(frozen(keys))

        expected, places = np.unique(keys, return_inverse=True)
        np.testing.assert_array_equal(unique, expected)
        np.testing.assert_array_equal(inverse, places)


def test_settling_gives_up_on_too_many_ties_and_the_list_still_merges() -> None:
    size = 4096
    rng = np.random.default_rng(1)
    middle = 2**63 - size // 2  # every bit varies, the keys differ in the low 12 only
    keys = frozen(rng.permutation(size).astype(np.uint64) + np.uint64(middle))
    bits = np.uint64((size - 1).bit_length())
    words = np.empty(size, np.uint64)

    assert merge.pack(keys, bits, words)
    words.sort()
    assert not merge.settle(keys, bits, words)
    unique, inverse = merge_keys(keys)

    np.testing.assert_array_equal(unique, np.sort(keys))
    np.testing.assert_array_equal(unique[inverse], keys)


@given(key_lists)
def test_the_first_unsorted_position_is_found(keys: np.ndarray) -> None:
    position = first_unsorted(frozen(keys))

    falls = np.flatnonzero(keys[1:] <= keys[:-1]) + 1
    assert position == (falls[0] if falls.size else keys.size)
    assert position == first_unsorted.py_func(keys)


def test_sorted_lists_are_returned_as_they_are() -> None:
    keys = frozen(np.array([0, 5, LAST], np.uint64))

    unique, inverse = merge_keys(keys)

    assert unique is keys
    assert inverse is None


@given(n=st.integers(0, 60), m=st.integers(1, 9), dim=st.integers(1, 40), seed=st.integers(0, 99))
def test_rows_add_up_in_order_of_occurrence(n: int, m: int, dim: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    places = rng.integers(0, m, n)
    grads = (rng.standard_normal((n, dim)) * 10.0 ** rng.integers(-6, 6)).astype(np.float32)
    sums = np.full((m, dim), -0.0, np.float32)
    expected = sums.copy()

    add_rows(sums, places, frozen(grads))

    np.add.at(expected, places, grads)  # unbuffered, in order
    assert sums.tobytes() == expected.tobytes()


def test_a_sum_of_negative_zeros_stays_negative() -> None:
    sums = np.full((1, 1), -0.0, np.float32)

    add_rows(sums, np.zeros(2, np.int64), frozen(np.full((2, 1), -0.0, np.float32)))

    assert np.signbit(sums).all()


@given(
    values=arrays(np.float32, st.integers(0, 3000), elements=st.just(1.5)),
    place=st.integers(0, 3000),
    odd=st.sampled_from([np.nan, np.inf, -np.inf, 3.4e38, 1e-45]),
)
def test_the_first_number_that_is_not_finite_is_found(
    values: np.ndarray, place: int, odd: float
) -> None:
    values = values.copy()
    if place < values.size:
        values[place:] = odd

    found = first_not_finite(frozen(values).view(np.uint32))

    wrong = np.flatnonzero(~np.isfinite(values))
    assert found == (wrong[0] if wrong.size else values.size)
    assert found == first_not_finite.py_func(values.view(np.uint32))


@given(
    key_sets=st.lists(st.sets(near_an_end, max_size=8), min_size=1, max_size=5),
    dim=st.integers(1, 5),
    seed=st.integers(0, 99),
)
def test_parts_add_up_key_by_key_in_the_given_order(
    key_sets: list[set[int]], dim: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    parts = []
    for chosen in key_sets:
        keys = np.array(sorted(chosen), np.uint64)
        parts.append((keys, rng.standard_normal((keys.size, dim)).astype(np.float32)))

    keys, sums = sum_parts(parts)

    expected: dict[int, np.ndarray] = {}
    for part_keys, grads in parts:
        for key, grad in zip(part_keys.tolist(), grads, strict=True):
            expected[key] = expected[key] + grad if key in expected else grad
    assert keys.tolist() == sorted(expected)
    assert sums.tobytes() == b"".join(expected[key].tobytes() for key in sorted(expected))
