"""One table of an engine: its definition, its rows here, its consistency.

A sparse table has `Parts`, a dense one `Blocks`; an engine treats both alike. What may take long
is a generator (`kv.executor.Turns`).
"""

from __future__ import annotations

import threading
import weakref
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kv.checks import checked_keys, checked_values
from kv.consistency.base import Mode, Update
from kv.consistency.settings import SemiSync
from kv.consistency.staleness import Staleness
from kv.dense import BlockShare, share_of
from kv.engine_log import Cause
from kv.errors import KeyListError, SettingError
from kv.executor import Turns, run_through
from kv.global_norm import GlobalNorm
from kv.keylist import as_values
from kv.placement import slot_of
from kv.spec import TableSpec
from kv.store.blocks import Blocks, Places
from kv.store.delay import Delay
from kv.store.partition import PART_SHIFT
from kv.store.parts import Parts
from kv.store.pieces import Cut, Piece
from kv.store.rows import RowBatch, Slots
from kv.store.stats import StoreStats
from kv.table_protocol import table_id

_FRESH = 8  # key lists whose rows are kept until it is known whether they come again
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


SEQUENTIAL = 4  # floats of a dense table that cost as much as one of a sparse table's rows


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


class KeyedTable(Table):
    """A sparse table.

    Args:
        parts: how many.
        spill_dir: where rows that are spilled lie.
    """

    is_dense = False
    store: Parts

    def __init__(self, spec: TableSpec, mode: Mode, parts: int, spill_dir: str = "") -> None:
        super().__init__(spec, mode)
        self.store = Parts(spec, parts, spill_dir)
        self._fresh: deque[Cut] = deque()  # the last that were remembered
        self._cuts: dict[int, tuple[weakref.ref[Keys], Cut]] = {}  # id of a key list -> its cut

    def remember(self, keys: Keys) -> None:
        """This very array will come again: check and cut it once, and learn its rows.

        Raises:
            UnsortedKeysError, KeyListError: the keys are not in order.
        """
        identity, cuts = id(keys), self._cuts
        if identity not in cuts and not keys.flags.writeable:
            cut = self.store.cut(self._checked_keys(keys), learns=True)
            cuts[identity] = weakref.ref(keys, lambda _: cuts.pop(identity, None)), cut
            self._fresh.append(cut)
            if len(self._fresh) > _FRESH:
                for piece in self._fresh.popleft():
                    piece.forget_unless_used()

    def _cut(self, keys: Keys) -> Cut:
        known = self._cuts.get(id(keys))
        return self.store.cut(keys) if known is None else known[1]

    def _quick(self, keys: Keys) -> Piece | None:
        """The only piece of keys that need no turns."""
        known = self._cuts.get(id(keys))
        return self.store.quick(keys, None if known is None else known[1])

    def cost(self, keys: Keys | None) -> int:
        return 0 if keys is None else keys.size * self.store.key_cost

    def checked(self, keys: Keys | None, values: Values, what: str) -> tuple[Keys, Values]:
        keys = self._checked_keys(keys)
        return keys, checked_values(values, keys, self.spec, what)

    def pulling(self, keys: Keys | None, create: bool, empty: Empty = np.empty) -> Turns[Values]:
        keys = self._checked_keys(keys)
        out = self._pull_at_once(keys, create, empty)
        if out is None:
            out = empty((keys.size, self.spec.dim), np.float32)
            yield from self.store.pull(keys, create, out, self._cut(keys))
        return out

    def pull_at_once(self, keys: Keys | None, create: bool, empty: Empty) -> Values | None:
        return self._pull_at_once(self._checked_keys(keys), create, empty)

    def _pull_at_once(self, keys: Keys, create: bool, empty: Empty) -> Values | None:
        piece = self._quick(keys)
        if piece is None:
            return None
        out = empty((keys.size, self.spec.dim), np.float32)
        with piece.part.lock:
            piece.part.store.pull(keys, create, out, piece.rows(keys))
        return out

    def push_at_once(self, update: Update, note: Callable[[], Noted]) -> list[int] | None:
        piece = self._quick(update.keys)
        if piece is None:
            return None
        part = piece.part
        with part.lock:
            if self.spec.missing == "error":
                if piece.rows(update.keys) is None:
                    part.refuse_missing(update.keys)
            elif not self.mode.holds and not part.has_room(update.keys.size):
                return None
            (due,), clocks = note()
            for step in due:
                delay = step.delay if self._global_norm is None else self._delay(step)
                piece.push(step.keys, step.grads, step.clock, 0, delay)
                if self.store.log is not None:
                    self.store.log.changed(part.store, step.keys, self._cause(step))
            return clocks

    def claiming(self, keys: Keys) -> Turns[Claim]:
        cut = self._cut(keys)
        if self.spec.missing == "error":
            yield from self.store.refuse_missing(keys, cut)
        if self.mode.holds or self.spec.missing == "error":
            return cut, []
        return cut, (yield from self.store.promise(keys, cut))

    def applying(self, update: Update, claim: Claim = None) -> Turns[None]:
        cut = self._cut(update.keys) if claim is None else claim[0]
        cause = self._cause(update)
        keys, grads, clock = update.keys, update.grads, update.clock
        delay = yield from self._delaying(update)
        yield from self.store.push(keys, grads, clock, cut, cause, delay)

    def making_room(self, keys: Keys) -> Turns[Claim]:
        cut = self._cut(keys)
        return cut, (yield from self.store.promise(keys, cut))

    def applying_round(self, update: Update) -> Turns[None]:
        cut = self._cut(update.keys)
        is_bound = self.spec.missing != "error"  # else it makes no rows
        granted = (yield from self.store.promise(update.keys, cut)) if is_bound else []
        try:
            yield from self.applying(update, (cut, granted))
        finally:
            self.release((cut, granted))

    def release(self, claim: Claim) -> None:
        if claim is not None:
            self.store.redeem(*claim)

    def assigning(self, keys: Keys, values: Values) -> Turns[None]:
        yield from self.store.assign(keys, values)

    def deleting(self, keys: Keys) -> Turns[int]:
        return (yield from self.store.delete(self._checked_keys(keys)))

    def scan(self, start: int, count: int) -> tuple[Keys, Values, int]:
        return self.store.scan(start, count)

    def describing(self, keys: Keys) -> Turns[Described]:
        rows = yield from self.store.export(self._checked_keys(keys))
        return rows.keys, rows.versions, rows.show_counts(), rows.seen

    def versions_of(self, keys: Keys) -> Turns[NDArray[np.int64]]:
        """When each row last changed; 0 where there is none in memory."""
        return (yield from self.store.versions_of(keys, self._cut(keys)))

    def changed(
        self, start: int, count: int, since: Sequence[int] | None, until: Sequence[int]
    ) -> tuple[Keys, Values, int]:
        parts = self.store.parts
        if since is not None and len(since) != len(parts):
            since = None
        rows, go_on = self.store.export_scan(start, count, None, since)
        number = max(start, 0) >> PART_SHIFT
        if number < len(until):
            rows = rows.take(rows.versions <= until[number])
        return rows.keys, parts[0].store.weights_of(rows), go_on

    def slots_of(self, keys: Keys) -> NDArray[np.uint16]:
        return slot_of(keys)

    def own(self, mine: Slots) -> None:
        self.store.own(mine)

    def _checked_keys(self, keys: Keys | None) -> Keys:
        if keys is None:
            raise KeyListError(self.spec.name, "it is sparse, so its values come with keys")
        return keys if id(keys) in self._cuts else checked_keys(keys, self.spec)


class BlockTable(Table):
    """A dense table. Its keys are the numbers of its blocks here: all of them, which then need not
    be named, or with a request that was cut anew some.
    """

    is_dense = True
    store: Blocks

    def __init__(self, spec: TableSpec, mode: Mode, share: BlockShare) -> None:
        super().__init__(spec, mode)
        self.store = Blocks(spec, share)

    @property
    def names(self) -> Keys:
        return self.store.numbers

    def cost(self, keys: Keys | None) -> int:
        # They move one after the other: many more in the time of as many floats of rows.
        return int(np.prod(self.store.shape)) // SEQUENTIAL

    def checked(self, keys: Keys | None, values: Values, what: str) -> tuple[Keys, Values]:
        if keys is not None and self._places(keys) is not None:
            return keys, checked_values(values, keys, self.spec, what)
        if np.shape(values) != self.store.shape:
            as_values(values, self.store.shape, self.spec.name, what)
        return self.store.numbers, checked_values(values, self.store.numbers, self.spec, what)

    def pulling(self, keys: Keys | None, create: bool, empty: Empty = np.empty) -> Turns[Values]:
        places = self._places(keys)
        values = self.store.pull(empty(self.store.shape, np.float32))
        return values if places is None else values[places]
        yield

    def pull_at_once(self, keys: Keys | None, create: bool, empty: Empty) -> Values | None:
        return run_through(self.pulling(keys, create, empty))

    def push_at_once(self, update: Update, note: Callable[[], Noted]) -> list[int] | None:
        with self.store.lock:
            (due,), clocks = note()
            for step in due:
                places = self._places(step.keys)
                cause = self._cause(step)
                delay = step.delay if self._global_norm is None else self._delay(step)
                self.store.push(step.grads, step.clock, places, cause, delay)
            return clocks

    def claiming(self, keys: Keys) -> Turns[Claim]:
        return None
        yield

    def applying(self, update: Update, claim: Claim = None) -> Turns[None]:
        delay = yield from self._delaying(update)
        with self.store.lock:
            places = self._places(update.keys)
            cause = self._cause(update)
            self.store.push(update.grads, update.clock, places, cause, delay)
        yield

    def release(self, claim: Claim) -> None:
        return

    def assigning(self, keys: Keys, values: Values) -> Turns[None]:
        self.store.assign(values, self._places(keys))
        yield

    def deleting(self, keys: Keys) -> Turns[int]:
        raise KeyListError(self.spec.name, "it is dense: it has no keys to delete")
        yield

    def scan(self, start: int, count: int) -> tuple[Keys, Values, int]:
        """All of it at once, by the keys of its blocks."""
        order = self.store.share.order
        values = self.store.pull(np.empty(self.store.shape, np.float32))
        return self.store.keys[order], values[order], -1

    def describing(self, keys: Keys) -> Turns[Described]:
        raise KeyListError(self.spec.name, "it is dense: it has no keys to tell of")
        yield

    def changed(
        self, start: int, count: int, since: Sequence[int] | None, until: Sequence[int]
    ) -> tuple[Keys, Values, int]:
        raise KeyListError(self.spec.name, "it is dense: pull it whole")

    def slots_of(self, keys: Keys) -> NDArray[np.uint16]:
        return slot_of(self.store.keys_of(keys))

    def own(self, mine: Slots) -> None:
        self.store.own(share_of(self.spec, lambda keys: mine[slot_of(keys)]))

    def _places(self, keys: Keys | None) -> Places:
        """Which blocks are meant; None: all."""
        if keys is None or keys is self.store.numbers:
            return None
        keys = checked_keys(keys, self.spec)
        return self.store.places(keys)


def together(parts: Sequence[StoreStats]) -> dict[str, Any]:
    """The stats of a table from those of its parts: counts add up, the load is their mean."""
    found: dict[str, Any] = {
        field.name: sum(getattr(part, field.name) for part in parts)
        for field in fields(StoreStats)
        if field.name != "top"
    }
    found["load_factor"] /= len(parts)
    top = sorted((entry for part in parts for entry in part.top), key=lambda entry: -entry[1])
    found["top"] = [list(entry) for entry in top[: max(len(part.top) for part in parts)]]
    return found
