"""Every optimiser against its formula in NumPy, against torch, and compiled against plain."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv.kernels.jit import frozen
from kv.kernels.updates import ADAM_STEPS, KERNELS, update_of
from kv.optimizers import (
    FTRL,
    SGD,
    Adadelta,
    Adagrad,
    Adam,
    AdamW,
    Momentum,
    Nesterov,
    Optimizer,
    RMSprop,
    RowwiseAdagrad,
)

F = np.float32
CASES = [
    SGD(lr=0.3),
    Momentum(lr=0.1, momentum=0.8),
    Nesterov(lr=0.1, momentum=0.8),
    Adagrad(lr=0.2, eps=1e-6, initial_accumulator=0.1),
    Adam(lr=0.05, beta1=0.8, beta2=0.95, eps=1e-6),
    Adam(lr=0.05, beta1=0.0, beta2=0.0),
    AdamW(lr=0.05, beta1=0.8, eps=1e-6, weight_decay=0.3),
    RowwiseAdagrad(lr=0.2, eps=1e-6, initial_accumulator=0.1),
    RMSprop(lr=0.05, rho=0.9, eps=1e-5),
    RMSprop(lr=0.02, rho=0.9, eps=1e-5, momentum=0.7),
    Adadelta(lr=0.7, rho=0.8, eps=1e-5),
    FTRL(lr=0.3, beta=0.5, l1=0.2, l2=0.1),
    FTRL(lr=0.2, beta=0.0),
    SGD(lr=0.3, weight_decay=0.1),
    Nesterov(lr=0.1, momentum=0.8, weight_decay=0.2),
    Adagrad(lr=0.2, eps=1e-6, weight_decay=0.1),
    Adam(lr=0.05, beta1=0.8, eps=1e-6, weight_decay=0.1),
    RMSprop(lr=0.02, rho=0.9, eps=1e-5, momentum=0.7, weight_decay=0.1),
    Adadelta(lr=0.7, rho=0.8, eps=1e-5, weight_decay=0.1),
]
by_name = pytest.mark.parametrize("optimizer", CASES, ids=str)
plain_only = pytest.mark.parametrize(
    "optimizer", [o for o in CASES if o.decoupled or not o.weight_decay], ids=str
)


def in_numpy(optimizer: Optimizer, data: np.ndarray, dim: int, rows: np.ndarray, g: np.ndarray):
    """One step by the formulas, float64, on rows of weights and state."""
    w, state = data[rows, :dim], data[rows, dim:]
    o = optimizer
    if isinstance(o, AdamW):
        w = w * (1 - o.lr * o.weight_decay)
    else:
        g = g + o.weight_decay * w
    if isinstance(o, Adam):
        m = o.beta1 * state[:, :dim] + (1 - o.beta1) * g
        v = o.beta2 * state[:, dim : 2 * dim] + (1 - o.beta2) * g * g
        t = state[:, 2 * dim :][:, :1] + 1
        m_hat, v_hat = m / (1 - o.beta1**t), v / (1 - o.beta2**t)
        w, state = w - o.lr * m_hat / (np.sqrt(v_hat) + o.eps), np.hstack([m, v, t])
    elif isinstance(o, RMSprop):
        v = o.rho * state[:, :dim] + (1 - o.rho) * g * g
        step = g / (np.sqrt(v) + o.eps)
        state = v
        if o.momentum:
            step = o.momentum * data[rows, 2 * dim : 3 * dim] + step
            state = np.hstack([v, step])
        w = w - o.lr * step
    elif isinstance(o, Adadelta):
        v, u = o.rho * state[:, :dim] + (1 - o.rho) * g * g, state[:, dim : 2 * dim]
        delta = np.sqrt(u + o.eps) / np.sqrt(v + o.eps) * g
        w, state = w - o.lr * delta, np.hstack([v, o.rho * u + (1 - o.rho) * delta * delta])
    elif isinstance(o, FTRL):
        y, n = state[:, :dim], state[:, dim : 2 * dim]
        z, n, w = ftrl_in_numpy(o, np.where(n > 0, y / o.lr, first_z(o, w)), n, w, g)
        state = np.hstack([o.lr * z, n])
    elif isinstance(o, RowwiseAdagrad):
        state = state[:, :1] + (g * g).mean(axis=1, keepdims=True)
        w = w - o.lr * g / (np.sqrt(state) + o.eps)
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


def first_z(o: FTRL, w: np.ndarray) -> np.ndarray:
    """The z under which the weights of rows without a gradient yet are `w`."""
    return -w * (o.beta / o.lr + o.l2) - np.sign(w) * o.l1


def ftrl_in_numpy(o: FTRL, z: np.ndarray, n: np.ndarray, w: np.ndarray, g: np.ndarray):
    """Algorithm 1 of McMahan et al. 2013 for one gradient: the new z, n, w, float64."""
    sigma = (np.sqrt(n + g * g) - np.sqrt(n)) / o.lr
    z, n = z + g - sigma * w, n + g * g
    pull = (o.beta + np.sqrt(n)) / o.lr + o.l2
    with np.errstate(invalid="ignore", divide="ignore"):
        seen = np.where(np.abs(z) <= o.l1, 0.0, -(z - np.sign(z) * o.l1) / pull)
    return z, n, np.where(n > 0, seen, w)


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


@plain_only
def test_plain_and_compiled_updates_agree(optimizer: Optimizer) -> None:
    rng = np.random.default_rng(0)
    data, rows = arena(optimizer, 5, 0), rng.permutation(20)[:7]
    grads = rng.standard_normal((7, 5)).astype(F)
    plain = data.copy()

    update_of(optimizer)(data, 5, rows, frozen(grads), 0)

    run, *settings = KERNELS[type(optimizer)](optimizer)
    with np.errstate(divide="ignore"):  # log of beta = 0
        run.py_func(plain, 5, rows, grads, F(optimizer.lr), *settings)
    np.testing.assert_allclose(data, plain, rtol=1e-6)


@plain_only
def test_a_zero_gradient_is_harmless_on_a_new_row(optimizer: Optimizer) -> None:
    data = arena(optimizer, 3, 1)
    before = data[:, :3].copy()

    update_of(optimizer)(data, 3, np.arange(20), frozen(np.zeros((20, 3), F)), 0)

    shrunk = 1 - optimizer.lr * optimizer.weight_decay
    np.testing.assert_allclose(data[:, :3], before * shrunk, rtol=1e-7 if shrunk < 1 else 0)


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
    common = {"lr": o.lr, "weight_decay": o.weight_decay}
    if isinstance(o, Adam):
        kind = torch.optim.AdamW if isinstance(o, AdamW) else torch.optim.Adam
        return lambda p: kind([p], betas=(o.beta1, o.beta2), eps=o.eps, **common)
    if isinstance(o, Adagrad):
        start = o.initial_accumulator
        return lambda p: torch.optim.Adagrad(
            [p], eps=o.eps, initial_accumulator_value=start, **common
        )
    if isinstance(o, RMSprop):
        return lambda p: torch.optim.RMSprop(
            [p], alpha=o.rho, eps=o.eps, momentum=o.momentum, **common
        )
    if isinstance(o, Adadelta):
        return lambda p: torch.optim.Adadelta([p], rho=o.rho, eps=o.eps, **common)
    if isinstance(o, Momentum):
        nesterov = isinstance(o, Nesterov)
        return lambda p: torch.optim.SGD([p], momentum=o.momentum, nesterov=nesterov, **common)
    return lambda p: torch.optim.SGD([p], **common)


@pytest.mark.parametrize(
    "optimizer", [o for o in CASES if not isinstance(o, FTRL | RowwiseAdagrad)], ids=str
)
def test_two_hundred_steps_equal_torch(optimizer: Optimizer) -> None:
    twin_of = torch_twin(optimizer)
    import torch

    rng = np.random.default_rng(3)
    data, rows = arena(optimizer, 6, 3), np.arange(20)
    weights = torch.nn.Parameter(torch.tensor(data[:, :6]))
    twin, update = twin_of(weights), update_of(optimizer)

    for _ in range(200):
        grads = (rng.standard_normal((20, 6)) * 10.0 ** rng.integers(-3, 2)).astype(F)
        update(data, 6, rows, frozen(grads), 0)
        weights.grad = torch.tensor(grads)
        twin.step()

    np.testing.assert_allclose(data[:, :6], weights.detach().numpy(), rtol=2e-5, atol=5e-6)


@pytest.mark.parametrize("optimizer", [o for o in CASES if isinstance(o, FTRL)], ids=str)
def test_ftrl_follows_its_paper_over_many_steps(optimizer: FTRL) -> None:
    rng = np.random.default_rng(5)
    data, rows = arena(optimizer, 6, 5), np.arange(20)
    w = data[:, :6].astype(np.float64)
    z, n = first_z(optimizer, w), np.zeros_like(w)
    update = update_of(optimizer)

    for _ in range(200):
        grads = (rng.standard_normal((20, 6)) * (rng.random((20, 6)) < 0.5)).astype(F)
        update(data, 6, rows, frozen(grads), 0)
        z, n, w = ftrl_in_numpy(optimizer, z, n, w, grads.astype(np.float64))

    np.testing.assert_allclose(data[:, :6], w, rtol=1e-4, atol=1e-5)


def test_ftrl_keeps_weights_at_zero_that_its_l1_outweighs() -> None:
    optimizer = FTRL(lr=0.1, l1=1.0)
    data = np.zeros((1, 6), F)
    update = update_of(optimizer)

    for sign in (1, 1, -1):
        update(data, 2, np.array([0]), frozen(np.array([[0.3, 3.0]], F) * F(sign)), 0)

    assert data[0, 0] == 0.0
    assert data[0, 1] < 0.0


def test_ftrl_without_regularisation_is_adagrad_with_beta_for_eps() -> None:
    rng = np.random.default_rng(0)
    ours, theirs = np.zeros((20, 12), F), np.zeros((20, 8), F)
    ours[:, :4] = theirs[:, :4] = rng.standard_normal((20, 4))
    ftrl, adagrad = update_of(FTRL(lr=0.3, beta=0.5)), update_of(Adagrad(lr=0.3, eps=0.5))

    for rate in (0.3, 0.3, 0.1, 0.0, 0.2):  # and follows a changing learning rate as it does
        ftrl.set_lr(rate)
        adagrad.set_lr(rate)
        grads = frozen(rng.standard_normal((20, 4)).astype(F))
        ftrl(ours, 4, np.arange(20), grads, 0)
        adagrad(theirs, 4, np.arange(20), grads, 0)

    np.testing.assert_allclose(ours[:, :4], theirs[:, :4], rtol=1e-5, atol=1e-6)


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
