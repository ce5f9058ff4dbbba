"""Weights between bounds: after every update, in every storage, and from the beginning."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv.bounds import stored_bounds
from kv.errors import SettingError
from kv.initializers import Constant, Uniform
from kv.kernels.gradients import clamp
from kv.kernels.jit import frozen
from kv.kernels.updates import SCRATCH, update_of
from kv.local import LocalCluster
from kv.optimizers import FTRL, SGD, Adagrad, Optimizer
from kv.protocols import Worker
from kv.spec import TableSpec
from pslite import local_cluster

F = np.float32
KINDS = {"float32": np.float32, "float16": np.float16}


@given(
    n=st.integers(0, 9),
    dim=st.integers(1, 20),
    low=st.sampled_from([-np.inf, -0.5, 0.0]),
    high=st.sampled_from([0.25, np.inf]),
    seed=st.integers(0, 2**32 - 1),
)
def test_rows_are_brought_into_their_bounds_and_state_is_left(
    n: int, dim: int, low: float, high: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    data, rows = rng.standard_normal((20, dim + 3)).astype(F), rng.permutation(20)[:n]
    expected = data.copy()
    expected[rows, :dim] = np.clip(data[rows, :dim], low, high)
    plain = data.copy()

    clamp(data, dim, rows, F(low), F(high))

    clamp.py_func(plain, dim, rows, F(low), F(high))
    np.testing.assert_array_equal(data, expected)
    np.testing.assert_array_equal(plain, expected)


@pytest.mark.parametrize("name", Optimizer.members)
def test_a_step_is_the_optimisers_and_then_within_bounds(name: str) -> None:
    optimizer = Optimizer.by_name(name, lr=0.5)
    bounded = dataclasses.replace(optimizer, weight_bounds=(-0.4, 0.1))
    dim, count = 8, SCRATCH // 8 + 5  # more than a block
    rng = np.random.default_rng(1)
    stride = dim + optimizer.state_floats(dim)
    data = np.zeros((count, stride), F)
    data[:, :dim] = rng.uniform(-0.4, 0.1, (count, dim))
    grads, rows = frozen(rng.standard_normal((count, dim)).astype(F)), rng.permutation(count)
    free = data.copy()

    update_of(bounded)(data, dim, rows, grads, 0)

    update_of(optimizer)(free, dim, rows, grads, 0)
    least, greatest = stored_bounds(bounded, "float32") or (F(0), F(0))
    np.testing.assert_array_equal(data[:, :dim], np.clip(free[:, :dim], least, greatest))
    np.testing.assert_array_equal(data[:, dim:], free[:, dim:])


@given(
    ends=st.tuples(*2 * [st.floats(-7e4, 7e4)]).filter(lambda ends: ends[0] < ends[1]),
    storage=st.sampled_from(sorted(KINDS)),
)
def test_bounds_are_rounded_inwards(ends: tuple[float, float], storage: str) -> None:
    kind = KINDS[storage]
    try:
        found = stored_bounds(SGD(weight_bounds=ends), storage)
    except SettingError:
        found = None
        with np.errstate(over="ignore", under="ignore"):  # beyond the greatest is infinity
            lowest = kind(max(ends[0], -float(np.finfo(kind).max)))
            above = [lowest, np.nextafter(lowest, kind(np.inf))]
        assert not any(ends[0] <= float(x) <= ends[1] for x in above)  # there is none
    if found is not None:
        least, greatest = (kind(end) for end in found)
        assert ends[0] <= float(least) <= float(greatest) <= ends[1]
        with np.errstate(over="ignore", under="ignore"):
            assert float(np.nextafter(least, kind(-np.inf))) < ends[0]
            assert float(np.nextafter(greatest, kind(np.inf))) > ends[1]


def tables(worker: Worker, **how: Any) -> list[Any]:
    return [
        worker.sparse_table("t", 5, **how),
        worker.dense_table("d", (50, 110), **how),
    ]


def pulled(found: list[Any]) -> list[np.ndarray]:
    return [found[0].pull(np.arange(8)), found[1].pull()]


@pytest.mark.parametrize("mode", ["async", "sync", "dc_async"])
@pytest.mark.parametrize("storage", ["float32", "float16"])
def test_no_pull_ever_sees_a_weight_beyond_its_bounds(storage: str, mode: str) -> None:
    worker = LocalCluster(mode=mode).worker(0)
    # No float16 is 0.1: rounding by chance would leave the bounds now and then.
    optimizer = Adagrad(0.3, weight_bounds=(-0.05, 0.1))
    how: dict[str, Any] = {"optimizer": optimizer, "initializer": Uniform(-1, 1)}
    found, rng = tables(worker, storage=storage, **how), np.random.default_rng(0)

    for turn in range(12):
        for values in pulled(found):
            assert -0.05 <= float(values.min()) <= float(values.max()) <= 0.1
        found[0].push(np.arange(8), rng.standard_normal((8, 5)))
        found[1].push(rng.standard_normal((50, 110)))
        if turn == 6:
            found[0].assign([1, 2], np.full((2, 5), 7.0))
            found[1].assign(np.full((50, 110), -7.0))
        worker.step()

    values = found[0].pull([3], create=False)
    assert np.abs(values).max() > 0.04  # they did move


def test_a_row_that_is_only_looked_at_reads_within_bounds() -> None:
    worker = LocalCluster().worker(0)
    how: dict[str, Any] = {"optimizer": SGD(weight_bounds=(0, None)), "initializer": Constant(-3)}
    table = worker.sparse_table("t", 2, **how)

    assert table.pull([1], create=False).tolist() == [[0, 0]]
    assert table.pull([1]).tolist() == [[0, 0]]


def test_ftrl_within_bounds_is_the_constrained_minimum() -> None:
    """Of a sum of parabolas per coordinate; computed anew from all gradients each step."""
    optimizer = FTRL(lr=0.5, beta=1.0, l1=0.05, weight_bounds=(0.0, 0.2))
    worker, rng = LocalCluster().worker(0), np.random.default_rng(4)
    table = worker.sparse_table("t", 1, optimizer=optimizer, initializer=Constant(0))
    z = n = w = 0.0

    for g in rng.standard_normal(40):
        table.push([0], [[g]])
        z += g - (np.sqrt(n + g * g) - np.sqrt(n)) / 0.5 * w
        n += g * g
        grid = np.linspace(0.0, 0.2, 20_001)
        costs = z * grid + 0.5 * (1.0 + np.sqrt(n)) / 0.5 * grid**2 + 0.05 * np.abs(grid)
        w = float(grid[np.argmin(costs)])
        assert float(table.pull([0])[0, 0]) == pytest.approx(w, abs=2e-4)


def test_servers_keep_the_bounds_of_one_process_to_the_bit() -> None:
    def program(worker: Worker) -> list[np.ndarray]:
        optimizer = Adagrad(0.2, weight_bounds=(-0.02, 0.1), clip_global_norm=1.0)
        found, rng = (
            tables(worker, optimizer=optimizer, storage="float16"),
            np.random.default_rng(3),
        )
        for _ in range(4):
            found[0].push(np.arange(8), rng.standard_normal((8, 5)))
            worker.wait(found[1].push(rng.standard_normal((50, 110))))
            worker.step()
        return pulled(found)

    with local_cluster(servers=1, workers=1, mode="sync", seed=2) as nodes:
        (remote,) = nodes.run(program)

    here = program(LocalCluster(mode="sync", seed=2).worker(0))
    for values, expected in zip(remote, here, strict=True):
        np.testing.assert_array_equal(values, expected)
        assert float(values.max()) <= 0.1


def test_bounds_that_no_weight_can_have_are_refused_with_the_table() -> None:
    narrow = SGD(weight_bounds=(0.10001, 0.10002))

    with pytest.raises(SettingError, match=r"table t: no float16 lies within weight_bounds"):
        TableSpec.sparse("t", 2, optimizer=narrow, storage="float16")
    TableSpec.sparse("t", 2, optimizer=narrow)
    with pytest.raises(SettingError, match="no float16"):
        TableSpec.sparse("t", 2, optimizer=SGD(weight_bounds=(1e6, None)), storage="float16")
