"""All tables of one server: what comes in is checked, put past the mode, applied to the rows.

Plain synchronous code that decides and never waits: no thread, no socket, no lock. The caller
holds a lock around every call, and waits where `may_pull` says no. A call that raises has changed
nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence

import numpy as np
from numpy.typing import NDArray

from kv.checks import checked_keys, checked_values
from kv.consistency.base import Mode, Update
from kv.consistency.modes import mode_of
from kv.consistency.progress import Progress
from kv.dense import BlockShare, share_of
from kv.errors import (
    MissingKeyError,
    SettingError,
    TableConflictError,
    UnknownTableError,
    ValueShapeError,
)
from kv.settings import GREATEST
from kv.spec import MODES, TableSpec
from kv.store.sparse import BATCH, SparseStore

Keys = NDArray[np.uint64]
Values = NDArray[np.float32]
MOST_ROWS = 1 << 20  # in one answer to a scan
Write = tuple[int, Keys, Values]
OwnerFilter = Callable[[Keys], NDArray[np.bool_]]


class Table:
    """One table of an engine: definition, rows, consistency."""

    def __init__(
        self, spec: TableSpec, store: SparseStore, mode: Mode, share: BlockShare | None = None
    ) -> None:
        self.spec, self.store, self.mode = spec, store, mode
        self.share = share  # of a dense table: its blocks here

    def __repr__(self) -> str:
        return f"<Table {self.spec.name} {self.mode.name} clock={self.mode.clock} {self.store}>"


class Engine:
    """The tables of one server, or of a process that needs no server.

    Tables are named by the numbers that `define` returns, 0, 1, … in order of definition.

    Args:
        num_workers: workers of the job, ranks 0 to num_workers - 1.
        default_mode: mode of tables that name none.
        seed: of the initial values of tables that name none.
        owner_filter: which of the given keys live on this server (bool, same shape); None is all
            of them. Dense tables are filled with their own blocks only; `validate` checks the rest.
    """

    def __init__(
        self,
        num_workers: int,
        default_mode: str = "async",
        seed: int = 0,
        owner_filter: OwnerFilter | None = None,
    ) -> None:
        if default_mode not in MODES:
            problem = f"mode must be {' or '.join(MODES)}, not {default_mode!r}"
            raise SettingError("engine", problem)
        self.default_mode, self.seed, self.owner_filter = default_mode, seed, owner_filter
        self.progress = Progress(num_workers)
        self.tables: list[Table] = []
        self.numbers: dict[str, int] = {}

    def define(self, spec: TableSpec) -> int:
        """Make the table, or find it if it is defined alike; returns its number.

        Raises:
            TableConflictError: the name stands for another definition; the text shows both.
        """
        spec = spec.resolved(self.default_mode, self.seed)
        number = self.numbers.get(spec.name)
        if number is not None:
            known = self.tables[number].spec
            if known != spec:
                raise TableConflictError(
                    spec.name,
                    f"two definitions disagree: {known.difference(spec)} "
                    f"(here is the first definition, there the new one)",
                )
            return number
        share = share_of(spec, self.owner_filter) if spec.kind == "dense" else None
        store = SparseStore(spec) if share is None else _filled(spec, share)
        mode = mode_of(spec.mode or "", spec.name, self.progress)
        number = len(self.tables)
        self.tables.append(Table(spec, store, mode, share))
        self.numbers[spec.name] = number
        return number

    def table(self, number: int) -> Table:
        """The table of that number.

        Raises:
            UnknownTableError: `define` never returned `number`.
        """
        if not 0 <= number < len(self.tables):
            raise UnknownTableError(f"number {number}", "no such table here; define it first")
        return self.tables[number]

    def number_of(self, name: str) -> int:
        """The number of the table `name`.

        Raises:
            UnknownTableError: no table of that name is defined.
        """
        if name not in self.numbers:
            raise UnknownTableError(name, "no such table here; define it first")
        return self.numbers[name]

    def may_pull(self, table: int, rank: int, clock: int) -> bool:
        """Whether worker `rank`, which has completed `clock` steps, may be answered now.

        Raises:
            RankError: no such worker.
        """
        self.progress.check_rank(rank)
        return self.table(table).mode.may_pull(rank, clock)

    def waits_for(self, table: int, rank: int, clock: int) -> list[int]:
        """The workers whose steps such a pull waits for."""
        return self.table(table).mode.waits_for(rank, clock)

    def pull(self, table: int, keys: Keys, create: bool = True) -> Values:
        """Weights of `keys`; ask `may_pull` first.

        Args:
            keys: uint64, shape (n,), strictly increasing.
            create: make rows for keys that have none, if the table says missing=init.
        Returns:
            float32, shape (n, dim), new memory.
        Raises:
            UnsortedKeysError, KeyListError: keys are not as above.
            MissingKeyError: a key has no row and the table says missing=error.
        """
        found = self.table(table)
        return found.store.pull(checked_keys(keys, found.spec), create)

    def pull_dense(self, table: int) -> Values:
        """The blocks of a dense table that live here, in increasing number; ask `may_pull` first.

        Returns:
            float32, shape (blocks, dim), new memory.
        Raises:
            ValueShapeError: the table is sparse.
        """
        found = self.table(table)
        share = _blocks(found)
        blocks = np.empty((share.keys.size, found.spec.dim), np.float32)
        blocks[share.order] = found.store.pull(share.keys)
        return blocks

    def dense_write(self, table: int, values: Values) -> Write:
        """What `push_many` and `assign` take for the values of a dense table's blocks here.

        Args:
            values: float32, shape (blocks, dim), in increasing number of the block.
        Raises:
            ValueShapeError: the table is sparse, or `values` have another shape.
        """
        found = self.table(table)
        share = _blocks(found)
        if values.shape != (share.keys.size, found.spec.dim):
            wanted = (share.keys.size, found.spec.dim)
            raise ValueShapeError(
                found.spec.name, f"blocks have shape {values.shape}, not {wanted}"
            )
        return table, share.keys, values[share.order]

    def is_dense(self, table: int) -> bool:
        """Whether the table is dense: its requests carry no keys."""
        return self.table(table).share is not None

    def push(self, table: int, rank: int, clock: int, keys: Keys, grads: Values) -> int:
        """Worker `rank` pushes in its step number `clock`; returns the table's clock.

        In mode sync the arrays are kept until the round closes: do not change them.

        Args:
            keys: uint64, shape (n,), strictly increasing; may be empty.
            grads: float32, shape (n, dim), finite.
        Raises:
            UnsortedKeysError, KeyListError, ValueShapeError, NonFiniteError: keys or gradients are
                not as above.
            RankError: no such worker, or it has finished.
            LatePushError: the worker has ended that step.
            MissingKeyError: a key has no row and the table says missing=error.
        """
        return self.push_many(rank, clock, [(table, keys, grads)])[0]

    def push_many(
        self,
        rank: int,
        clock: int,
        writes: Sequence[Write],
        weight: float = 1.0,
        is_rest: bool = False,
    ) -> list[int]:
        """Several pushes, each a table's number with keys and gradients, all of them or none.

        Args:
            weight: what these pushes count in tables whose aggregator is weighted_mean, finite and
                0 or more; the others ignore it.
            is_rest: the first write is a further piece of a push that was cut, so not a step more.

        Returns the clocks of their tables. Other arguments and errors as for `push`.

        Raises:
            SettingError: `weight` is not as above.
        """
        self.progress.check_active(rank)
        if not 0 <= weight <= GREATEST:
            raise SettingError("push", f"weight must be a finite number, 0 or more, not {weight}")
        checked = [self._checked_push(rank, clock, *write, weight) for write in writes]
        for place, (found, update) in enumerate(checked):
            part = update._replace(is_rest=is_rest and place == 0)
            self._apply(found, found.mode.on_push(rank, clock, part))
        return [found.mode.clock for found, _ in checked]

    def step(self, rank: int, clock: int) -> bool:
        """Worker `rank` has completed its steps up to number `clock`; whether any clock advanced.

        A step said twice changes nothing.

        Raises:
            RankError: no such worker, or it has finished.
        """
        if not self.progress.step(rank, clock):
            return False
        return self._settle(lambda mode: mode.on_step())

    def finish(self, rank: int) -> bool:
        """Worker `rank` will push no more and nobody waits for it; whether any clock advanced.

        What it pushed in a step it did not end still counts in that step's round.
        """
        if not self.progress.finish(rank):
            return False
        return self._settle(lambda mode: mode.on_finish())

    def assign(self, table: int, keys: Keys, values: Values) -> None:
        """Set rows outright, in any mode at once; their optimiser state starts again.

        Arguments and errors as for `push`.
        """
        found = self.table(table)
        keys = checked_keys(keys, found.spec)
        found.store.assign(keys, checked_values(values, keys, found.spec, "values"))

    def delete(self, table: int, keys: Keys) -> int:
        """Forget rows, in any mode at once; returns how many there were."""
        found = self.table(table)
        return found.store.delete(checked_keys(keys, found.spec))

    def set_lr(self, table: int, lr: float) -> None:
        """From the next update on the learning rate is `lr`, times the schedule's factor.

        The definition keeps the rate that the table was made with.

        Raises:
            SettingError: `lr` is no finite number of 0 or more.
        """
        self.table(table).store.set_lr(lr)

    def items(self, table: int, batch: int = BATCH) -> Iterator[tuple[Keys, Values]]:
        """All rows in batches of (keys, weights); keys rise within a batch."""
        return self.table(table).store.items(batch)

    def scan(self, table: int, start: int, count: int = BATCH) -> tuple[Keys, Values, int]:
        """A part of `items`: (keys, weights, where to go on), -1 in the last place at the end.

        Numbers out of range are brought into it: `start` at 0 or above, `count` from 1 to 2^20.
        """
        store = self.table(table).store
        keys, values, stop = store.scan(start, min(count, MOST_ROWS))
        return keys, values, stop if stop < store.top else -1

    def size(self, table: int) -> int:
        """How many rows the table has here."""
        return len(self.table(table).store)

    def clock(self, table: int) -> int:
        """The table's clock: rounds (sync) or pushes (async) applied."""
        return self.table(table).mode.clock

    def validate(self) -> None:
        """Assert what must always hold in every table."""
        for found in self.tables:
            found.store.validate()
            found.mode.validate()
            if self.owner_filter is not None:
                batches = found.store.items()
                foreign = [keys for keys, _ in batches if not self.owner_filter(keys).all()]
                assert not foreign, f"{found} holds keys of another server"

    def _checked_push(
        self, rank: int, clock: int, table: int, keys: Keys, grads: Values, weight: float
    ) -> tuple[Table, Update]:
        found = self.table(table)
        keys = checked_keys(keys, found.spec)
        grads = checked_values(grads, keys, found.spec, "gradients")
        if found.spec.missing == "error":
            _refuse_missing(found, keys)
        found.mode.check_push(rank, clock)
        return found, Update(keys, grads, weight)

    def _settle(self, event: Callable[[Mode], Sequence[Update]]) -> bool:
        advanced = False
        for found in self.tables:
            before = found.mode.clock
            self._apply(found, [_known(found, held) for held in event(found.mode)])
            advanced |= found.mode.clock > before
        return advanced

    def _apply(self, found: Table, updates: Sequence[Update]) -> None:
        for update in updates:
            found.store.push(update.keys, update.grads, update.clock)


def _blocks(found: Table) -> BlockShare:
    if found.share is None:
        raise ValueShapeError(found.spec.name, "it is sparse, so its values come with keys")
    return found.share


def _filled(spec: TableSpec, share: BlockShare) -> SparseStore:
    """The blocks of a dense table that live here, all made at once: it never grows."""
    store = SparseStore(spec, capacity=share.keys.size, reserve=0)
    store.create(share.keys)
    return store


def _known(found: Table, held: Update) -> Update:
    """A held update without rows that were deleted meanwhile from a table that makes none."""
    if found.spec.missing != "error" or not found.store.absent(held.keys).size:
        return held
    known = ~np.isin(held.keys, found.store.absent(held.keys))
    return held._replace(keys=held.keys[known], grads=held.grads[known])


def _refuse_missing(found: Table, keys: Keys) -> None:
    absent = found.store.absent(keys)
    if absent.size:
        raise MissingKeyError(
            found.spec.name,
            f"key {int(absent[0])} has no row and the table says missing=error; assign it first",
        )
