"""A worker's pull: what the cache has, what another worker's pull will bring, and the rest."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace

import numpy as np

from kv.dispatcher.cache import Fetched, RowCache, Use
from kv.dispatcher.known_tables import KnownTable
from kv.dispatcher.receiving import Keys, Values
from kv.dispatcher.refusing import Error
from kv.dispatcher.upstream import Found, Servers
from kv.dispatcher.worker_pull import WorkerPull
from van.message import Clock

Done = Callable[[BaseException | None, Error | None, list[Values], tuple[Clock, ...]], None]
"""Called with what went wrong, how a server put it, the values by table and their clocks."""


class Reader:
    """Answers pulls. Called with the dispatcher's lock held, and calls back so.

    Args:
        servers: asked for what is not here.
        cache: what has been fetched.
        counts: of `cache_hits` and `cache_misses`, rows.
        now: the time in seconds.
    """

    def __init__(
        self,
        servers: Servers,
        cache: RowCache,
        counts: Counter[str],
        now: Callable[[], float],
    ) -> None:
        self._servers, self.cache, self._counts, self._now = servers, cache, counts, now

    def read(self, pull: WorkerPull, done: Done, may_share: bool, pushed: float) -> None:
        """Read rows in the name of a worker.

        Args:
            may_share: the worker is one whom rounds wait for; else it is answered by servers.
            pushed: when its last push was answered.
        """
        shared = [may_share and pull.create and self.cache.keeps(table) for table in pull.tables]
        if any(shared):
            _Reading(self, pull, done).begin(shared, pushed)
        else:
            self._ask_all(pull, done)

    def _ask_all(self, pull: WorkerPull, done: Done) -> None:
        def answered(error: BaseException | None, said: Error | None, found: Found) -> None:
            if error is not None:
                done(error, said, [], ())
            else:
                done(None, None, found.results(), clocks_in(found.clocks))

        self._servers.pull(pull, answered)


class _Reading:
    """One pull of which a part may be here."""

    def __init__(self, reader: Reader, pull: WorkerPull, done: Done) -> None:
        self._reader, self._pull, self._done = reader, pull, done
        self._uses: list[list[Use]] = []
        self._open = 0
        self._failure: tuple[BaseException, Error | None] | None = None

    def begin(self, shared: Sequence[bool], pushed: float) -> None:
        reader, pull, now = self._reader, self._pull, self._reader._now()
        asked: list[tuple[KnownTable, Fetched, bool]] = []
        for table, keys, is_shared in zip(pull.tables, pull.keys, shared, strict=True):
            uses: list[Use] = []
            if is_shared:
                uses, left = reader.cache.find(table, keys, pull.step, now, pushed)
            else:
                left = np.empty(0, np.int64) if keys is None else np.arange(keys.size)
            self._count(table, keys, uses)
            if left is not None and (keys is None or left.size):
                some = keys if keys is None or left.size == keys.size else keys[left]
                if is_shared:
                    fetched = reader.cache.begin(table, some, pull.step, now)
                else:
                    fetched = Fetched(some, pull.step, now)
                asked.append((table, fetched, is_shared))
                places = None if keys is None else left
                rows = None if keys is None else np.arange(left.size)
                uses.append(Use(fetched, places, rows))
            self._uses.append(uses)
        waiting = {id(u.fetched): u.fetched for uses in self._uses for u in uses}
        pending = [one for one in waiting.values() if one.values is None]
        self._open = len(pending)
        for one in pending:
            one.waiters.append(self._settle)
        if asked:
            self._ask(asked)
        elif not pending:
            self._finish()

    def _count(self, table: KnownTable, keys: Keys | None, uses: Sequence[Use]) -> None:
        counts = self._reader._counts
        if keys is None:
            found, size = table.blocks if uses else 0, table.blocks
        else:
            found, size = sum(u.places.size for u in uses if u.places is not None), keys.size
        counts["cache_hits"] += found
        counts["cache_misses"] += size - found

    def _ask(self, asked: Sequence[tuple[KnownTable, Fetched, bool]]) -> None:
        cache = self._reader.cache

        def answered(error: BaseException | None, said: Error | None, found: Found) -> None:
            if error is not None:
                self._failure = error, said
                for table, fetched, _ in asked:
                    cache.fail(table, fetched)
                return
            for (table, fetched, _), values in zip(asked, found.results(), strict=True):
                items = found.clocks.items()
                clocks = {server: clock for (name, server), clock in items if name == table.id}
                cache.fill(fetched, values, clocks, self._reader._now())

        tables = [table for table, _, _ in asked]
        keys = [fetched.keys for _, fetched, _ in asked]
        self._reader._servers.pull(replace(self._pull, tables=tables, keys=keys), answered)

    def _settle(self) -> None:
        self._open -= 1
        if not self._open:
            self._finish()

    def _finish(self) -> None:
        if self._failure is not None:
            self._done(*self._failure, [], ())
        elif any(use.fetched.has_failed for uses in self._uses for use in uses):
            # What another worker asked for has failed, perhaps for reasons of its own.
            self._reader._ask_all(self._pull, self._done)
        else:
            parts = zip(self._pull.tables, self._pull.keys, self._uses, strict=True)
            values = [_put_together(table, keys, uses) for table, keys, uses in parts]
            self._done(None, None, values, self._clocks())

    def _clocks(self) -> tuple[Clock, ...]:
        """Of each table and server the earliest clock that a row is of."""
        clocks: dict[tuple[int, int], int] = {}
        for table, uses in zip(self._pull.tables, self._uses, strict=True):
            for use in uses:
                for server, clock in use.fetched.clocks.items():
                    place = table.id, server
                    clocks[place] = min(clock, clocks.get(place, clock))
        return clocks_in(clocks)


def _put_together(table: KnownTable, keys: Keys | None, uses: Sequence[Use]) -> Values:
    """The values of a table's keys, in their order."""
    if len(uses) == 1 and (keys is None or _is_all(uses[0], keys)):
        values = uses[0].fetched.values
        assert values is not None, "it has come"
        return values
    assert keys is not None, "a dense table comes in one"
    out = np.empty((keys.size, table.spec.dim), np.float32)
    for use in uses:
        assert use.fetched.values is not None, "it has come"
        out[use.places] = use.fetched.values[use.rows]
    return out


def _is_all(use: Use, keys: Keys) -> bool:
    """Whether it is all of a fetched list, in its order."""
    known = use.fetched.keys
    return (
        known is not None and use.places is not None and keys.size == use.places.size == len(known)
    )


def clocks_in(clocks: Mapping[tuple[int, int], int]) -> tuple[Clock, ...]:
    """Clocks by table and server as an answer tells them."""
    return tuple((table, clock, ((server, 0),)) for (table, server), clock in clocks.items())
