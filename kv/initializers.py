"""Initialisers: what a row holds before anyone has pushed to it.

A value depends on the seed, the table's name, the key and the column, and on nothing else: neither
the order in which keys arrive nor the number of servers changes a model. The generator is counter
based (a splitmix64 stream per key, `kv.kernels.rows.initialize`); no Numba is loaded here.
"""

from __future__ import annotations

import hashlib
import math
from dataclasses import dataclass
from typing import ClassVar

from kv.settings import Named

CONSTANT, UNIFORM, NORMAL = 0, 1, 2


class Initializer(Named):
    """Base of all initialisers."""

    family: ClassVar[str] = "initializer"

    def recipe(self) -> tuple[int, float, float]:
        """What the kernel does: (CONSTANT, value, 0), (UNIFORM, low, high), (NORMAL, mean, std)."""
        raise TypeError(f"{type(self).__name__} says no recipe")


@dataclass(frozen=True)
class Zeros(Initializer):
    """All zeros."""

    name: ClassVar[str] = "zeros"

    def recipe(self) -> tuple[int, float, float]:
        return CONSTANT, 0.0, 0.0


@dataclass(frozen=True)
class Constant(Initializer):
    """All `value`."""

    name: ClassVar[str] = "constant"
    value: float

    def recipe(self) -> tuple[int, float, float]:
        return CONSTANT, self.value, 0.0


@dataclass(frozen=True)
class Uniform(Initializer):
    """Evenly spread from `low` to `high`."""

    name: ClassVar[str] = "uniform"
    low: float = -0.05
    high: float = 0.05

    def check(self) -> None:
        self.require(self.low <= self.high, "low", f"at most high = {self.high}")

    def recipe(self) -> tuple[int, float, float]:
        return UNIFORM, self.low, self.high


@dataclass(frozen=True)
class Normal(Initializer):
    """Normal with deviation `std` around `mean`."""

    name: ClassVar[str] = "normal"
    std: float = 0.01
    mean: float = 0.0

    def check(self) -> None:
        self.require(self.std >= 0, "std", "0 or more")

    def recipe(self) -> tuple[int, float, float]:
        return NORMAL, self.mean, self.std


@dataclass(frozen=True)
class Xavier(Initializer):
    """Uniform within ±sqrt(6 / (fan_in + fan_out)).

    Source: Glorot, Bengio, AISTATS 2010, equation 16.
    """

    name: ClassVar[str] = "xavier"
    fan_in: float
    fan_out: float

    def check(self) -> None:
        self.require(self.fan_in > 0, "fan_in", "above 0")
        self.require(self.fan_out > 0, "fan_out", "above 0")

    def recipe(self) -> tuple[int, float, float]:
        bound = math.sqrt(6.0 / (self.fan_in + self.fan_out))
        return UNIFORM, -bound, bound


@dataclass(frozen=True)
class He(Initializer):
    """Normal with deviation sqrt(2 / fan_in).

    Source: He, Zhang, Ren, Sun, ICCV 2015, equation 10.
    """

    name: ClassVar[str] = "he"
    fan_in: float

    def check(self) -> None:
        self.require(self.fan_in > 0, "fan_in", "above 0")

    def recipe(self) -> tuple[int, float, float]:
        return NORMAL, 0.0, math.sqrt(2.0 / self.fan_in)


def by_name(name: str, **settings: float) -> Initializer:
    """`Normal(std=0.1)` as `by_name("normal", std=0.1)`; see `Named.by_name` for errors."""
    return Initializer.by_name(name, **settings)


def table_seed(seed: int, table: str) -> int:
    """The 64-bit seed of a table's initial values, from the job's seed and the table's name."""
    text = f"{seed}\0{table}".encode()
    return int.from_bytes(hashlib.blake2b(text, digest_size=8).digest(), "little")
