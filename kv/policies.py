"""Policies of a sparse table: which keys get a row, and which rows go again.

Here are their settings, checked and ready to travel; `kv.store` carries them out. No Numba and no
arrays, so that any process may import this.

    Admission    AfterSightings, WithProbability; None admits every key at once
    Expiry       ByAge, ByScore; None keeps every row

A sighting of a key is a push that contains it. A key that is not admitted reads its default, what
a pull of a key without a row reads, and its gradient is dropped and counted. In a table with an
admission policy a pull makes no rows.

Sources: counting before admitting, DeepRec's feature filter; scores of decayed shows,
PaddlePaddle's ctr accessor, without its clicks: a push may say how much each key's show counts.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import ClassVar

from kv.settings import Named

WHEN_FULL = ("refuse", "evict", "spill")
MOST_SIGHTINGS = 250  # counters are bytes


class Admission(Named):
    """Base of all admission policies."""

    family: ClassVar[str] = "admission"


@dataclass(frozen=True)
class AfterSightings(Admission):
    """A key gets its row with its `sightings`-th push.

    Sightings are counted in 8 bytes for each of the `expected` keys of a server. The counts of a
    table that sees more are halved from time to time (after four sightings for each expected key):
    a key must then be seen often enough within that stretch.
    """

    name: ClassVar[str] = "after_sightings"
    sightings: float = 2
    expected: float = 1_000_000

    def check(self) -> None:
        whole = self.sightings == int(self.sightings)
        self.require(
            whole and 1 <= self.sightings <= MOST_SIGHTINGS,
            "sightings",
            f"a whole number from 1 to {MOST_SIGHTINGS}",
        )
        self.require(1 <= self.expected <= 2**34, "expected", "1 to 2^34")


@dataclass(frozen=True)
class WithProbability(Admission):
    """Each sighting of a key without a row gives it one with probability `p`.

    Decided by a hash of the job's seed, the table, the key and the table's clock: a run repeated
    admits the same keys, on however many servers.
    """

    name: ClassVar[str] = "with_probability"
    p: float = 0.1

    def check(self) -> None:
        self.require(0 < self.p <= 1, "p", "above 0 and at most 1")


class Expiry(Named):
    """Base of all expiry policies: a row goes if both of the following say so.

    `unseen` seconds have passed since it was last seen, and its shows, decayed by `rate` a second,
    are below `least`.
    """

    family: ClassVar[str] = "expiry"

    def terms(self) -> tuple[float, float, float]:
        """(unseen, rate, least)."""
        raise TypeError(f"{type(self).__name__} says no terms")


@dataclass(frozen=True)
class ByAge(Expiry):
    """A row goes that nobody has seen for `seconds`."""

    name: ClassVar[str] = "by_age"
    seconds: float

    def check(self) -> None:
        self.require(self.seconds > 0, "seconds", "above 0")

    def terms(self) -> tuple[float, float, float]:
        return self.seconds, 0.0, float("inf")


@dataclass(frozen=True)
class ByScore(Expiry):
    """A row goes whose score falls below `threshold`.

    The score is the sum over its pushes of what they counted (1 unless the push says otherwise),
    each times decay^(t / period), t seconds later. A row seen in the last `grace` seconds stays.
    """

    name: ClassVar[str] = "by_score"
    threshold: float = 0.5
    decay: float = 0.98
    period: float = 86400.0
    grace: float = 3600.0

    def check(self) -> None:
        self.require(self.threshold > 0, "threshold", "above 0")
        self.require(0 < self.decay < 1, "decay", "between 0 and 1")
        self.require(self.period > 0, "period", "above 0")
        self.require(self.grace >= 0, "grace", "0 or more")

    def terms(self) -> tuple[float, float, float]:
        return self.grace, -math.log(self.decay) / self.period, self.threshold
