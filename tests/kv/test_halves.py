"""float16 weights: conversions against NumPy's, rounding by chance, tables that store them."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv.engine import Engine
from kv.initializers import Normal, Uniform
from kv.kernels import halves
from kv.kernels.jit import bits_of, float_of, frozen
from kv.local import LocalCluster
from kv.optimizers import FTRL, SGD, Adagrad, Adam, Optimizer, RowwiseAdagrad
from kv.placement import SlotMap, slot_of
from kv.spec import TableSpec
from kv.store.formats import BLOCK
from kv.store.sparse import SparseStore

F = np.float32
EVERY = np.arange(65536, dtype=np.uint16)  # all halves, by their bits
OPTIMIZERS = [SGD(0.1), Adagrad(0.1), RowwiseAdagrad(0.1), Adam(0.1), FTRL(0.1, l1=0.01)]
optimizers = pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.name)


def rounded(values: np.ndarray) -> np.ndarray:
    """The halves that `scatter_halves` makes of float32 (n,)."""
    data = np.zeros((values.size, 1), F)
    halves.scatter_halves(data, np.arange(values.size), frozen(values[:, None]))
    return data.view(np.float16)[:, 0]


def drawn(values: np.ndarray, keys: np.ndarray, clock: int = 0, seed: int = 1) -> np.ndarray:
    """The halves that `put_rows` makes of float32 (n, dim), as float32."""
    data = np.zeros((values.shape[0], (values.shape[1] + 1) // 2), F)
    rows, out = np.arange(values.shape[0]), np.empty_like(values)
    stamp = np.uint64(seed), np.uint64(clock)
    halves.put_rows(data, rows, frozen(keys), values.shape[1], values, *stamp)
    halves.gather_halves(data, rows, out)
    return out


def test_every_half_widens_exactly() -> None:
    data = np.zeros((EVERY.size, 1), F)
    data.view(np.uint16)[:, 0] = EVERY
    out = np.empty((EVERY.size, 1), F)

    halves.gather_halves(data, np.arange(EVERY.size), out)

    expected = EVERY.view(np.float16).astype(F)
    is_number = ~np.isnan(expected)
    assert np.isnan(out[~is_number, 0]).all()
    np.testing.assert_array_equal(
        out[is_number, 0].view(np.uint32), expected[is_number].view(np.uint32)
    )


def test_rounding_to_nearest_equals_numpy_at_every_half_and_beside_every_middle() -> None:
    numbers = np.unique(EVERY.view(np.float16)[np.isfinite(EVERY.view(np.float16))].astype(F))
    middles = (numbers[:-1] + numbers[1:]) / 2
    tiny = np.array([0.0, -0.0, 1e-45, -1e-45, 1e-38, 2.0**-25, -(2.0**-25), 65519.0], F)
    up, down = np.nextafter(middles, F(np.inf)), np.nextafter(middles, F(-np.inf))
    values = np.concatenate([numbers, middles, up, down, tiny])

    found = rounded(values)

    np.testing.assert_array_equal(found.view(np.uint16), values.astype(np.float16).view(np.uint16))


@given(st.lists(st.floats(-65519, 65519, width=32), max_size=30))
def test_rounding_to_nearest_equals_numpy(given_values: list[float]) -> None:
    values = np.array(given_values, F)

    np.testing.assert_array_equal(
        rounded(values).view(np.uint16), values.astype(np.float16).view(np.uint16)
    )


def test_what_is_too_large_becomes_the_largest_half() -> None:
    values = np.array([65520, 1e30, -1e30, np.inf, -np.inf, np.nan], F)
    limits = [65504, 65504, -65504, 65504, -65504]

    assert rounded(values)[:-1].tolist() == limits
    by_chance = drawn(values[:, None], np.arange(6, dtype=np.uint64))[:, 0]
    assert by_chance[:-1].tolist() == limits
    assert np.isnan(rounded(values)[-1])
    assert np.isnan(by_chance[-1])


def test_chance_never_moves_what_a_half_can_say() -> None:
    numbers = EVERY.view(np.float16)
    values = numbers[np.isfinite(numbers)].astype(F)[:, None]

    found = drawn(values, np.arange(values.size, dtype=np.uint64))

    np.testing.assert_array_equal(found.view(np.uint32), values.view(np.uint32))


@pytest.mark.parametrize(
    "value", [1.0003, -1.0003, 1.0, 3e-5, 3.00001e-8, -2e-8, 1e-9, 0.1, 1023.9, 60001.0]
)
def test_rounding_by_chance_is_right_on_average(value: float) -> None:
    count = 200_000
    values = np.full((count, 2), value, F)

    found = drawn(values, np.arange(count, dtype=np.uint64)).astype(np.float64)

    around = np.unique(found)
    gap = np.float64(np.spacing(np.float16(abs(value))))
    assert around.size <= 2
    assert np.abs(around - value).max() < gap
    # the mean of n such draws deviates by less than gap / 2 / sqrt(n); four of that
    assert abs(found.mean() - np.float64(F(value))) <= 2 * gap / np.sqrt(found.size)


def test_chance_depends_on_seed_key_clock_and_column_alone() -> None:
    values = np.full((50, 41), 1.0004, F)
    keys = np.arange(50, dtype=np.uint64) * np.uint64(2**58)
    first = drawn(values, keys, clock=3)

    np.testing.assert_array_equal(drawn(values, keys, clock=3), first)
    np.testing.assert_array_equal(drawn(values[::-1], keys[::-1].copy(), clock=3)[::-1], first)
    for other in (drawn(values, keys, clock=4), drawn(values, keys, clock=3, seed=2)):
        assert (other != first).any()
    assert np.unique(first, axis=0).shape[0] == 50
    assert np.unique(first, axis=1).shape[1] == 41


def test_plain_and_compiled_conversions_agree() -> None:
    rng = np.random.default_rng(0)
    values = (rng.standard_normal(60) * 10.0 ** rng.integers(-8, 6, 60)).astype(F)
    chances = rng.integers(0, 2**32, 60, dtype=np.uint32)

    with np.errstate(over="ignore"):  # of unsigned integers, meant to wrap around
        for value, chance in zip(values, chances, strict=True):
            assert halves.nearest.py_func(value) == halves.nearest(value)
            assert halves.drawn.py_func(value, chance) == halves.drawn(value, chance)
            half = np.uint32(halves.nearest(value))
            assert halves.widened.py_func(half) == halves.widened(half)
            assert float_of(bits_of(value)) == value


def spec_of(optimizer: Optimizer, storage: str, dim: int = 5, **settings: object) -> TableSpec:
    spec = TableSpec.sparse("t", dim, optimizer=optimizer, storage=storage, **settings)
    return spec.resolved("async", 3)


@optimizers
def test_an_update_is_that_of_float32_rounded_to_a_neighbour(optimizer: Optimizer) -> None:
    rng = np.random.default_rng(1)
    keys = np.unique(rng.integers(0, 2**64, 3000, np.uint64))
    store = SparseStore(spec_of(optimizer, "float16"), reserve=1 << 24)
    twin = SparseStore(spec_of(optimizer, "float32"), reserve=1 << 24)
    twin.assign(keys, store.pull(keys))
    grads = rng.standard_normal((keys.size, 5)).astype(F)

    store.push(keys, grads, 0)
    twin.push(keys, grads, 0)

    found, exact = store.pull(keys), twin.pull(keys)
    gap = np.spacing(np.abs(exact).astype(np.float16)).astype(F)
    assert (np.abs(found - exact) <= gap).all()
    assert (found == found.astype(np.float16)).all()
    state, packed = store.format.state_at, store.format.floats
    np.testing.assert_allclose(
        store.data[: store.top, state:packed], twin.data[: twin.top, 5 : twin.format.floats]
    )


@optimizers
@pytest.mark.parametrize("dim", [1, 2, 7, 16])
def test_rows_of_any_width_keep_their_state(optimizer: Optimizer, dim: int) -> None:
    store = SparseStore(spec_of(optimizer, "float16", dim), reserve=1 << 24)
    keys = np.arange(9, dtype=np.uint64)
    values = np.random.default_rng(2).standard_normal((9, dim)).astype(np.float16).astype(F)

    store.assign(keys, values)

    np.testing.assert_array_equal(store.pull(keys), values)
    start, stop = store.format.state_at, store.format.floats
    assert (store.data[:9, start:stop] == optimizer.initial_state).all()
    store.validate()


def test_small_updates_add_up_where_rounding_to_nearest_loses_them() -> None:
    optimizer, dim, steps = SGD(lr=1.0), 64, 1000
    store = SparseStore(spec_of(optimizer, "float16", dim), reserve=1 << 24)
    keys = np.arange(20, dtype=np.uint64)
    store.assign(keys, np.ones((20, dim), F))
    grads = np.full((20, dim), 1e-4, F)  # a fifth of the gap between halves below 1
    nearest = np.ones((20, dim), np.float16)

    for clock in range(steps):
        store.push(keys, grads, clock)
        nearest = (nearest.astype(F) - grads).astype(np.float16)

    assert (nearest == 1).all()
    assert store.pull(keys).mean() == pytest.approx(1 - steps * 1e-4, abs=2e-3)


@pytest.mark.parametrize("initializer", [Uniform(), Normal(0.3)], ids=lambda i: i.name)
def test_a_key_without_a_row_reads_what_its_row_will_hold(initializer: object) -> None:
    store = SparseStore(spec_of(SGD(), "float16", initializer=initializer), reserve=1 << 24)
    twin = SparseStore(spec_of(SGD(), "float32", initializer=initializer), reserve=1 << 24)
    keys = np.arange(BLOCK // 5 + 99, dtype=np.uint64)

    seen = store.pull(keys, create=False)

    assert len(store) == 0
    np.testing.assert_array_equal(seen, store.pull(keys))
    np.testing.assert_array_equal(seen, twin.pull(keys).astype(np.float16).astype(F))


@pytest.mark.parametrize(
    ("optimizer", "dim", "nbytes"),
    [
        (SGD(), 2, 4),
        (SGD(), 7, 16),
        (SGD(), 16, 32),
        (Adagrad(), 16, 96),
        (RowwiseAdagrad(), 16, 48),
        (RowwiseAdagrad(), 64, 144),
    ],
    ids=str,
)
def test_weights_take_half_the_memory(optimizer: Optimizer, dim: int, nbytes: int) -> None:
    store = SparseStore(spec_of(optimizer, "float16", dim), reserve=1 << 24)

    assert 4 * store.stride == nbytes
    assert store.data.strides == (nbytes, 4)


def test_tables_with_halves_do_all_that_others_do() -> None:
    cluster = LocalCluster(2, "sync")
    tables = [
        cluster.worker(rank).sparse_table(
            "t", 3, optimizer=Adagrad(0.5), storage="float16", aggregator="mean"
        )
        for rank in (0, 1)
    ]
    for _ in range(3):
        for rank, table in enumerate(tables):
            table.push([4, 4, 2**63], np.full((3, 3), 0.1 + rank))
            cluster.worker(rank).step()
    tables[0].assign([9], [[0.1, 70000.0, -1.0]])

    assert tables[1].pull([9]).tolist() == [[F(np.float16(0.1)), 65504.0, -1.0]]
    ((keys, rows),) = tables[0].items()
    assert keys.tolist() == [4, 9, 2**63]
    np.testing.assert_array_equal(rows, tables[1].pull(keys))
    assert tables[0].delete([4]) == 1
    assert len(tables[0]) == 2
    cluster.engine.validate()


def test_a_dense_table_of_halves_is_trained() -> None:
    table = (
        LocalCluster().worker(0).dense_table("w", (90, 60), optimizer=Adam(0.1), storage="float16")
    )
    target = np.random.default_rng(0).standard_normal((90, 60)).astype(F)

    for _ in range(150):
        table.push(table.pull() - target)

    np.testing.assert_allclose(table.pull(), target, atol=0.05)


def test_the_number_of_servers_does_not_change_a_bit() -> None:
    spec = TableSpec.sparse("t", 4, optimizer=Adagrad(0.1), storage="float16", mode="sync")
    slots, keys = SlotMap.even(2), np.arange(500, dtype=np.uint64)
    owners = slots.owner[slot_of(keys)]
    engines = [Engine(1), Engine(1), Engine(1)]
    parts = [np.ones(500, bool), owners == 0, owners == 1]
    for step in range(4):
        grads = np.random.default_rng(step).standard_normal((500, 4)).astype(F)
        for engine, mine in zip(engines, parts, strict=True):
            engine.define(spec)
            engine.push(0, 0, step, keys[mine], grads[mine])
            engine.step(0, step)

    one, *two = (engine.pull(0, keys[mine]) for engine, mine in zip(engines, parts, strict=True))
    for mine, values in zip(parts[1:], two, strict=True):
        np.testing.assert_array_equal(values, one[mine])
