"""Every optimiser against its formula in NumPy, against torch, and compiled against plain."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv.kernels.jit import frozen
from kv.kernels.updates import ADAM_STEPS, KERNELS, update_of
from kv.optimizers import SGD, Adagrad, Adam, Momentum, Nesterov, Optimizer

F = np.float32
CASES = [
    SGD(lr=0.3),
    Momentum(lr=0.1, momentum=0.8),
    Nesterov(lr=0.1, momentum=0.8),
    Adagrad(lr=0.2, eps=1e-6, initial_accumulator=0.1),
    Adam(lr=0.05, beta1=0.8, beta2=0.95, eps=1e-6),
    Adam(lr=0.05, beta1=0.0, beta2=0.0),
]
by_name = pytest.mark.parametrize("optimizer", CASES, ids=lambda o: f"{o.name}-{o.lr}")


def in_numpy(optimizer: Optimizer, data: np.ndarray, dim: int, rows: np.ndarray, g: np.ndarray):
    """One step by the formulas, float64, on rows of weights and state."""
    w, state = data[rows, :dim], data[rows, dim:]
    o = optimizer
    if isinstance(o, Adam):
        m = o.beta1 * state[:, :dim] + (1 - o.beta1) * g
        v = o.beta2 * state[:, dim : 2 * dim] + (1 - o.beta2) * g * g
        t = state[:, 2 * dim :][:, :1] + 1
        m_hat, v_hat = m / (1 - o.beta1**t), v / (1 - o.beta2**t)
        w, state = w - o.lr * m_hat / (np.sqrt(v_hat) + o.eps), np.hstack([m, v, t])
    elif isinstance(o, Adagrad):
        state = state[:, :dim] + g * g
        w = w - o.lr * g / (np.sqrt(state) + o.eps)
    elif isinstance(o, Momentum):
        state = o.momentum * state[:, :dim] + g
        w = w - o.lr * (g + o.momentum * state if isinstance(o, Nesterov) else state)
    else:
        w, state = w - o.lr * g, state[:, :0]
    data[rows, :dim] = w
    data[rows, dim : dim + state.shape[1]] = state


def arena(optimizer: Optimizer, dim: int, seed: int) -> np.ndarray:
    """Twenty rows as a store makes them, with two floats of padding, float32."""
    data = np.full((20, dim + optimizer.state_floats(dim) + 2), 9.0, F)
    data[:, :dim] = np.random.default_rng(seed).standard_normal((20, dim))
    data[:, dim:-2] = optimizer.initial_state
    return data


@by_name
@given(n=st.integers(0, 20), dim=st.integers(1, 35), seed=st.integers(0, 2**32 - 1))
def test_updates_match_their_formula(optimizer: Optimizer, n: int, dim: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    data = arena(optimizer, dim, seed)
    expected = data.astype(np.float64)
    update = update_of(optimizer)

    for _ in range(3):
        rows = rng.permutation(20)[:n]
        grads = frozen(rng.standard_normal((n, dim)).astype(F))
        update(data, dim, rows, grads, 0)
        in_numpy(optimizer, expected, dim, rows, grads.astype(np.float64))

    np.testing.assert_allclose(data, expected, rtol=2e-5, atol=2e-6)
    assert (data[:, -2:] == 9.0).all(), "padding is not touched"


@by_name
def test_plain_and_compiled_updates_agree(optimizer: Optimizer) -> None:
    rng = np.random.default_rng(0)
    data, rows = arena(optimizer, 5, 0), rng.permutation(20)[:7]
    grads = rng.standard_normal((7, 5)).astype(F)
    plain = data.copy()

    update_of(optimizer)(data, 5, rows, frozen(grads), 0)

    run, *settings = KERNELS[type(optimizer)](optimizer)
    with np.errstate(divide="ignore"):  # log of beta = 0
        run.py_func(plain, 5, rows, grads, *settings)
    np.testing.assert_allclose(data, plain, rtol=1e-6)


@by_name
def test_a_zero_gradient_is_harmless_on_a_new_row(optimizer: Optimizer) -> None:
    data = arena(optimizer, 3, 1)
    before = data[:, :3].copy()

    update_of(optimizer)(data, 3, np.arange(20), frozen(np.zeros((20, 3), F)), 0)

    np.testing.assert_array_equal(data[:, :3], before)


@by_name
def test_rows_that_are_not_named_stand_still(optimizer: Optimizer) -> None:
    data = arena(optimizer, 4, 2)
    before = data.copy()

    update_of(optimizer)(data, 4, np.array([3, 17]), frozen(np.ones((2, 4), F)), 0)

    moved = np.flatnonzero((data != before).any(axis=1))
    assert moved.tolist() == [3, 17]


def torch_twin(optimizer: Optimizer) -> Callable:
    torch = pytest.importorskip("torch")
    o = optimizer
    if isinstance(o, Adam):
        return lambda p: torch.optim.Adam([p], lr=o.lr, betas=(o.beta1, o.beta2), eps=o.eps)
    if isinstance(o, Adagrad):
        return lambda p: torch.optim.Adagrad(
            [p], lr=o.lr, eps=o.eps, initial_accumulator_value=o.initial_accumulator
        )
    if isinstance(o, Momentum):
        nesterov = isinstance(o, Nesterov)
        return lambda p: torch.optim.SGD([p], lr=o.lr, momentum=o.momentum, nesterov=nesterov)
    return lambda p: torch.optim.SGD([p], lr=o.lr)


@by_name
def test_fifty_steps_equal_torch(optimizer: Optimizer) -> None:
    twin_of = torch_twin(optimizer)
    import torch

    rng = np.random.default_rng(3)
    data, rows = arena(optimizer, 6, 3), np.arange(20)
    weights = torch.nn.Parameter(torch.tensor(data[:, :6]))
    twin, update = twin_of(weights), update_of(optimizer)

    for _ in range(50):
        grads = (rng.standard_normal((20, 6)) * 10.0 ** rng.integers(-3, 2)).astype(F)
        update(data, 6, rows, frozen(grads), 0)
        weights.grad = torch.tensor(grads)
        twin.step()

    np.testing.assert_allclose(data[:, :6], weights.detach().numpy(), rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("optimizer", [Adam(lr=0.1), Adam(lr=0.1, beta1=0.0, beta2=0.5)])
def test_adams_corrections_go_on_where_their_table_ends(optimizer: Adam) -> None:
    dim, rows = 3, np.arange(20)
    data = arena(optimizer, dim, 5)
    data[:, 3 * dim] = ADAM_STEPS - 10 + rows  # some counts before the end, some behind it
    data[:, dim : 3 * dim] = 0.25
    expected = data.astype(np.float64)
    grads = frozen(np.ones((20, dim), F))

    update_of(optimizer)(data, dim, rows, grads, 0)

    in_numpy(optimizer, expected, dim, rows, grads.astype(np.float64))
    np.testing.assert_allclose(data, expected, rtol=2e-6)


def test_adams_count_of_a_row_stops_growing_without_harm() -> None:
    optimizer, dim = Adam(), 2
    data = arena(optimizer, dim, 0)
    data[:, 2 * dim + dim] = 2.0**24
    before = data.copy()

    update_of(optimizer)(data, dim, np.arange(20), frozen(np.ones((20, dim), F)), 0)

    assert (data[:, 3 * dim] == 2.0**24).all()
    assert np.isfinite(data).all()
    assert (data[:, :dim] < before[:, :dim]).all()


def test_every_optimizer_has_a_kernel() -> None:
    assert set(KERNELS) == set(Optimizer.members.values())
