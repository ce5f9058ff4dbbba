"""One step of each optimiser in NumPy, as one would write it without a kernel.

Each takes weights (n, dim), state (n, floats) and gradients (n, dim), float32, and works in place.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

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
Floats = NDArray[np.float32]
Formula = Callable[[Floats, Floats, Floats], None]
RATE, EPS = F(0.01), F(1e-8)


def sgd(w: Floats, state: Floats, g: Floats) -> None:
    w -= RATE * g


def momentum(w: Floats, state: Floats, g: Floats) -> None:
    state *= F(0.9)
    state += g
    w -= RATE * state


def nesterov(w: Floats, state: Floats, g: Floats) -> None:
    state *= F(0.9)
    state += g
    w -= RATE * (g + F(0.9) * state)


def adagrad(w: Floats, state: Floats, g: Floats) -> None:
    state += g * g
    w -= RATE * g / (np.sqrt(state) + EPS)


def rowwise_adagrad(w: Floats, state: Floats, g: Floats) -> None:
    state += np.einsum("ij,ij->i", g, g)[:, None] / F(g.shape[1])
    w -= RATE * g / (np.sqrt(state) + EPS)


def adam(w: Floats, state: Floats, g: Floats) -> None:
    dim = g.shape[1]
    m, v, steps = state[:, :dim], state[:, dim:-1], state[:, -1:]
    m += F(0.1) * (g - m)
    v += F(0.001) * (g * g - v)
    steps += 1
    first, second = 1 - F(0.9) ** steps, 1 - F(0.999) ** steps
    w -= RATE * (m / first) / (np.sqrt(v / second) + EPS)


def adamw(w: Floats, state: Floats, g: Floats) -> None:
    w *= F(1 - 0.01 * 0.01)
    adam(w, state, g)


def rmsprop(w: Floats, state: Floats, g: Floats) -> None:
    state += F(0.01) * (g * g - state)
    w -= RATE * g / (np.sqrt(state) + EPS)


def rmsprop_momentum(w: Floats, state: Floats, g: Floats) -> None:
    dim = g.shape[1]
    v, b = state[:, :dim], state[:, dim:]
    v += F(0.01) * (g * g - v)
    b *= F(0.9)
    b += g / (np.sqrt(v) + EPS)
    w -= RATE * b


def adadelta(w: Floats, state: Floats, g: Floats) -> None:
    dim = g.shape[1]
    v, u = state[:, :dim], state[:, dim:]
    v += F(0.1) * (g * g - v)
    delta = np.sqrt(u + EPS) / np.sqrt(v + EPS) * g
    u += F(0.1) * (delta * delta - u)
    w -= RATE * delta


def ftrl(w: Floats, state: Floats, g: Floats) -> None:
    dim, alpha, beta, l1, l2 = g.shape[1], F(0.1), F(1), F(0.1), F(0.1)
    z, n = state[:, :dim], state[:, dim:]
    root = np.sqrt(n + g * g)
    z += g - (root - np.sqrt(n)) / alpha * w
    n += g * g
    pulled = -(z - np.sign(z) * l1) / ((beta + root) / alpha + l2)
    w[:] = np.where(np.abs(z) <= l1, F(0), pulled)


FORMULAS: list[tuple[Optimizer, Formula]] = [
    (SGD(), sgd),
    (Momentum(), momentum),
    (Nesterov(), nesterov),
    (Adagrad(), adagrad),
    (RowwiseAdagrad(), rowwise_adagrad),
    (Adam(), adam),
    (AdamW(), adamw),
    (RMSprop(), rmsprop),
    (RMSprop(momentum=0.9), rmsprop_momentum),
    (Adadelta(), adadelta),
    (FTRL(l1=0.1, l2=0.1), ftrl),
]
