"""Rows gathered, scattered, expanded and initialised, against NumPy."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv.initializers import (
    Constant,
    He,
    Initializer,
    Normal,
    Uniform,
    Xavier,
    Zeros,
    table_seed,
)
from kv.kernels import rows as kernels
from kv.kernels.jit import ahead_of, ask_rows, burst_of, frozen
from kv.placement import mix64

LAST = 2**64 - 1
GOLDEN = np.uint64(0x9E3779B97F4A7C15)
sizes = {"n": st.integers(0, 40), "width": st.integers(1, 70), "seed": st.integers(0, 99)}


def random_rows(n: int, width: int, seed: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """An arena of 50 rows, n distinct row numbers, n rows of values (read-only)."""
    rng = np.random.default_rng(seed)
    data = rng.standard_normal((50, width + 3)).astype(np.float32)
    return data, rng.permutation(50)[:n], frozen(rng.standard_normal((n, width)).astype("f4"))


@given(**sizes)
def test_gather_reads_what_indexing_reads(n: int, width: int, seed: int) -> None:
    data, rows, _ = random_rows(n, width, seed)
    out, plain = np.empty((n, width), np.float32), np.empty((n, width), np.float32)

    kernels.gather(data, rows, out)

    kernels.gather.py_func(data, rows, plain)
    np.testing.assert_array_equal(out, data[rows, :width])
    np.testing.assert_array_equal(plain, out)


@given(**sizes)
def test_gather_or_zero_reads_zeros_for_missing_rows(n: int, width: int, seed: int) -> None:
    data, rows, _ = random_rows(n, width, seed)
    rows[::3] = -1
    out = np.empty((n, width), np.float32)

    kernels.gather_or_zero(data, rows, out)

    np.testing.assert_array_equal(out, np.where(rows[:, None] < 0, 0, data[rows, :width]))


@given(**sizes)
def test_scatter_and_reset_write_their_own_columns_only(n: int, width: int, seed: int) -> None:
    data, rows, values = random_rows(n, width, seed)
    expected = data.copy()

    kernels.scatter(data, rows, values)
    kernels.reset_state(data, rows, width, np.float32(7))

    expected[rows, :width] = values
    expected[rows, width:] = 7
    np.testing.assert_array_equal(data, expected)


@given(**sizes)
def test_expand_repeats_rows_by_the_inverse(n: int, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    values = frozen(rng.standard_normal((5, width)).astype(np.float32))
    inverse = rng.integers(0, 5, n)
    out = np.empty((n, width), np.float32)

    kernels.expand(values, inverse, out)

    np.testing.assert_array_equal(out, values[inverse])


def initial(
    initializer: Initializer, keys: list[int], dim: int, seed: int = 0, table: str = "t"
) -> np.ndarray:
    """The initial weights of `keys`, float32 (len(keys), dim)."""
    data = np.full((len(keys), dim + 1), np.nan, np.float32)
    recipe, a, b = initializer.recipe()
    kernels.initialize(
        data,
        np.arange(len(keys)),
        frozen(np.array(keys, np.uint64)),
        dim,
        recipe,
        float(a),
        float(b),
        np.uint64(table_seed(seed, table)),
    )
    assert np.isnan(data[:, dim]).all(), "columns behind the weights are not touched"
    return data[:, :dim]


def streams(keys: np.ndarray, dim: int, seed: int) -> np.ndarray:
    """The outputs of each key's stream by the definition, uint64 (n, dim)."""
    starts = mix64(mix64(keys + GOLDEN) ^ np.uint64(seed))
    return mix64(starts[:, None] + np.arange(1, dim + 1, dtype=np.uint64) * GOLDEN)


KEYS = [0, 1, 2, 77, 2**63, LAST]


def test_uniform_values_follow_their_formula() -> None:
    bits = streams(np.array(KEYS, np.uint64), 9, table_seed(5, "t")) >> np.uint64(40)

    values = initial(Uniform(-0.5, 1.5), KEYS, 9, seed=5)

    np.testing.assert_array_equal(values, (-0.5 + 2.0 * (bits * 2.0**-24)).astype(np.float32))


@pytest.mark.parametrize("dim", [1, 2, 9])
def test_normal_values_follow_their_formula(dim: int) -> None:
    outputs = streams(np.array(KEYS, np.uint64), dim + 1, table_seed(5, "t")) >> np.uint64(11)
    column = np.arange(dim)
    first, second = outputs[:, column // 2 * 2], outputs[:, column // 2 * 2 + 1]
    radius = np.sqrt(-2 * np.log((first + 1.0) * 2.0**-53))
    angle = 2 * np.pi * (second * 2.0**-53)
    turn = np.where(column % 2 == 0, np.cos(angle), np.sin(angle))

    values = initial(Normal(std=3.0, mean=1.0), KEYS, dim, seed=5)

    np.testing.assert_allclose(values, 1.0 + 3.0 * radius * turn, rtol=1e-6)


@pytest.mark.parametrize(
    ("initializer", "mean", "deviation"),
    [
        (Uniform(-1, 1), 0.0, 3**-0.5),
        (Normal(std=2.0, mean=0.5), 0.5, 2.0),
        (Xavier(60, 40), 0.0, 0.02**0.5),
        (He(50), 0.0, 0.2),
        (Constant(1.25), 1.25, 0.0),
        (Zeros(), 0.0, 0.0),
    ],
)
def test_many_values_have_the_promised_distribution(
    initializer: Initializer, mean: float, deviation: float
) -> None:
    values = initial(initializer, list(range(10_000)), 10).astype(np.float64)

    assert values.mean() == pytest.approx(mean, abs=5 * max(deviation, 1e-9) / values.size**0.5)
    assert values.std() == pytest.approx(deviation, rel=0.02)
    if deviation:
        columns = np.corrcoef(values, rowvar=False) - np.eye(10)
        assert np.abs(columns).max() < 0.05
        neighbours = np.corrcoef(values[:-1, 0], values[1:, 0])[0, 1]
        assert abs(neighbours) < 0.05


def test_values_depend_on_seed_table_key_and_column() -> None:
    base = initial(Uniform(), KEYS, 4)

    assert len(np.unique(base)) == base.size
    assert not np.isin(initial(Uniform(), KEYS, 4, seed=1), base).any()
    assert not np.isin(initial(Uniform(), KEYS, 4, table="other"), base).any()
    np.testing.assert_array_equal(initial(Uniform(), KEYS[::-1], 4), base[::-1])
    np.testing.assert_array_equal(initial(Uniform(), KEYS, 3), base[:, :3])


@pytest.mark.parametrize(
    ("floats", "rows"), [(1, 72), (16, 72), (17, 64), (49, 32), (97, 24), (1000, 24)]
)
def test_rows_are_asked_for_so_many_lines_ahead(floats: int, rows: int) -> None:
    assert ahead_of(np.uint64(floats)) == rows
    assert ahead_of.py_func(floats) == rows


@given(n=st.integers(0, 300), floats=st.integers(1, 400))
def test_bursts_ask_for_each_row_before_its_turn_and_for_none_behind_the_last(
    n: int, floats: int
) -> None:
    data, rows = np.zeros((1, floats), np.float32), np.zeros(n, np.int64)
    burst, asked = int(burst_of(floats)), 0

    for start in range(0, n, burst):
        stop = min(start + burst, n)
        before, asked = asked, int(ask_rows(data, rows, asked, stop, floats))
        assert min(stop, n) <= asked <= n
        assert asked == min(n, stop + int(ahead_of(floats)))
        assert asked >= before
    assert asked == n
