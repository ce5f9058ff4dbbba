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
Apply = Callable[[NDArray[np.float32], int, NDArray[np.int64], NDArray[np.float32]], None]
"""(data, dim, rows, grads): one step of the optimiser on these rows, in place."""


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


def update_of(optimizer: Optimizer) -> Apply:
    """The update of rows that `optimizer` means, its settings bound in the kernel's types.

    Raises:
        TypeError: an optimiser without a kernel, a mistake in this package.
    """
    if type(optimizer) not in KERNELS:
        raise TypeError(f"{type(optimizer).__name__} has no kernel in kv.kernels.updates")
    run, *settings = KERNELS[type(optimizer)](optimizer)

    def apply(
        data: NDArray[np.float32],
        dim: int,
        rows: NDArray[np.int64],
        grads: NDArray[np.float32],
    ) -> None:
        run(data, dim, rows, grads, *settings)

    return apply
