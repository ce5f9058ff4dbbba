"""Schedules: what a learning rate is multiplied with as a table's clock grows.

A schedule is a function of the clock alone, the number of updates (async) or rounds (sync) of the
table before this one, on its server. So it travels in the definition, and a server needs no word
from a worker to follow it. In mode async each server counts the pushes that reached it.

The formulas are those of `torch.optim.lr_scheduler` where it has them: LinearLR (`Warmup`,
`LinearDecay`), StepLR, ExponentialLR, CosineAnnealingLR, SequentialLR (`Warmup.then`).
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, fields
from typing import ClassVar

from kv.errors import SettingError
from kv.settings import Named


@dataclass(frozen=True)
class Schedule(Named):
    """Base of all schedules."""

    family: ClassVar[str] = "schedule"

    def factor(self, clock: int) -> float:
        """What the learning rate is multiplied with for update number `clock`, from 0."""
        raise TypeError(f"{type(self).__name__} has no factor")


@dataclass(frozen=True)
class ConstantRate(Schedule):
    """Always `value`."""

    name: ClassVar[str] = "constant"
    value: float = 1.0

    def check(self) -> None:
        self.require(self.value >= 0, "value", "0 or more")

    def factor(self, clock: int) -> float:
        return self.value


@dataclass(frozen=True)
class Warmup(Schedule):
    """From `start` in a line to 1 in `steps` updates, then as `then` says, counted from there.

    Source: Goyal et al., Accurate, Large Minibatch SGD, 2017, section 2.2 (gradual warmup).
    """

    name: ClassVar[str] = "warmup"
    steps: float
    start: float = 0.1
    then: Schedule | None = field(default=None, metadata={"family": Schedule})

    def check(self) -> None:
        self.require(self.steps > 0, "steps", "above 0")
        self.require(self.start >= 0, "start", "0 or more")

    def factor(self, clock: int) -> float:
        if clock < self.steps:
            return self.start + (1 - self.start) * clock / self.steps
        return 1.0 if self.then is None else self.then.factor(clock - math.ceil(self.steps))


@dataclass(frozen=True)
class StepDecay(Schedule):
    """`rate` times smaller after every `steps` updates: rate ** (clock // steps)."""

    name: ClassVar[str] = "step"
    steps: float
    rate: float = 0.1

    def check(self) -> None:
        self.require(self.steps > 0, "steps", "above 0")
        self.require(0 <= self.rate <= 1, "rate", "in [0, 1]")

    def factor(self, clock: int) -> float:
        return float(self.rate ** (clock // self.steps))


@dataclass(frozen=True)
class ExponentialDecay(Schedule):
    """rate ** (clock / steps), without steps."""

    name: ClassVar[str] = "exponential"
    steps: float
    rate: float = 0.96

    def check(self) -> None:
        self.require(self.steps > 0, "steps", "above 0")
        self.require(0 < self.rate <= 1, "rate", "in (0, 1]")

    def factor(self, clock: int) -> float:
        return float(self.rate ** (clock / self.steps))


@dataclass(frozen=True)
class CosineDecay(Schedule):
    """Half a cosine from 1 to `end` in `steps` updates, then `end`.

    Source: Loshchilov, Hutter, SGDR, ICLR 2017, equation 5, without restarts.
    """

    name: ClassVar[str] = "cosine"
    steps: float
    end: float = 0.0

    def check(self) -> None:
        self.require(self.steps > 0, "steps", "above 0")
        self.require(self.end >= 0, "end", "0 or more")

    def factor(self, clock: int) -> float:
        done = min(clock / self.steps, 1.0)
        return self.end + (1 - self.end) * (1 + math.cos(math.pi * done)) / 2


@dataclass(frozen=True)
class LinearDecay(Schedule):
    """In a line from 1 to `end` in `steps` updates, then `end`."""

    name: ClassVar[str] = "linear"
    steps: float
    end: float = 0.0

    def check(self) -> None:
        self.require(self.steps > 0, "steps", "above 0")
        self.require(self.end >= 0, "end", "0 or more")

    def factor(self, clock: int) -> float:
        return 1 + (self.end - 1) * min(clock / self.steps, 1.0)


@dataclass(frozen=True)
class InverseSqrt(Schedule):
    """sqrt(steps / (steps + clock)).

    `Warmup(4000, 0, then=InverseSqrt(4000))` is that of Vaswani et al., Attention Is All You Need,
    NIPS 2017, equation 3, with its greatest value as the learning rate.
    """

    name: ClassVar[str] = "inverse_sqrt"
    steps: float

    def check(self) -> None:
        self.require(self.steps > 0, "steps", "above 0")

    def factor(self, clock: int) -> float:
        return math.sqrt(self.steps / (self.steps + clock))


def parse(text: str) -> Schedule:
    """A schedule from `NAME:NUMBER:…`, its settings in order; warmups go before it after commas.

    >>> parse("warmup:1000, cosine:20000:0.1")
    Warmup(steps=1000.0, start=0.1, then=CosineDecay(steps=20000.0, end=0.1))

    Raises:
        SettingError: an unknown name, too few, too many or wrong numbers.
    """
    schedule: Schedule | None = None
    for part in reversed(text.split(",")):
        name, *numbers = (word.strip() for word in part.split(":"))
        kind = Schedule.members.get(name.lower(), Schedule)
        known = [f.name for f in fields(kind) if "family" not in f.metadata]
        if kind is not Schedule and len(numbers) > len(known):
            raise SettingError(f"schedule {name}", f"{part.strip()!r} has more than {known}")
        if schedule is not None and kind not in (Warmup, Schedule):
            problem = f"only a warmup comes before another schedule, not {name!r}"
            raise SettingError("schedule", problem)
        chained = {} if schedule is None else {"then": schedule}
        settings = dict(zip(known, numbers, strict=False))
        schedule = Schedule.by_name(name, **settings, **chained)
    assert schedule is not None  # split gives one part at least
    return schedule
