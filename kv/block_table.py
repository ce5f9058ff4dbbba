"""A dense table of an engine: its blocks here, always read and written all at once.

Only a request that was cut anew, since blocks have moved, names some of them.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence

import numpy as np
from numpy.typing import NDArray

from kv.checks import checked_keys, checked_values
from kv.consistency.base import Mode, Update
from kv.dense import BlockShare, share_of
from kv.engine_table import Claim, Described, Empty, Keys, Noted, Table, Values
from kv.errors import KeyListError
from kv.executor import Turns, run_through
from kv.keylist import as_values
from kv.placement import slot_of
from kv.spec import TableSpec
from kv.store.blocks import Blocks, Places
from kv.store.rows import Slots

SEQUENTIAL = 4  # floats of a dense table that cost as much as one of a sparse table's rows


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
        return math.prod(self.store.shape) // SEQUENTIAL

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
