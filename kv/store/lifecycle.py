"""The policies of `kv.policies` carried out: gates that admit keys, the sweep that expires rows."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kv.kernels import bloom, records
from kv.kernels.jit import frozen
from kv.kernels.rows import GOLDEN
from kv.placement import mix64
from kv.policies import Admission, AfterSightings, Expiry, WithProbability
from kv.store.space import RowSpace

Keys = NDArray[np.uint64]
Mask = NDArray[np.bool_]
HALVE_AFTER = 4  # sightings for each expected key
COUNTERS = 8  # for each expected key
COLD_SHARE = 16  # of the rows looked at in one call, one in so many on disk


class Gate(Protocol):
    """Admits keys."""

    @property
    def nbytes(self) -> int: ...

    def admit(self, keys: Keys, clock: int) -> Mask:
        """Which of `keys`, none of which has a row, are to get one with this sighting."""


class Counter:
    """Admits a key when it has been seen often enough.

    Args:
        policy: how often, and how many keys to expect.
        seed: of the hash.
        parts: parts that share the expected keys.
    """

    def __init__(self, policy: AfterSightings, seed: int, parts: int) -> None:
        self.sightings = int(policy.sightings)
        expected = max(1, int(policy.expected) // parts)
        self.counters = np.zeros(-(-COUNTERS * expected // 64) * 64, np.uint8)
        self._seed, self._patience = np.uint64(seed), HALVE_AFTER * expected
        self._left = self._patience

    @property
    def nbytes(self) -> int:
        return self.counters.nbytes

    def admit(self, keys: Keys, clock: int) -> Mask:
        counts = np.empty(keys.size, np.uint8)
        bloom.sight(self.counters, self._seed, frozen(keys), counts)
        self._left -= keys.size
        if self._left <= 0:
            bloom.halve(self.counters)
            self._left = self._patience
        return counts >= self.sightings


class Dice:
    """Admits each sighting with a probability; the clock decides anew each time."""

    nbytes = 0

    def __init__(self, policy: WithProbability, seed: int) -> None:
        self._bound = policy.p * 2.0**53
        self._seed = np.uint64(seed)

    def admit(self, keys: Keys, clock: int) -> Mask:
        turn = np.uint64(clock * int(GOLDEN) % (1 << 64))
        drawn = mix64(mix64(keys ^ self._seed) + turn) >> np.uint64(11)
        return drawn < self._bound


def gate_of(admission: Admission | None, seed: int, parts: int) -> Gate | None:
    """The gate that carries out `admission`.

    Raises:
        TypeError: an admission without a gate, a mistake in this package.
    """
    if admission is None:
        return None
    if isinstance(admission, AfterSightings):
        return Counter(admission, seed, parts)
    if isinstance(admission, WithProbability):
        return Dice(admission, seed)
    raise TypeError(f"{type(admission).__name__} has no gate in kv.store.lifecycle")


class Sweep:
    """Finds rows that are to expire, some rows a call, over and over.

    A row is looked at once in a sixteenth of the time that it may stay unseen, if there are calls
    enough; by hand as often as one likes.
    """

    def __init__(self, expiry: Expiry) -> None:
        self.unseen, self.rate, self.least = expiry.terms()
        self._row = self._slot = 0
        self._rest_until = 0.0
        self.expired = 0

    def is_due(self, now: float) -> bool:
        """Whether a sweep is under way, or should begin."""
        return self._row > 0 or now >= self._rest_until

    def run(self, space: RowSpace, now: float, most: int) -> int:
        """Look at `most` rows and remove those that are to go; returns how many went."""
        index = space.index
        stop = min(self._row + most, space.numbers.top)
        found = self._look(index.records, self._row, stop, now)
        keys = index.records[found, 0]
        self._row = stop
        if stop >= space.numbers.top:
            self._row, self._rest_until = 0, now + self.unseen / 16
        if space.cold is not None:
            last = min(self._slot + -(-most // COLD_SHARE), space.cold.numbers.top)
            on_disk = self._look(space.cold.records, self._slot, last, now)
            self._slot = last if last < space.cold.numbers.top else 0
            keys = np.concatenate([keys, space.cold.records[on_disk, 0]])
        gone = space.remove(frozen(keys)) if keys.size else 0
        self.expired += gone
        return gone

    def _look(self, rows: Keys, start: int, stop: int, now: float) -> NDArray[np.int64]:
        found = np.empty(max(stop - start, 0), np.int64)
        count = records.expired(
            rows,
            start,
            stop,
            int(now - self.unseen),
            self.rate,
            int(now),
            self.least,
            found,
        )
        return found[:count]
