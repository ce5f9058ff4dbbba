"""What an engine asks of a table: its definition, its rows here, its consistency.

    engine_table    what both kinds have in common, and what each does its own way
    keyed_table     a sparse table: rows under keys, in parts
    block_table     a dense one: blocks of an array

An engine treats both alike. What may take long is a generator (`kv.executor.Turns`); what is short
is done at once, under one lock.
"""

from __future__ import annotations

import threading
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kv.checks import checked_values
from kv.consistency.base import Mode, Update
from kv.consistency.settings import SemiSync
from kv.consistency.staleness import Staleness
from kv.engine_log import Cause
from kv.errors import KeyListError, SettingError
from kv.executor import Turns, run_through
from kv.global_norm import GlobalNorm
from kv.spec import TableSpec
from kv.store.blocks import Blocks
from kv.store.delay import Delay
from kv.store.parts import Parts
from kv.store.pieces import Cut
from kv.store.rows import RowBatch, Slots
from kv.store.stats import together
from kv.table_protocol import table_id

Keys = NDArray[np.uint64]
Values = NDArray[np.float32]
Claim = tuple[Cut, list[int]] | None
"""What a push has secured before it counts: the parts of its keys, and room in each."""

Described = tuple[Keys, NDArray[np.int64], NDArray[np.float32], NDArray[np.uint32]]
"""Keys of rows, their versions, shows, and the second each was last seen in (0: not kept)."""

Noted = tuple[list[Sequence[Update]], list[int]]
"""Of the tables of a push that counts now: what is to be applied, and their clocks."""

Empty = Callable[[tuple[int, int], type[np.float32]], Values]
"""Makes an array of a shape and a type, as `np.empty` does."""


class Table(ABC):
    """What an engine asks of a table.

    Attributes:
        staleness: of the pushes that counted, where their base was known.
        non_finite: pushes and rounds that were refused because a gradient was no number, and those
            that workers did not send for that reason.
        lr: the learning rate that was set; None: it is the definition's.
        settling: held by who closes rounds, through several turns; nobody else may ask for it in
            a thread that those turns need.
    """

    is_dense: bool
    store: Parts | Blocks

    def __init__(self, spec: TableSpec, mode: Mode) -> None:
        self.spec, self.mode = spec, mode
        self.id = table_id(spec.name)
        self.loads = 0  # changes when rows are set with versions that they bring
        self.staleness = Staleness()
        self.non_finite = 0
        self.lr: float | None = None
        self.settling = threading.Lock()
        optimizer = spec.optimizer
        self._global_norm: GlobalNorm | None = None
        if optimizer.clip_global_norm:
            self._global_norm = GlobalNorm(optimizer, is_whole=spec.kind == "dense")

    @property
    def has_window(self) -> bool:
        """Whether its mode closes rounds after a time."""
        return isinstance(self.spec.mode, SemiSync) and self.spec.mode.window > 0

    def __repr__(self) -> str:
        return f"<Table {self.spec.name} {self.mode.name} clock={self.mode.clock} {self.store}>"

    def _cause(self, update: Update) -> Cause:
        """What one who keeps copies is told of the change that `update` makes."""
        return Cause(update.push, update.clock if self.mode.holds else -1, update.clock)

    def _delaying(self, update: Update) -> Turns[Delay | None]:
        """What `update` as a whole does to each of its steps."""
        if self._global_norm is None:
            return update.delay
        scale = yield from self._global_norm.scaling(update.grads)
        return update.delay if scale == 1 else (update.delay or Delay())._replace(scale=scale)

    def _delay(self, update: Update) -> Delay | None:
        """`_delaying` of a short one."""
        return run_through(self._delaying(update))

    def set_lr(self, lr: float) -> None:
        """From the next update on the learning rate is `lr`, times the schedule's factor.

        Raises:
            SettingError: `lr` is no finite number of 0 or more.
        """
        try:
            self.store.set_lr(lr)
        except SettingError as error:
            raise SettingError(f"table {self.spec.name}", error.problem) from None
        self.lr = lr

    def answered(self, rank: int, keys: Keys | None, values: Values) -> None:
        """A pull of worker `rank` is answered with `values`; `keys` None: all blocks here."""
        if self.mode.notes_pulls:
            self.mode.on_pull(rank, self.names if keys is None else keys, values)

    @property
    def names(self) -> Keys:
        """What a dense table's blocks here are called in an `Update`."""
        raise KeyListError(self.spec.name, "it is sparse, so its values come with keys")

    def remember(self, keys: Keys) -> None:  # noqa: B027 (a table may well have no use for it)
        """This very array will come again as a key list."""

    @abstractmethod
    def cost(self, keys: Keys | None) -> int:
        """About how many floats a pull or push of `keys` moves."""

    @abstractmethod
    def checked(self, keys: Keys | None, values: Values, what: str) -> tuple[Keys, Values]:
        """Keys and values of a push or assignment, read-only; raises unless they are in order."""

    def check_sum(self, update: Update) -> None:
        """Raise NonFiniteError if the sum of a round, whose gradients are finite, is not."""
        outcome = f"the sum of round {update.clock}, which is dropped"
        checked_values(update.grads, update.keys, self.spec, "gradients", outcome)

    @abstractmethod
    def pulling(self, keys: Keys | None, create: bool, empty: Empty = np.empty) -> Turns[Values]:
        """Weights of `keys` (None for a dense table) in an array that `empty` makes."""

    @abstractmethod
    def pull_at_once(self, keys: Keys | None, create: bool, empty: Empty) -> Values | None:
        """`pulling` of few keys, under one lock. None: it has to take turns."""

    @abstractmethod
    def push_at_once(self, update: Update, note: Callable[[], Noted]) -> list[int] | None:
        """Check, note and apply a push under one lock; the clocks. None: it has to take turns."""

    @abstractmethod
    def claiming(self, keys: Keys) -> Turns[Claim]:
        """Raise if a push to `keys` cannot be made; else secure that it can, until `release`."""

    @abstractmethod
    def applying(self, update: Update, claim: Claim = None) -> Turns[None]:
        """One optimiser step."""

    def applying_round(self, update: Update) -> Turns[None]:
        """`applying` of what was held back; raises if there is no room, and changes nothing."""
        yield from self.applying(update)

    @abstractmethod
    def release(self, claim: Claim) -> None:
        """The push that claimed is made, or will not be."""

    @abstractmethod
    def assigning(self, keys: Keys, values: Values) -> Turns[None]:
        """Set rows outright."""

    @abstractmethod
    def deleting(self, keys: Keys) -> Turns[int]:
        """Forget rows; how many there were."""

    @abstractmethod
    def scan(self, start: int, count: int) -> tuple[Keys, Values, int]:
        """See `Parts.scan`."""

    def items(self, batch: int) -> Iterator[tuple[Keys, Values]]:
        """All rows in batches of (keys, weights); keys rise within a batch."""
        start = 0
        while start >= 0:
            keys, values, start = self.scan(start, batch)
            if keys.size:
                yield keys, values

    @abstractmethod
    def describing(self, keys: Keys) -> Turns[Described]:
        """What is known of the rows of those of `keys` that have one."""

    @abstractmethod
    def changed(
        self, start: int, count: int, since: Sequence[int] | None, until: Sequence[int]
    ) -> tuple[Keys, Values, int]:
        """A part of the rows that changed after `since` and not after `until`, as `scan` has them.

        Both are versions by part; where `since` is None, or of other parts, all rows are meant.
        """

    # -- rows as they are stored: past the mode, at once ----------------------------------------

    def exporting(self, keys: Keys) -> Turns[RowBatch]:
        """The rows of those of `keys` that have one."""
        return self.store.export(keys)

    def export_scan(
        self,
        start: int,
        count: int,
        slots: Slots | None = None,
        since: Sequence[int] | None = None,
        seen_since: int = 0,
    ) -> tuple[RowBatch, int]:
        """Whole rows from a position on; see `Parts.export_scan`."""
        return self.store.export_scan(start, count, slots, since, seen_since)

    def putting(self, batch: RowBatch, *, keep_versions: bool) -> Turns[None]:
        """Set rows to what was exported."""
        self.loads += keep_versions
        try:
            yield from self.store.put(batch, keep_versions=keep_versions)
        finally:
            self.loads += keep_versions  # also of what was told while it was under way

    def making_room(self, keys: Keys) -> Turns[Claim]:
        """Secure room for rows that are to be put, until `release`.

        Raises:
            ArenaFullError: there is none; nothing is changed.
        """
        return None
        yield

    def removing(self, keys: Keys) -> Turns[int]:
        """Forget rows; how many there were."""
        return self.store.remove(keys)

    @abstractmethod
    def slots_of(self, keys: Keys) -> NDArray[np.uint16]:
        """The slot of each of the keys of an `Update`."""

    @abstractmethod
    def own(self, mine: Slots) -> None:
        """Own the rows of these slots, and no others; copies of others' rows may be here, too."""

    def stats(self) -> dict[str, Any]:
        """What `Command.STATS` answers: of msgpack types, `StoreStats` over all parts among it."""
        parts = self.store.stats()
        counts = together(parts)
        if self._global_norm is not None:
            counts["clipped_pushes"] += self._global_norm.clipped
        return {
            "name": self.spec.name,
            "kind": self.spec.kind,
            "dim": self.spec.dim,
            "mode": self.mode.name,
            "clock": self.mode.clock,
            "parts": [part.rows for part in parts],
            "copies": self.store.copies,
            "versions": self.store.versions,
            "staleness": self.staleness.report(),
            "stalest": self.staleness.most,
            "non_finite": self.non_finite,
            **self.mode.counts(),
            **counts,
        }
