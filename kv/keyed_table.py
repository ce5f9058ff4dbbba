"""A sparse table of an engine: rows under keys, in parts that threads can work on at the same time.

A request is cut by part; one of few keys, in one part, needs no turns. A key list that comes again
is checked and cut once, and its rows are learnt.
"""

from __future__ import annotations

import weakref
from collections import deque
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from kv.checks import checked_keys, checked_values
from kv.consistency.base import Mode, Update
from kv.engine_table import Claim, Described, Empty, Keys, Noted, Table, Values
from kv.errors import KeyListError
from kv.executor import Turns
from kv.placement import slot_of
from kv.spec import TableSpec
from kv.store.partition import PART_SHIFT
from kv.store.parts import Parts
from kv.store.pieces import Cut, Piece
from kv.store.rows import Slots

_FRESH = 8  # key lists whose rows are kept until it is known whether they come again


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
