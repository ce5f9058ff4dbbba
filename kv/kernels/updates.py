"""Which kernel serves which optimiser, and what happens to a gradient before it gets there.

A new optimiser is a settings class in `kv.optimizers`, a kernel beside this file, and a line here.
"""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kv.bounds import stored_bounds
from kv.errors import SettingError
from kv.kernels.adadelta import adadelta
from kv.kernels.adagrad import adagrad
from kv.kernels.adam import adam, corrections
from kv.kernels.ftrl import ftrl
from kv.kernels.gradients import clamp, clipped_square, prepare
from kv.kernels.jit import frozen
from kv.kernels.momentum import momentum, nesterov
from kv.kernels.rmsprop import rmsprop, rmsprop_momentum
from kv.kernels.rowwise import rowwise_adagrad
from kv.kernels.sgd import sgd
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
from kv.settings import GREATEST

ADAM_STEPS = 1024  # steps of a row whose corrections are read from a table
ONE = np.float32(1)
SCRATCH = 1 << 16  # floats of gradients made ready at a time: they stay in the cache

Floats = NDArray[np.float32]
Bound = tuple[Any, ...]
"""A kernel and its settings behind (data, dim, rows, grads, lr)."""


def _sgd(o: SGD) -> Bound:
    return (sgd,)


def _momentum(o: Momentum) -> Bound:
    return momentum, np.float32(o.momentum)


def _nesterov(o: Nesterov) -> Bound:
    return nesterov, np.float32(o.momentum)


def _adagrad(o: Adagrad) -> Bound:
    return adagrad, np.float32(o.eps)


def _rowwise_adagrad(o: RowwiseAdagrad) -> Bound:
    return rowwise_adagrad, np.float32(o.eps)


def _adam(o: Adam) -> Bound:
    rates, scales = np.empty(ADAM_STEPS, np.float32), np.empty(ADAM_STEPS, np.float32)
    corrections(o.beta1, o.beta2, rates, scales)
    decay = np.float32(o.weight_decay if o.decoupled else 0)
    return adam, decay, o.beta1, o.beta2, np.float32(o.eps), rates, scales


def _rmsprop(o: RMSprop) -> Bound:
    if o.momentum:
        return rmsprop_momentum, o.rho, np.float32(o.eps), np.float32(o.momentum)
    return rmsprop, o.rho, np.float32(o.eps)


def _adadelta(o: Adadelta) -> Bound:
    return adadelta, o.rho, np.float32(o.eps)


def _ftrl(o: FTRL) -> Bound:
    return ftrl, np.float32(o.beta), np.float32(o.lr * o.l1), np.float32(o.lr * o.l2)


KERNELS: dict[type[Optimizer], Callable[[Any], Bound]] = {
    SGD: _sgd,
    Momentum: _momentum,
    Nesterov: _nesterov,
    Adagrad: _adagrad,
    RowwiseAdagrad: _rowwise_adagrad,
    Adam: _adam,
    AdamW: _adam,
    RMSprop: _rmsprop,
    Adadelta: _adadelta,
    FTRL: _ftrl,
}


class Step:
    """An optimiser's step on rows, its settings bound in the kernel's types.

    Not thread safe: gradients are made ready in memory of its own.

    Args:
        optimizer: what to do.
        is_whole: whether the rows of one call are one array, whose norm is clipped as one.
        storage: of the weights, whose bounds must be numbers that it has.
    Attributes:
        clipped_rows: gradients of rows that clip_value or clip_norm has changed.
        clipped_wholes: gradients of whole arrays that clip_norm has scaled.
    Raises:
        TypeError: an optimiser without a kernel, a mistake in this package.
    """

    def __init__(
        self, optimizer: Optimizer, is_whole: bool = False, storage: str = "float32"
    ) -> None:
        if type(optimizer) not in KERNELS:
            raise TypeError(f"{type(optimizer).__name__} has no kernel in kv.kernels.updates")
        self._schedule = optimizer.schedule
        self.set_lr(optimizer.lr)
        self._run, *self._settings = KERNELS[type(optimizer)](optimizer)
        decay = 0.0 if optimizer.decoupled else optimizer.weight_decay
        row_norm = 0.0 if is_whole else optimizer.clip_norm
        self._prepares = bool(decay or optimizer.clip_value or row_norm)  # else only by a scale
        self._bounds = stored_bounds(optimizer, storage)
        self._is_plain = not (
            self._schedule or self._prepares or optimizer.clip_norm or self._bounds
        )
        self.clipped_rows = self.clipped_wholes = 0
        self._decay = np.float32(decay)
        self._value = np.float32(optimizer.clip_value or math.inf)
        norm = optimizer.clip_norm or math.inf
        self._norm = np.float32(math.inf if is_whole else norm)
        self._whole_norm = norm if is_whole else math.inf
        self._scratch = np.empty((0, 0), np.float32)

    def set_lr(self, lr: float) -> None:
        """The learning rate of later steps, before the schedule's factor.

        Raises:
            SettingError: no finite number of 0 or more.
        """
        if isinstance(lr, bool) or not isinstance(lr, int | float) or not 0 <= lr <= GREATEST:
            raise SettingError("optimizer", f"lr must be a finite number, 0 or more, not {lr!r}")
        self._lr, self._rate = float(lr), np.float32(lr)

    @property
    def lr(self) -> float:
        """The learning rate, before the schedule's factor."""
        return self._lr

    def rate(self, clock: int) -> np.float32:
        """The learning rate at a table's clock."""
        if self._schedule is None:
            return self._rate
        return np.float32(self._lr * self._schedule.factor(clock))

    def scale(self, grads: Floats) -> np.float32:
        """What brings gradients that are one array, float32 (n, dim), to the norm allowed."""
        if self._whole_norm == math.inf:
            return ONE
        norm = math.sqrt(clipped_square(frozen(grads).reshape(-1), self._value))
        if norm <= self._whole_norm:
            return ONE
        self.clipped_wholes += 1
        return np.float32(self._whole_norm / norm)

    @property
    def has_bounds(self) -> bool:
        """Whether weights have bounds."""
        return self._bounds is not None

    def bound(self, data: Floats, dim: int, rows: NDArray[np.int64]) -> None:
        """Bring weights that no step has made into the optimiser's bounds; arguments as below."""
        if self._bounds is not None:
            clamp(data, dim, rows, *self._bounds)

    def __call__(
        self, data: Floats, dim: int, rows: NDArray[np.int64], grads: Floats, clock: int
    ) -> None:
        """One step on these rows, in place.

        Args:
            data: (capacity, stride); a row holds its weights, then its state.
            rows: shape (n,), none twice.
            grads: shape (n, dim), read-only (`jit.frozen`), finite.
            clock: the table's.
        """
        if self._is_plain:  # a short way, which one key feels
            self._run(data, dim, rows, grads, self._rate, *self._settings)
            return
        self.apply(data, dim, rows, grads, self.rate(clock), self.scale(grads))

    def apply(
        self,
        data: Floats,
        dim: int,
        rows: NDArray[np.int64],
        grads: Floats,
        rate: np.float32,
        scale: np.float32,
    ) -> None:
        """A call, or a part of one, with its `rate` and the `scale` of all its gradients."""
        prepares = self._prepares or scale != ONE
        if not prepares and self._bounds is None:
            self._run(data, dim, rows, grads, rate, *self._settings)
            return
        block = max(1, SCRATCH // dim)
        limits = self._value, self._norm, scale, self._decay
        for start in range(0, rows.size, block):
            part = slice(start, start + block)
            mine, given = rows[part], grads[part]
            if prepares:
                ready = self._ready(mine.size, dim)
                self.clipped_rows += prepare(data, dim, mine, given, *limits, ready)
                given = frozen(ready)
            self._run(data, dim, mine, given, rate, *self._settings)
            if self._bounds is not None:  # while the rows are in the cache
                clamp(data, dim, mine, *self._bounds)

    def _ready(self, count: int, dim: int) -> Floats:
        """Memory for `count` gradients."""
        if self._scratch.shape[0] < count or self._scratch.shape[1] != dim:
            self._scratch = np.empty((count, dim), np.float32)
        return self._scratch[:count]


def update_of(optimizer: Optimizer, is_whole: bool = False, storage: str = "float32") -> Step:
    """The step of `optimizer`; see `Step`."""
    return Step(optimizer, is_whole, storage)
