"""Optimisers: what a server does with the gradient of a row.

Here are their settings, checked and ready to travel; the loops are in `kv.kernels`, joined to these
classes by `kv.kernels.updates`. No Numba and no arrays, so that any process may import this.

The formulas are those of `torch.optim` with the same names, without weight decay. State lies beside
the weights of a row and changes only when the row is touched.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import ClassVar

from kv.settings import Named

LEAST_EPS = 2e-38  # about the smallest normal float32; a zero gradient must not become 0 / 0


class Optimizer(Named):
    """Base of all optimisers.

    `initial_state` is the value each float of a new row's state starts with.
    """

    family: ClassVar[str] = "optimizer"
    lr: float

    def check(self) -> None:
        self.require(self.lr >= 0, "lr", "0 or more")

    def state_floats(self, dim: int) -> int:
        """How many floats of state follow the `dim` weights of a row."""
        return 0

    @property
    def initial_state(self) -> float:
        return 0.0


@dataclass(frozen=True)
class SGD(Optimizer):
    """w -= lr g."""

    name: ClassVar[str] = "sgd"
    lr: float = 0.01


@dataclass(frozen=True)
class Momentum(Optimizer):
    """v = momentum v + g, then w -= lr v; as torch.optim.SGD(momentum=…)."""

    name: ClassVar[str] = "momentum"
    lr: float = 0.01
    momentum: float = 0.9

    def check(self) -> None:
        super().check()
        self.require(0 <= self.momentum < 1, "momentum", "in [0, 1)")

    def state_floats(self, dim: int) -> int:
        return dim


@dataclass(frozen=True)
class Nesterov(Momentum):
    """v = momentum v + g, then w -= lr (g + momentum v); as torch.optim.SGD(nesterov=True)."""

    name: ClassVar[str] = "nesterov"


@dataclass(frozen=True)
class Adagrad(Optimizer):
    """s += g g, then w -= lr g / (sqrt(s) + eps).

    `initial_accumulator` is what s starts with: larger ones soften a row's first steps.
    """

    name: ClassVar[str] = "adagrad"
    lr: float = 0.01
    eps: float = 1e-10
    initial_accumulator: float = 0.0

    def check(self) -> None:
        super().check()
        self.require(self.initial_accumulator >= 0, "initial_accumulator", "0 or more")
        self.require(self.eps >= LEAST_EPS, "eps", f"{LEAST_EPS} or more")

    def state_floats(self, dim: int) -> int:
        return dim

    @property
    def initial_state(self) -> float:
        return self.initial_accumulator


@dataclass(frozen=True)
class Adam(Optimizer):
    """Adam with a step count of each row; moments of rows that are not touched stand still."""

    name: ClassVar[str] = "adam"
    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def check(self) -> None:
        super().check()
        self.require(0 <= self.beta1 < 1, "beta1", "in [0, 1)")
        self.require(0 <= self.beta2 < 1, "beta2", "in [0, 1)")
        self.require(self.eps >= LEAST_EPS, "eps", f"{LEAST_EPS} or more")

    def state_floats(self, dim: int) -> int:
        return 2 * dim + 1


def by_name(name: str, **settings: float) -> Optimizer:
    """`Adagrad(lr=0.05)` as `by_name("adagrad", lr=0.05)`; see `Named.by_name` for errors."""
    return Optimizer.by_name(name, **settings)
