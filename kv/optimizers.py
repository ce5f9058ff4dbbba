"""Optimisers: what a server does with the gradient of a row.

Here are their settings, checked and ready to travel; the loops are in `kv.kernels`, joined to these
classes by `kv.kernels.updates`. No Numba and no arrays, so that any process may import this.
`docs/optimizers.md` compares them.

The formulas are those of `torch.optim` with the same names where it has one. State lies beside the
weights of a row and changes only when the row is touched; so does weight decay: a row that no
gradient comes for does not shrink.
"""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass, field
from typing import Any, ClassVar

from kv.schedules import Schedule
from kv.settings import Named

CLIPS = ("clip_value", "clip_norm", "clip_global_norm")  # in the order in which they are applied
LEAST_EPS = 2e-38  # about the smallest normal float32; a zero gradient must not become 0 / 0


@dataclass(frozen=True, repr=False)
class Optimizer(Named):
    """Base of all optimisers. What is off costs nothing.

    Args:
        lr: learning rate.
        weight_decay: this times the weights is added to the gradient (L2), after clipping; 0 is
            off. `AdamW` shrinks the weights instead.
        clip_value: each number of a gradient is brought into ±this; 0 or None is off.
        clip_norm: gradients with a larger L2 norm are scaled down to it, after `clip_value`; 0 or
            None is off. In a sparse table the norm is that of each row's gradient; in a dense one
            that of the part of the array that is pushed to one server, not of the whole where
            several servers share it.
        clip_global_norm: gradients that are applied together, those of a push or in modes with
            rounds the sum of a round, are scaled down to this L2 norm of them all, after the two
            above; of what one server has of them. 0 or None is off.
        weight_bounds: (low, high), between which weights are brought after each update, and first
            when they are initialised or assigned; None for an open end. None is off.
        schedule: what `lr` is multiplied with as the table's clock grows; None is 1 for ever.
    """

    family: ClassVar[str] = "optimizer"
    decoupled: ClassVar[bool] = False  # whether weight decay is part of the formula, not L2
    normalises: ClassVar[bool] = (
        False  # whether a gradient twice as large makes about the same step
    )
    lr: float = 0.01
    weight_decay: float = field(default=0.0, kw_only=True)
    clip_value: float = field(default=0.0, kw_only=True)
    clip_norm: float = field(default=0.0, kw_only=True)
    clip_global_norm: float = field(default=0.0, kw_only=True)
    weight_bounds: tuple[float | None, float | None] | None = field(
        default=None, kw_only=True, metadata={"is_pair": True}
    )
    schedule: Schedule | None = field(default=None, kw_only=True, metadata={"family": Schedule})

    def __post_init__(self) -> None:
        for setting in ("weight_decay", *CLIPS):
            if getattr(self, setting) is None:
                object.__setattr__(self, setting, 0.0)
        super().__post_init__()

    def __repr__(self) -> str:
        """As the call that makes it; keyword-only settings only where they are not the default."""
        shown = (
            f"{f.name}={getattr(self, f.name)!r}"
            for f in sorted(dataclasses.fields(self), key=lambda f: bool(f.kw_only))
            if not f.kw_only or getattr(self, f.name) != f.default
        )
        return f"{type(self).__name__}({', '.join(shown)})"

    def check(self) -> None:
        for setting in ("lr", "weight_decay", *CLIPS):
            self.require(getattr(self, setting) >= 0, setting, "0 or more")
        low, high = self.weight_bounds or (None, None)
        is_range = low is None or high is None or low < high
        self.require(is_range, "weight_bounds", "(low, high) with low below high")

    def state_floats(self, dim: int) -> int:
        """How many floats of state follow the `dim` weights of a row."""
        return 0

    @property
    def initial_state(self) -> float:
        """The value each float of a new row's state starts with."""
        return 0.0

    def _check_fraction(self, setting: str) -> None:
        self.require(0 <= getattr(self, setting) < 1, setting, "in [0, 1)")

    def _check_eps(self, eps: float) -> None:
        self.require(eps >= LEAST_EPS, "eps", f"{LEAST_EPS} or more")


@dataclass(frozen=True, repr=False)
class SGD(Optimizer):
    """w -= lr g."""

    name: ClassVar[str] = "sgd"


@dataclass(frozen=True, repr=False)
class Momentum(Optimizer):
    """v = momentum v + g, then w -= lr v; as torch.optim.SGD(momentum=…)."""

    name: ClassVar[str] = "momentum"
    momentum: float = 0.9

    def check(self) -> None:
        super().check()
        self._check_fraction("momentum")

    def state_floats(self, dim: int) -> int:
        return dim


@dataclass(frozen=True, repr=False)
class Nesterov(Momentum):
    """v = momentum v + g, then w -= lr (g + momentum v); as torch.optim.SGD(nesterov=True)."""

    name: ClassVar[str] = "nesterov"


@dataclass(frozen=True, repr=False)
class Adagrad(Optimizer):
    """s += g g, then w -= lr g / (sqrt(s) + eps).

    `initial_accumulator` is what s starts with: larger ones soften a row's first steps.
    """

    name: ClassVar[str] = "adagrad"
    eps: float = 1e-10
    initial_accumulator: float = 0.0

    def check(self) -> None:
        super().check()
        self.require(self.initial_accumulator >= 0, "initial_accumulator", "0 or more")
        self._check_eps(self.eps)

    def state_floats(self, dim: int) -> int:
        return dim

    @property
    def initial_state(self) -> float:
        return self.initial_accumulator


@dataclass(frozen=True, repr=False)
class RowwiseAdagrad(Adagrad):
    """Adagrad with one s a row: s += mean(g g), then w -= lr g / (sqrt(s) + eps).

    In a dense table a row is a block of up to 4 096 floats.
    """

    name: ClassVar[str] = "rowwise_adagrad"

    def state_floats(self, dim: int) -> int:
        return 1


@dataclass(frozen=True, repr=False)
class Adam(Optimizer):
    """Adam with a step count of each row; moments of rows that are not touched stand still."""

    name: ClassVar[str] = "adam"
    normalises: ClassVar[bool] = True
    lr: float = 1e-3
    beta1: float = 0.9
    beta2: float = 0.999
    eps: float = 1e-8

    def check(self) -> None:
        super().check()
        self._check_fraction("beta1")
        self._check_fraction("beta2")
        self._check_eps(self.eps)

    def state_floats(self, dim: int) -> int:
        return 2 * dim + 1


@dataclass(frozen=True, repr=False)
class AdamW(Adam):
    """w *= 1 - lr weight_decay, then a step of Adam with the bare gradient."""

    name: ClassVar[str] = "adamw"
    decoupled: ClassVar[bool] = True
    weight_decay: float = field(default=0.01, kw_only=True)


@dataclass(frozen=True, repr=False)
class RMSprop(Optimizer):
    """v = rho v + (1 - rho) g g, then w -= lr g / (sqrt(v) + eps).

    With `momentum` b = momentum b + g / (sqrt(v) + eps), then w -= lr b. `rho` is torch's `alpha`.
    """

    name: ClassVar[str] = "rmsprop"
    normalises: ClassVar[bool] = True
    rho: float = 0.99
    eps: float = 1e-8
    momentum: float = 0.0

    def check(self) -> None:
        super().check()
        self._check_fraction("rho")
        self._check_fraction("momentum")
        self._check_eps(self.eps)

    def state_floats(self, dim: int) -> int:
        return 2 * dim if self.momentum else dim


@dataclass(frozen=True, repr=False)
class Adadelta(Optimizer):
    """v = rho v + (1 - rho) g g, d = g sqrt(u + eps) / sqrt(v + eps), then w -= lr d.

    u is to d what v is to g, and is brought up to date after d.
    """

    name: ClassVar[str] = "adadelta"
    normalises: ClassVar[bool] = True
    lr: float = 1.0
    rho: float = 0.9
    eps: float = 1e-6

    def check(self) -> None:
        super().check()
        self._check_fraction("rho")
        self._check_eps(self.eps)

    def state_floats(self, dim: int) -> int:
        return 2 * dim


@dataclass(frozen=True, repr=False)
class FTRL(Optimizer):
    """FTRL-proximal per coordinate, with `lr` as alpha: weights that L1 keeps at exactly zero.

    s = (sqrt(n + g g) - sqrt(n)) / alpha;  z += g - s w;  n += g g;  then w = 0 where |z| <= l1,
    else -(z - sign(z) l1) / ((beta + sqrt(n)) / alpha + l2). A row's first z is the one that leaves
    its initial or assigned weight where it is: with `Zeros()` all start at zero, as in the paper.

    A schedule or a learning rate set later scales the gradients' part, alpha g, as it would in
    Adagrad; `l1` and `l2` keep the strength they have at the `lr` given here.
    """

    name: ClassVar[str] = "ftrl"
    lr: float = 0.1
    beta: float = 1.0
    l1: float = 0.0
    l2: float = 0.0

    def check(self) -> None:
        super().check()
        for setting in ("beta", "l1", "l2"):
            self.require(getattr(self, setting) >= 0, setting, "0 or more")

    def state_floats(self, dim: int) -> int:
        return 2 * dim


def by_name(name: str, **settings: Any) -> Optimizer:
    """`Adagrad(lr=0.05)` as `by_name("adagrad", lr=0.05)`; see `Named.by_name` for errors."""
    return Optimizer.by_name(name, **settings)
