"""Optimisers in vectorised NumPy: what one writes without kernels.

A step is `step(weights, state, steps, rows, grads)`: weights and the arrays of state float32
(n, dim), steps float32 (n, 1), rows int64 (k,), no row twice, grads float32 (k, dim). Weights and
state are read and written once, by fancy indexing. The formulas are those of `torch.optim`, and
for FTRL McMahan et al., KDD 2013, algorithm 1.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
Rows = NDArray[np.int64]
Step = Callable[[Floats, list[Floats], Floats, Rows, Floats], None]

f = np.float32
RATE, EPS = f(0.01), f(1e-8)
BETA1, BETA2, DECAY = f(0.9), f(0.999), f(0.01)


@dataclass(frozen=True)
class Formula:
    """A step and how many arrays of state it has."""

    step: Step
    arrays: int


def sgd(w: Floats, state: list[Floats], steps: Floats, rows: Rows, g: Floats) -> None:
    w[rows] -= RATE * g


def momentum(w: Floats, state: list[Floats], steps: Floats, rows: Rows, g: Floats) -> None:
    state[0][rows] = velocity = BETA1 * state[0][rows] + g
    w[rows] -= RATE * velocity


def nesterov(w: Floats, state: list[Floats], steps: Floats, rows: Rows, g: Floats) -> None:
    state[0][rows] = velocity = BETA1 * state[0][rows] + g
    w[rows] -= RATE * (g + BETA1 * velocity)


def adagrad(w: Floats, state: list[Floats], steps: Floats, rows: Rows, g: Floats) -> None:
    state[0][rows] = squares = state[0][rows] + g * g
    w[rows] -= RATE * g / (np.sqrt(squares) + EPS)


def row_adagrad(w: Floats, state: list[Floats], steps: Floats, rows: Rows, g: Floats) -> None:
    steps[rows] = squares = steps[rows] + (g * g).mean(axis=1, keepdims=True)
    w[rows] -= RATE * g / (np.sqrt(squares) + EPS)


def adam(w: Floats, state: list[Floats], steps: Floats, rows: Rows, g: Floats) -> None:
    w[rows] -= _adam_step(state, steps, rows, g)


def adamw(w: Floats, state: list[Floats], steps: Floats, rows: Rows, g: Floats) -> None:
    w[rows] = w[rows] * (f(1) - RATE * DECAY) - _adam_step(state, steps, rows, g)


def _adam_step(state: list[Floats], steps: Floats, rows: Rows, g: Floats) -> Floats:
    steps[rows] = count = steps[rows] + f(1)
    state[0][rows] = mean = BETA1 * state[0][rows] + (f(1) - BETA1) * g
    state[1][rows] = square = BETA2 * state[1][rows] + (f(1) - BETA2) * g * g
    first, second = f(1) - BETA1**count, f(1) - BETA2**count
    change: Floats = RATE * (mean / first) / (np.sqrt(square / second) + EPS)
    return change


def rmsprop(w: Floats, state: list[Floats], steps: Floats, rows: Rows, g: Floats) -> None:
    state[0][rows] = square = BETA2 * state[0][rows] + (f(1) - BETA2) * g * g
    w[rows] -= RATE * g / (np.sqrt(square) + EPS)


def rmsprop_momentum(w: Floats, state: list[Floats], steps: Floats, rows: Rows, g: Floats) -> None:
    state[0][rows] = square = BETA2 * state[0][rows] + (f(1) - BETA2) * g * g
    state[1][rows] = velocity = BETA1 * state[1][rows] + g / (np.sqrt(square) + EPS)
    w[rows] -= RATE * velocity


def adadelta(w: Floats, state: list[Floats], steps: Floats, rows: Rows, g: Floats) -> None:
    state[0][rows] = square = BETA1 * state[0][rows] + (f(1) - BETA1) * g * g
    past = state[1][rows]
    change = np.sqrt(past + EPS) / np.sqrt(square + EPS) * g
    state[1][rows] = BETA1 * past + (f(1) - BETA1) * change * change
    w[rows] -= RATE * change


def ftrl(w: Floats, state: list[Floats], steps: Floats, rows: Rows, g: Floats) -> None:
    old = state[1][rows]
    state[1][rows] = squares = old + g * g
    root = np.sqrt(squares)
    z = state[0][rows] + g - (root - np.sqrt(old)) / RATE * w[rows]
    state[0][rows] = z
    shrunk = np.sign(z) * np.maximum(np.abs(z) - DECAY, f(0))
    w[rows] = -shrunk / ((f(1) + root) / RATE + DECAY)


FORMULAS: Mapping[str, Formula] = {
    "sgd": Formula(sgd, 0),
    "momentum": Formula(momentum, 1),
    "nesterov": Formula(nesterov, 1),
    "adagrad": Formula(adagrad, 1),
    "rowwise_adagrad": Formula(row_adagrad, 0),
    "adam": Formula(adam, 2),
    "adamw": Formula(adamw, 2),
    "rmsprop": Formula(rmsprop, 1),
    "rmsprop_momentum": Formula(rmsprop_momentum, 2),  # no name of its own among optimisers
    "adadelta": Formula(adadelta, 2),
    "ftrl": Formula(ftrl, 2),
}
