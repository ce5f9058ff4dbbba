"""Which kernel serves which optimiser.

A new optimiser is a settings class in `kv.optimizers`, a kernel beside this file, and a line here.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kv.kernels.adagrad import adagrad
from kv.kernels.adam import adam, corrections
from kv.kernels.momentum import momentum, nesterov
from kv.kernels.sgd import sgd
from kv.optimizers import SGD, Adagrad, Adam, Momentum, Nesterov, Optimizer

ADAM_STEPS = 1024  # steps of a row whose corrections are read from a table


def _sgd(o: SGD) -> tuple[Any, ...]:
    return sgd, np.float32(o.lr)


def _momentum(o: Momentum) -> tuple[Any, ...]:
    return momentum, np.float32(o.lr), np.float32(o.momentum)


def _nesterov(o: Nesterov) -> tuple[Any, ...]:
    return nesterov, np.float32(o.lr), np.float32(o.momentum)


def _adagrad(o: Adagrad) -> tuple[Any, ...]:
    return adagrad, np.float32(o.lr), np.float32(o.eps)


def _adam(o: Adam) -> tuple[Any, ...]:
    rates, scales = np.empty(ADAM_STEPS, np.float32), np.empty(ADAM_STEPS, np.float32)
    corrections(o.lr, o.beta1, o.beta2, rates, scales)
    return adam, o.lr, o.beta1, o.beta2, np.float32(o.eps), rates, scales


KERNELS: dict[type[Optimizer], Callable[[Any], tuple[Any, ...]]] = {
    SGD: _sgd,
    Momentum: _momentum,
    Nesterov: _nesterov,
    Adagrad: _adagrad,
    Adam: _adam,
}


class Step:
    """An optimiser's step on rows, with its settings in the kernel's types.

    Args:
        optimizer: what to do.
    Raises:
        TypeError: an optimiser without a kernel, a mistake in this package.
    """

    def __init__(self, optimizer: Optimizer) -> None:
        if type(optimizer) not in KERNELS:
            raise TypeError(f"{type(optimizer).__name__} has no kernel in kv.kernels.updates")
        self._definition = optimizer.to_dict()
        self._run, *self._settings = KERNELS[type(optimizer)](optimizer)

    def set_lr(self, lr: float) -> None:
        """The learning rate of later steps.

        Raises:
            SettingError: no finite number of 0 or more.
        """
        optimizer = Optimizer.from_dict({**self._definition, "lr": lr})
        _, *self._settings = KERNELS[type(optimizer)](optimizer)

    def __call__(
        self,
        data: NDArray[np.float32],
        dim: int,
        rows: NDArray[np.int64],
        grads: NDArray[np.float32],
        clock: int,
    ) -> None:
        """One step on these rows, in place.

        Args:
            data: (capacity, stride); a row holds its weights, then its state.
            rows: shape (n,), none twice.
            grads: shape (n, dim), read-only (`jit.frozen`).
            clock: the table's.
        """
        self._run(data, dim, rows, grads, *self._settings)


def update_of(optimizer: Optimizer) -> Step:
    """The step of `optimizer`."""
    return Step(optimizer)
