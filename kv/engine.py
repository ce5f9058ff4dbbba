"""All tables of one server: what comes in is checked, put past the mode, applied to the rows.

    catalogue      tables by number and name (`kv.catalogue`)
    settling       steps of workers, and the rounds that they close (`kv.settling`)
    engine_table   what an engine asks of one table
    engine         the above, pulls and pushes

Any thread may call. There is no lock around an engine: `lock` covers what is counted (progress,
clocks, rounds) for microseconds, each part of a table has a lock for its rows, held for a chunk of
a request at most. Nothing here waits for workers: the caller waits where `may_pull` says no. A call
that raises has changed nothing.

What may take long exists twice: `pulling` and the like are generators that yield between chunks,
for an executor, `pull` and the like run them to the end. The order of two calls is the caller's
business: one worker's calls about a table come one after the other.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np

from kv.catalogue import OwnerFilter
from kv.consistency.base import Update
from kv.consistency.settings import Consistency
from kv.dispatcher.constituents import bases_at, count_of
from kv.engine_table import Claim, Keys, Noted, Table, Values
from kv.errors import NonFiniteError, SettingError, VersionMismatchError
from kv.executor import Turns, run_through
from kv.settings import GREATEST
from kv.settling import Settling
from kv.store.transfer import BATCH
from van.message import Meta

MOST_ROWS = 1 << 20  # in one answer to a scan
Write = tuple[int, Keys | None, Values]
"""A table's number, keys (None for a dense table) and gradients."""
Push = tuple[Table, Update]


class Engine(Settling):
    """The tables of one server, or of a process that needs no server.

    Tables are named by the numbers that `define` returns, 0, 1, … in order of definition.

    Args:
        num_workers: workers of the job, ranks 0 to num_workers - 1.
        default_mode: mode of tables that name none.
        seed: of the initial values of tables that name none.
        owner_filter: which of the given keys live on this server (bool, same shape); None is all
            of them. Dense tables are filled with their own blocks only; `validate` checks the rest.
        parts: of a sparse table, which threads can work on at the same time.
        spill_dir: where tables with when_full=spill keep rows; empty is the system's directory for
            temporary files.
        now: the time in seconds, for modes with time-outs.
        max_staleness: updates that a table may have had since the worker pulled whose push is
            taken; None: any number.
        server: this server's rank, for errors.
        group_of: see `kv.consistency.base.Context`.
    """

    def __init__(
        self,
        num_workers: int,
        default_mode: str | Consistency = "async",
        seed: int = 0,
        owner_filter: OwnerFilter | None = None,
        parts: int = 1,
        spill_dir: str = "",
        now: Callable[[], float] = time.monotonic,
        max_staleness: int | None = None,
        server: Callable[[], int] = lambda: 0,
        group_of: Callable[[int], int] | None = None,
    ) -> None:
        super().__init__(
            num_workers, default_mode, seed, owner_filter, parts, spill_dir, now, group_of
        )
        self.max_staleness, self.server = max_staleness, server

    # -- pulls ------------------------------------------------------------------------------

    def may_pull(self, table: int, rank: int, clock: int) -> bool:
        """Whether worker `rank`, which has completed `clock` steps, may be answered now.

        Raises:
            RankError: no such worker.
        """
        self.progress.check_rank(rank)
        return self.table(table).mode.may_pull(rank, clock)

    def waits_for(self, table: int, rank: int, clock: int) -> list[int]:
        """The workers whose steps such a pull waits for."""
        with self.lock:
            return self.table(table).mode.waits_for(rank, clock)

    def pull(self, table: int, keys: Keys | None = None, create: bool = True) -> Values:
        """Weights of `keys`, or a dense table's blocks here; ask `may_pull` first.

        Args:
            keys: uint64, shape (n,), strictly increasing; None for a dense table.
            create: make rows for keys that have none, if the table says missing=init.
        Returns:
            float32, shape (n, dim), new memory; a dense table's in increasing number of the block,
            as they were between two pushes.
        Raises:
            UnsortedKeysError, KeyListError, ValueShapeError: keys are not as above.
            MissingKeyError: a key has no row and the table says missing=error.
        """
        return run_through(self.pulling(table, keys, create))

    def pulling(self, table: int, keys: Keys | None = None, create: bool = True) -> Turns[Values]:
        """`pull` in turns."""
        return self.table(table).pulling(keys, create)

    # -- pushes -----------------------------------------------------------------------------

    def push(self, table: int, rank: int, clock: int, keys: Keys | None, grads: Values) -> int:
        """Worker `rank` pushes in its step number `clock`; returns the table's clock.

        In mode sync the arrays are kept until the round closes: do not change them.

        Args:
            keys: uint64, shape (n,), strictly increasing; may be empty; None for a dense table.
            grads: float32, shape (n, dim), finite; of a dense table all of its blocks here.
        Raises:
            UnsortedKeysError, KeyListError, ValueShapeError, NonFiniteError: keys or gradients are
                not as above.
            RankError: no such worker, or it has finished.
            LatePushError: the worker has ended that step.
            MissingKeyError: a key has no row and the table says missing=error.
            ArenaFullError: there is no room for the rows it would make.
        """
        return self.push_many(rank, clock, [(table, keys, grads)])[0]

    def push_many(
        self,
        rank: int,
        clock: int,
        writes: Sequence[Write],
        weight: float = 1.0,
        rests: int = 0,
        bases: Sequence[int] = (),
    ) -> list[int]:
        """Several pushes, all of them or none.

        Args:
            weight: what these pushes count in tables whose aggregator is weighted_mean, finite and
                0 or more; the others ignore it.
            rests: so many of the first writes are further pieces of a push that was cut, so not a
                step more.
            bases: of each write the table's clock when the worker pulled, -1 where that is not
                known; none: of no write.

        Returns the clocks of their tables. Other arguments and errors as for `push`.

        Raises:
            SettingError: `weight` is not as above.
            VersionMismatchError: a table has had more than `max_staleness` updates since.
        """
        return run_through(self.pushing(rank, clock, writes, weight, rests, None, bases))

    def pushing(
        self,
        rank: int,
        clock: int,
        writes: Sequence[Write],
        weight: float = 1.0,
        rests: int = 0,
        push: Meta | None = None,
        bases: Sequence[int] = (),
    ) -> Turns[list[int]]:
        """`push_many` in turns; `push` is the request's header, for who keeps copies."""
        pushes = self._checked_pushes(rank, clock, writes, weight, rests, push, bases)
        if (quick := self._push_at_once(rank, clock, pushes)) is not None:
            return quick
        claims: list[Claim] = []
        try:
            for found, update in pushes:
                claims.append((yield from found.claiming(update.keys)))
            due, clocks = self._note_pushes(rank, clock, pushes)
            for (found, _), claim, updates in zip(pushes, claims, due, strict=True):
                for update in updates:
                    yield from found.applying(update, claim)
            return clocks
        finally:
            for (found, _), claim in zip(pushes, claims, strict=False):
                found.release(claim)

    def _checked_pushes(
        self,
        rank: int,
        clock: int,
        writes: Sequence[Write],
        weight: float,
        rests: int,
        push: Meta | None = None,
        bases: Sequence[int] = (),
    ) -> Sequence[Push]:
        if not 0 <= weight <= GREATEST:
            raise SettingError("push", f"weight must be a finite number, 0 or more, not {weight}")
        pushes: list[Push] = []
        for place, (number, keys, grads) in enumerate(writes):
            found = self.table(number)
            try:
                keys, grads = found.checked(keys, grads, "gradients")
            except NonFiniteError as error:
                self.note_non_finite(number)
                raise error.knowing(step=clock, worker=rank) from None
            base = bases[place] if bases else -1
            is_rest = place < rests
            update = Update(keys, grads, weight, 0, is_rest, push, base, step=clock)
            if push is not None and push.constituents:
                update = self._merged(found, update)
            pushes.append((found, update))
        return pushes

    @staticmethod
    def _merged(found: Table, update: Update) -> Update:
        """A dispatcher's push, with the number of workers' pushes that it stands for.

        Where the size of a gradient says little the sum of some would make one step for theirs: it
        makes the step of their mean, as many times as large.
        """
        assert update.push is not None, "it is a request's"
        count = count_of(update.push, found.id)
        is_rest = update.is_rest or not count
        update = update._replace(makers=0 if is_rest else count, is_rest=is_rest)
        is_mean = found.is_dense and found.spec.optimizer.normalises and not found.mode.holds
        if update.makers > 1 and is_mean:
            grads = update.grads / np.float32(count)
            return update._replace(grads=grads, rate=float(count))
        return update

    def _push_at_once(self, rank: int, clock: int, pushes: Sequence[Push]) -> list[int] | None:
        """Make a single push of few keys; None: they have to take turns."""
        if len(pushes) != 1:
            return None
        ((found, update),) = pushes
        return found.push_at_once(update, lambda: self._note_pushes(rank, clock, pushes))

    def push_at_once(
        self,
        rank: int,
        clock: int,
        write: Write,
        weight: float = 1.0,
        rests: int = 0,
        push: Meta | None = None,
        bases: Sequence[int] = (),
    ) -> list[int] | None:
        """`push_many` of one push with few keys; None: it has to take turns, nothing is changed."""
        pushes = self._checked_pushes(rank, clock, (write,), weight, rests, push, bases)
        return self._push_at_once(rank, clock, pushes)

    def _note_pushes(self, rank: int, clock: int, pushes: Sequence[Push]) -> Noted:
        """The point where pushes count, or are refused."""
        with self.lock:
            self.progress.check_active(rank)
            for found, update in pushes:
                found.mode.check_push(rank, clock)
                if self.max_staleness is not None and update.base >= 0:
                    self._refuse_stale(rank, found, update)
            for found, update in pushes:
                if update.base < 0 or update.is_rest:
                    continue
                mode = found.mode
                at = mode.round_of(rank, clock, update.base) if mode.holds else mode.clock
                if at is None:
                    continue  # it will be dropped
                known: Sequence[int] = (update.base,)
                if update.push is not None and update.push.constituents:
                    known = bases_at(update.push, found.id, self.server())
                for base in known:
                    found.staleness.note(max(0, at - base))
            if self.log is not None:
                for found, update in pushes:
                    base = update.base
                    number = found.mode.round_of(rank, clock, base) if found.mode.holds else None
                    if number is not None:
                        self.log.held(found, rank, number, update)
            due = [found.mode.on_push(rank, clock, update) for found, update in pushes]
            return due, [found.mode.clock for found, _ in pushes]

    def _refuse_stale(self, rank: int, found: Table, update: Update) -> None:
        """Raise if the gradients are too stale; the lock is held.

        Of a push in pieces each is asked, and the first of them is an update like any other's.
        """
        clock = found.mode.clock
        if clock - update.is_rest - update.base > (self.max_staleness or 0):
            name, server = found.spec.name, self.server()
            raise VersionMismatchError(name, clock, update.base, rank, server)

    @property
    def held(self) -> int:
        """Floats of pushes that wait for their rounds."""
        return sum(found.mode.held for found in self.tables)

    # -- rows -------------------------------------------------------------------------------

    def assign(self, table: int, keys: Keys | None, values: Values) -> None:
        """Set rows outright, in any mode at once; their optimiser state starts again.

        Arguments and errors as for `push`.
        """
        run_through(self.assigning(table, keys, values))

    def assigning(self, table: int, keys: Keys | None, values: Values) -> Turns[None]:
        """`assign` in turns."""
        found = self.table(table)
        return found.assigning(*found.checked(keys, values, "values"))

    def delete(self, table: int, keys: Keys) -> int:
        """Forget rows, in any mode at once; returns how many there were."""
        return run_through(self.deleting(table, keys))

    def deleting(self, table: int, keys: Keys) -> Turns[int]:
        """`delete` in turns."""
        return self.table(table).deleting(keys)

    def set_lr(self, table: int, lr: float) -> None:
        """From the next update on the learning rate is `lr`, times the schedule's factor.

        The definition keeps the rate that the table was made with.

        Raises:
            SettingError: `lr` is no finite number of 0 or more.
        """
        found = self.table(table)
        found.set_lr(lr)
        if self.log is not None:
            self.log.rated(found)

    # -- what is there ----------------------------------------------------------------------

    def items(self, table: int, batch: int = BATCH) -> Iterator[tuple[Keys, Values]]:
        """All rows in batches of (keys, weights); keys rise within a batch."""
        return self.table(table).items(batch)

    def scan(self, table: int, start: int, count: int = BATCH) -> tuple[Keys, Values, int]:
        """A part of `items`: (keys, weights, where to go on), -1 in the last place at the end.

        `start` is 0 or what the scan before returned; `count` is brought to 1 to 2^20, and fewer
        rows than that may come.
        """
        return self.table(table).scan(start, max(1, min(count, MOST_ROWS)))

    def size(self, table: int) -> int:
        """How many rows the table has here."""
        return len(self.table(table).store)

    def clock(self, table: int) -> int:
        """The table's clock: rounds (sync) or pushes (async) applied."""
        return self.table(table).mode.clock

    def stats(self, table: int) -> dict[str, Any]:
        """What there is to say about a table: msgpack types."""
        return self.table(table).stats()

    def validate(self) -> None:
        """Assert what must always hold in every table, while nothing is under way."""
        for found in self.tables:
            found.store.validate()
            found.mode.validate()
            if self.owner_filter is not None:
                batches = found.items(BATCH)  # copies of others' rows do not come
                foreign = [keys for keys, _ in batches if not self.owner_filter(keys).all()]
                assert not foreign, f"{found} holds keys of another server"
