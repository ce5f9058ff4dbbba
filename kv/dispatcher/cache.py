"""Rows that a dispatcher has pulled for one worker, for its other workers.

What one pull has brought of one table stays together: all of it is of one moment. A later pull of
the same keys is answered from it as long as the table's mode cannot tell the difference, or allows
it:

    sync    in the same step: the rows of a round do not change before all have ended the step
    ssp     by a worker that is not ahead of the one it was pulled for: what had to be in it then
            is all that has to be in it now (Ho et al., NIPS 2013, section 3)
    async   where it is allowed ([dispatcher] cache_age above 0): for so long, and while servers are
            known to have had no more than cache_staleness updates since
    others  never: servers must know what each worker has seen (dc_async), or close rounds as they
            like (semi_sync)

A pull under way counts as well, of the same step: whoever wants its rows waits for them. In `ssp`
and `async` a worker gets nothing that was asked for before its last push was answered: it sees the
pushes that it has waited for.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from kv.consistency.settings import SSP, Async, Sync
from kv.dispatcher.config import DispatcherConfig
from kv.dispatcher.known_tables import KnownTable
from kv.dispatcher.receiving import Keys, Values
from kv.dispatcher.versions import VersionClock

Places = NDArray[np.int64]


class Fetched:
    """What one pull brings of one table.

    Attributes:
        keys: uint64 (n,), increasing; None of a dense table.
        step: of the worker that it was pulled for.
        since: when it was asked for.
        values: float32 (n, dim); None until they have come.
        clocks: by rank of the server, the table's clock that they are of.
        at: when they came.
        has_failed: they will not come.
        waiters: called when they have come, or will not.
    """

    __slots__ = ("at", "clocks", "has_failed", "keys", "since", "step", "values", "waiters")

    def __init__(self, keys: Keys | None, step: int, since: float) -> None:
        self.keys, self.step, self.since = keys, step, since
        self.values: Values | None = None
        self.clocks: Mapping[int, int] = {}
        self.at = 0.0
        self.has_failed = False
        self.waiters: list[Callable[[], None]] = []

    @property
    def nbytes(self) -> int:
        return 0 if self.values is None else self.values.nbytes


class Use(NamedTuple):
    """Rows of something fetched that answer a pull.

    places: int64 (m,), where in the pull they are wanted; rows: int64 (m,), which they are. None of
    a dense table.
    """

    fetched: Fetched
    places: Places | None
    rows: Places | None


class RowCache:
    """What has been fetched, by table.

    Args:
        config: how long it may be used, and how much is kept.
        versions: the clocks that servers have answered with.
        most: pulls of a table that are kept.
    """

    def __init__(self, config: DispatcherConfig, versions: VersionClock, most: int) -> None:
        self._config, self._versions, self._most = config, versions, most
        self._fetched: dict[int, list[Fetched]] = {}  # by table, latest first

    def keeps(self, table: KnownTable) -> bool:
        """Whether pulls of a table may be answered from here at all."""
        if not self._config.cache_size:
            return False
        mode = table.spec.mode
        return isinstance(mode, Sync | SSP) or (
            isinstance(mode, Async) and self._config.cache_age > 0
        )

    def find(
        self, table: KnownTable, keys: Keys | None, step: int, now: float, pushed: float
    ) -> tuple[list[Use], Places | None]:
        """What answers a pull, and the places of the keys that nothing does.

        Args:
            keys: increasing; None of a dense table, of which the places are None if it is found.
            pushed: when the worker's last push was answered.
        """
        uses: list[Use] = []
        if keys is None:
            for one in self._usable(table, step, now, pushed):
                return [Use(one, None, None)], None
            return [], np.empty(0, np.int64)
        left = np.arange(keys.size)
        for one in self._usable(table, step, now, pushed):
            if not left.size:
                break
            known = one.keys
            if known is None or not known.size:
                continue
            wanted = keys[left]
            rows = np.minimum(np.searchsorted(known, wanted), known.size - 1)
            is_there = known[rows] == wanted
            if is_there.any():
                uses.append(Use(one, left[is_there], rows[is_there]))
                left = left[~is_there]
        return uses, left

    def _usable(self, table: KnownTable, step: int, now: float, pushed: float) -> list[Fetched]:
        mode = table.spec.mode
        found = self._fetched.get(table.id, ())
        if isinstance(mode, Sync):
            return [f for f in found if f.step == step and self._is_of_round(f)]
        found = [one for one in found if one.since > pushed]
        if isinstance(mode, SSP):
            return [f for f in found if f.step == step or (f.step > step and f.values is not None)]
        return [f for f in found if f.values is not None and self._is_fresh(table, f, now)]

    @staticmethod
    def _is_of_round(fetched: Fetched) -> bool:
        return all(clock == fetched.step for clock in fetched.clocks.values())

    def _is_fresh(self, table: KnownTable, fetched: Fetched, now: float) -> bool:
        most = self._config.cache_staleness
        return now - fetched.at <= self._config.cache_age and all(
            self._versions.clock(table.id, server) - clock <= most
            for server, clock in fetched.clocks.items()
        )

    def begin(self, table: KnownTable, keys: Keys | None, step: int, now: float) -> Fetched:
        """A pull is under way; `fill` or `fail` says how it ends."""
        fetched = Fetched(keys, step, now)
        known = self._fetched.setdefault(table.id, [])
        known.insert(0, fetched)
        if isinstance(table.spec.mode, Sync):
            known[:] = [one for one in known if one.step >= step]
        self._trim(known)
        return fetched

    def fill(self, fetched: Fetched, values: Values, clocks: Mapping[int, int], now: float) -> None:
        """The rows have come. They are only read from here on."""
        fetched.values, fetched.clocks, fetched.at = values, clocks, now
        self._wake(fetched)

    def fail(self, table: KnownTable, fetched: Fetched) -> None:
        """The rows will not come."""
        fetched.has_failed = True
        known = self._fetched.get(table.id, [])
        if fetched in known:
            known.remove(fetched)
        self._wake(fetched)

    def forget(self, table: KnownTable) -> None:
        """Rows were set or deleted outright."""
        self._fetched.pop(table.id, None)

    @staticmethod
    def _wake(fetched: Fetched) -> None:
        waiters, fetched.waiters = fetched.waiters, []
        for call in waiters:
            call()

    def _trim(self, known: list[Fetched]) -> None:
        """Keep the latest pulls, as many and as large as may be."""
        del known[self._most :]
        total = 0
        for place, one in enumerate(known):
            total += one.nbytes
            if total > self._config.cache_size:
                del known[place:]
                return

    def nbytes(self, table: KnownTable) -> int:
        """Bytes of the rows of a table that are kept."""
        return sum(one.nbytes for one in self._fetched.get(table.id, ()))
