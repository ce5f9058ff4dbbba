"""The policies of `kv.policies` carried out: gates that admit keys, the sweep that expires rows."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from kv.errors import ArenaFullError
from kv.kernels import bloom, records
from kv.kernels.jit import frozen
from kv.kernels.rows import GOLDEN
from kv.placement import mix64
from kv.policies import Admission, AfterSightings, Expiry, WithProbability
from kv.store import arena
from kv.store.space import RowSpace

Keys = NDArray[np.uint64]
Rows = NDArray[np.int64]
Mask = NDArray[np.bool_]
HALVE_AFTER = 4  # sightings for each expected key
COUNTERS = 8  # for each expected key
COLD_SHARE = 16  # rows in memory that are looked at in the time of one on disk


class Gate(Protocol):
    """Admits keys."""

    @property
    def nbytes(self) -> int: ...

    def admit(self, keys: Keys, clock: int) -> Mask:
        """Which of `keys`, none of which has a row, are to get one with this sighting."""


class Counter:
    """Admits a key when it has been seen often enough.

    Args:
        table: its name, for errors.
        policy: how often, and how many keys to expect.
        seed: of the hash.
        parts: parts that share the expected keys.
    Raises:
        ArenaFullError: so many counters do not fit into memory.
    """

    def __init__(self, table: str, policy: AfterSightings, seed: int, parts: int) -> None:
        self.sightings = int(policy.sightings)
        expected = max(1, int(policy.expected) // parts)
        nbytes = -(-COUNTERS * expected // 64) * 64
        try:
            if nbytes * parts > arena.physical_memory():
                raise MemoryError(f"this machine has {arena.physical_memory()} bytes")
            self.counters = np.zeros(nbytes, np.uint8)
        except MemoryError as error:
            raise ArenaFullError(
                table,
                f"no memory for the {nbytes * parts} bytes in which admission after_sightings "
                f"counts ({error}); lower `expected`, or use more servers",
            ) from error
        self._seed, self._patience = np.uint64(seed), HALVE_AFTER * expected
        self._left = self._patience

    @property
    def nbytes(self) -> int:
        return self.counters.nbytes

    def export(self) -> tuple[NDArray[np.uint8], int]:
        """Copies of the counters, and the sightings until they are halved."""
        return self.counters.copy(), self._left

    def adopt(self, counters: NDArray[np.uint8], left: int) -> bool:
        """Add what another counter has seen, of the same number of counters; False: it has not.

        A key that was counted there has at least that count here.
        """
        if counters.size != self.counters.size:
            return False
        if self.counters.any():
            left = min(left, self._left)
        room = np.uint8(255) - self.counters
        self.counters += np.minimum(counters, room)
        self._left = left
        return True

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


def gate_of(table: str, admission: Admission, seed: int, parts: int) -> Gate:
    """The gate that carries out `admission`.

    Raises:
        TypeError: an admission without a gate, a mistake in this package.
    """
    if isinstance(admission, AfterSightings):
        return Counter(table, admission, seed, parts)
    if isinstance(admission, WithProbability):
        return Dice(admission, seed)
    raise TypeError(f"{type(admission).__name__} has no gate in kv.store.lifecycle")


class Admissions:
    """Who of the keys without a row gets one, and how many did and did not."""

    def __init__(self, gate: Gate) -> None:
        self._gate = gate
        self.admitted = self.denied = 0

    @property
    def nbytes(self) -> int:
        return self._gate.nbytes

    @property
    def counter(self) -> Counter | None:
        """What it counts sightings in, if it does."""
        return self._gate if isinstance(self._gate, Counter) else None

    def kept(self, keys: Keys, rows: Rows, clock: int) -> Rows:
        """Where `keys`, sighted now, have a row or are to get one; `rows` is -1 where not yet."""
        places = np.flatnonzero(rows == -1)
        admitted = self._gate.admit(keys[places], clock)
        count = int(np.count_nonzero(admitted))
        self.admitted += count
        self.denied += places.size - count
        kept = np.ones(keys.size, np.bool_)
        kept[places] = admitted
        return np.flatnonzero(kept)


class Sweep:
    """Finds rows that are to expire, some rows a call, over and over: memory first, then disk.

    A round begins when a sixteenth of the time that rows may stay unseen has passed since the last.
    """

    def __init__(self, expiry: Expiry) -> None:
        self.unseen, self.rate, self.least = expiry.terms()
        self._row = self._slot = 0
        self._rest_until = 0.0
        self.expired = 0

    def is_due(self, now: float) -> bool:
        """Whether a round is under way, or should begin."""
        return self._row + self._slot > 0 or now >= self._rest_until

    def run(self, space: RowSpace, now: float, most: int | None) -> int:
        """Look at `most` rows, or at all, and remove those that are to go; returns how many went.

        A row on disk counts as sixteen.
        """
        if most is None:
            self._row = self._slot = 0
        found, looked = self._in_memory(space, now, most)
        if most is None or looked < most:
            share = None if most is None else -(-(most - looked) // COLD_SHARE)
            found = np.concatenate([found, self._on_disk(space, now, share)])
            if self._slot == 0:
                self._row, self._rest_until = 0, now + self.unseen / 16
        gone = space.remove(found) if found.size else 0
        self.expired += gone
        return gone

    def _in_memory(self, space: RowSpace, now: float, most: int | None) -> tuple[Keys, int]:
        start, top = self._row, space.numbers.top
        self._row = top if most is None else max(start, min(start + most, top))
        return self._look(space.index.records, start, self._row, now), self._row - start

    def _on_disk(self, space: RowSpace, now: float, most: int | None) -> Keys:
        """Like `_in_memory`; `_slot` is 0 again at the end of the round."""
        if space.cold is None:
            return np.empty(0, np.uint64)
        start, top = self._slot, space.cold.numbers.top
        stop = top if most is None else min(start + most, top)
        self._slot = stop if stop < top else 0
        return self._look(space.cold.records, start, stop, now)

    def _look(self, rows: Keys, start: int, stop: int, now: float) -> Keys:
        """The keys of the rows from `start` to `stop` that are to go."""
        found = np.empty(max(stop - start, 0), np.int64)
        since, second = int(max(now - self.unseen, 0.0)), int(now)
        count = records.expired(rows, start, stop, since, self.rate, second, self.least, found)
        keys: Keys = rows[found[:count], 0]
        return keys
