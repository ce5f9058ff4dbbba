"""Each kernel of compression against its formula in NumPy, to the bit."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv.kernels import onebit, quantise, residuals, topk
from tests.kv.compression.values import (
    DIMS,
    GREATEST,
    KINDS,
    SEEDS,
    assert_same,
    bfloats_in_numpy,
    bits,
    bytes_in_numpy,
    floats,
    gaps_in_numpy,
    halves_in_numpy,
    largest_in_numpy,
    means_in_numpy,
    read_only,
)

KIND = st.sampled_from(KINDS)
COUNTS = st.integers(0, 600)


@given(COUNTS, KIND, SEEDS)
def test_the_greatest_magnitude(count: int, kind: str, seed: int) -> None:
    x = floats(count, kind, seed)

    found = quantise.greatest_magnitude(read_only(x))

    assert found == int(bits(np.abs(x)).max(initial=0))


@given(COUNTS, KIND, SEEDS, st.integers(-20, 20))
def test_halves_are_the_nearest_ones_and_the_error_is_what_they_lack(
    count: int, kind: str, seed: int, shift: int
) -> None:
    x = floats(count, kind, seed)
    x = np.clip(x, -np.float32(2.0 ** (15 - shift)), np.float32(2.0 ** (15 - shift)))
    error, codes, back = x.copy(), np.empty(count, np.uint16), np.empty(count, np.float32)

    quantise.to_halves(error, np.float32(2.0**shift), np.float32(2.0**-shift), codes)
    quantise.from_halves(read_only(codes), np.float32(2.0**-shift), back)

    expected, values = halves_in_numpy(x, shift)
    np.testing.assert_array_equal(codes, expected)
    assert_same(back, values)
    np.testing.assert_array_equal(error, x - values)
    np.testing.assert_array_equal(error.astype(np.float64) + back, x)  # nothing is lost


@given(COUNTS, KIND, SEEDS)
def test_bfloats_are_the_nearest_ones_and_finite(count: int, kind: str, seed: int) -> None:
    x = floats(count, kind, seed)
    error, codes, back = x.copy(), np.empty(count, np.uint16), np.empty(count, np.float32)

    quantise.to_bfloats(error, codes)
    quantise.from_bfloats(read_only(codes), back)

    expected, values = bfloats_in_numpy(x)
    np.testing.assert_array_equal(codes, expected)
    assert np.isfinite(back).all()
    assert_same(back, values)
    np.testing.assert_array_equal(error.astype(np.float64) + back, x)


@given(COUNTS, KIND, SEEDS, DIMS)
def test_bytes_are_whole_steps_of_each_run(count: int, kind: str, seed: int, width: int) -> None:
    x = floats(count, kind, seed)
    runs = -(-count // width)
    error, codes, back = x.copy(), np.empty(count, np.int8), np.empty(count, np.float32)
    scales = np.empty(runs, np.float32)

    quantise.to_bytes(error, width, scales, codes)
    quantise.from_bytes(read_only(codes), width, read_only(scales), back)

    steps, expected, values = bytes_in_numpy(x, width)
    np.testing.assert_array_equal(scales, steps)
    np.testing.assert_array_equal(codes, expected)
    np.testing.assert_array_equal(back, values)
    assert_same(error, x - values)
    largest = np.repeat(scales, width)[:count]
    assert (np.abs(error) <= largest * np.float32(0.5001) + np.float32(1e-44)).all() or kind in (
        "tiny",
        "special",
    )


@given(st.integers(0, 40), DIMS, KIND, SEEDS, st.booleans())
def test_one_bit_stands_for_the_mean_of_its_side(
    rows: int, dim: int, kind: str, seed: int, by_row: bool
) -> None:
    x = floats(rows * dim, kind, seed).reshape(rows, dim)
    means = np.empty((2, rows if by_row else dim), np.float32)
    lanes = 16 if by_row else dim
    sums, counts = np.empty((2, lanes)), np.empty((2, lanes), np.int64)
    error, signs = x.copy(), np.zeros(-(-x.size // 8), np.uint8)
    back = np.empty_like(x)

    (onebit.row_means if by_row else onebit.column_means)(read_only(x), sums, counts, means)
    onebit.to_signs(error, read_only(means), by_row, signs)
    onebit.from_signs(
        read_only(signs), read_only(means).view(np.uint32), by_row, back.view(np.uint32)
    )

    np.testing.assert_allclose(means, means_in_numpy(x, int(by_row)), rtol=1e-6, atol=1e-45)
    expected = np.packbits((x >= 0).reshape(-1), bitorder="little")
    np.testing.assert_array_equal(signs, expected)
    sides = means[:, :, None] if by_row else means[:, None, :]
    assert_same(back, np.where(x >= 0, sides[1], sides[0]))
    with np.errstate(over="ignore"):
        assert_same(error, x - back)


@given(st.integers(1, 600), KIND, SEEDS, st.floats(0, 1))
def test_the_largest_are_taken_and_put_back(count: int, kind: str, seed: int, share: float) -> None:
    x = floats(count, kind, seed)
    wanted = max(1, round(share * count))
    mask, target = np.zeros(-(-count // 8), np.uint8), np.full(count, 7, np.float32)

    bins = np.empty(topk.BINS, np.int64)
    threshold, equals, taken = topk.threshold_of(read_only(x), wanted, bins)
    values = np.empty(taken, np.float32)
    nbytes = topk.take_largest(read_only(x), threshold, equals, mask, values)
    gaps = np.empty(nbytes, np.uint8)
    topk.to_gaps(read_only(mask), count, gaps)

    chosen = largest_in_numpy(x, wanted)
    np.testing.assert_array_equal(np.unpackbits(mask, count=count, bitorder="little"), chosen)
    assert_same(values, x[chosen])
    assert gaps.tolist() == gaps_in_numpy(chosen)
    expected = np.where(chosen, x, np.float32(7))
    for put, places in ((topk.put_by_mask, mask), (topk.put_by_gaps, gaps)):
        target[:] = 7
        assert put(read_only(places), read_only(values), target)
        assert_same(target, expected)


@pytest.mark.parametrize("first", [0, 254, 255, 256, 509, 510, 511, 765])
def test_long_gaps_come_back(first: int) -> None:
    chosen = np.zeros(800, np.bool_)
    chosen[[first, 799]] = True
    mask = np.packbits(chosen, bitorder="little")
    gaps = np.empty(len(gaps_in_numpy(chosen)), np.uint8)
    target = np.zeros(800, np.float32)

    topk.to_gaps(read_only(mask), 800, gaps)
    is_right = topk.put_by_gaps(read_only(gaps), read_only(np.ones(2, np.float32)), target)

    assert is_right
    assert gaps.tolist() == gaps_in_numpy(chosen)
    np.testing.assert_array_equal(target, chosen)


@given(st.binary(max_size=60), st.integers(0, 300), st.integers(0, 60), st.booleans())
def test_places_from_elsewhere_lead_nowhere_else(
    data: bytes, size: int, count: int, by_mask: bool
) -> None:
    around = np.full(size + 2, 5, np.float32)
    target = around[1:-1]
    values = read_only(np.ones(count, np.float32))
    if by_mask:
        data = (data + bytes(size))[: -(-size // 8)]
        is_right = topk.put_by_mask(np.frombuffer(data, np.uint8), values, target)
    else:
        is_right = topk.put_by_gaps(np.frombuffer(data, np.uint8), values, target)

    assert around[0] == around[-1] == 5
    if is_right:
        assert (target == 1).sum() == count


@given(st.integers(0, 50), DIMS, KIND, SEEDS)
def test_residuals_are_added_and_kept(rows: int, dim: int, kind: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    grads = floats(rows * dim, kind, seed).reshape(rows, dim)
    data = floats(60 * dim, kind, seed + 1).reshape(60, dim)
    places = rng.permutation(60)[:rows].astype(np.int64)
    places[rng.random(rows) < 0.2] = -1
    out, before = np.empty_like(grads), data.copy()

    residuals.add_residuals(read_only(grads), data, places, out)

    there = places >= 0
    expected = grads.astype(np.float64)
    expected[there] += before[places[there]]
    np.testing.assert_array_equal(out, np.clip(expected, -GREATEST, GREATEST).astype(np.float32))
    assert np.isfinite(out).all()
    assert_same(data, before)

    lost = residuals.put_residuals(data, places, read_only(grads))

    before[places[there]] = grads[there]
    assert_same(data, before)
    assert lost == pytest.approx(np.abs(grads[~there].astype(np.float64)).sum())


@given(st.integers(0, 50), DIMS, SEEDS)
def test_what_was_sent_in_vain_comes_back(rows: int, dim: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    data = floats(60 * dim, "plain", seed).reshape(60, dim)
    sent, grads = (floats(rows * dim, "plain", seed + n).reshape(rows, dim) for n in (1, 2))
    places = rng.permutation(60)[:rows].astype(np.int64)
    expected = data.copy()
    expected[places] += sent - grads

    lost = residuals.return_residuals(data, places, read_only(sent), read_only(grads))

    assert lost == 0
    assert_same(data, expected)


@given(st.integers(0, 50), DIMS, KIND, SEEDS)
def test_the_length_of_rows(rows: int, dim: int, kind: str, seed: int) -> None:
    x = floats(rows * dim, kind, seed).reshape(rows, dim)
    out = np.empty(rows)

    residuals.row_squares(read_only(x), out)

    np.testing.assert_allclose(out, (x.astype(np.float64) ** 2).sum(axis=1), rtol=1e-12)


@given(st.integers(0, 50), DIMS, KIND, SEEDS)
def test_differences_and_the_updates_that_they_make(
    rows: int, dim: int, kind: str, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    x = floats(rows * dim, kind, seed).reshape(rows, dim)
    data = floats(60 * dim, kind, seed + 1).reshape(60, dim)
    places = rng.permutation(60)[:rows].astype(np.int64)
    places[rng.random(rows) < 0.2] = -1
    there, last = places >= 0, data.copy()
    difference = x.copy()

    residuals.subtract_rows(data, places, difference)

    expected = x.astype(np.float64)
    expected[there] -= last[places[there]]
    clipped = np.clip(expected, -GREATEST, GREATEST).astype(np.float32)
    np.testing.assert_array_equal(difference, clipped)

    residuals.advance_rows(data, places, difference)

    update = clipped.astype(np.float64)
    update[there] += last[places[there]]
    made = np.clip(update, -GREATEST, GREATEST).astype(np.float32)
    np.testing.assert_array_equal(difference, made)
    last[places[there]] = made[there]
    np.testing.assert_array_equal(data, last)
