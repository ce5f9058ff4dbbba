"""Copies that are of no use any more: their rows go, piece by piece, and then their memory.

Neither holds anything up. A turn looks at some thousand places of a store, with its lock held for
that long; between two, whatever else is done to copies has its turn. Rows that are left are moved
together, so that what is free behind them goes back to the system (`SparseStore.pack`).

Who calls sees to it that a turn and the beginning of a new copy never overlap.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

from kv.engine import Engine
from kv.engine_table import Table
from kv.executor import Turns
from kv.replication.outgoing import no_slots
from kv.replication.records import Slots

PLACES = 1 << 12  # that are looked at under one lock
NBYTES = 1 << 20  # of rows that are moved under one lock, about
TURNS = 8  # in one piece of work
QUIET = 60.0  # seconds without a scan under way, before rows are moved


class Leaving:
    """The slots whose copies are going.

    Args:
        engine: of this server.
        gone: called with slots of which no copy is left.

    Attributes:
        slots: bool (1024,).
    """

    def __init__(self, engine: Engine, gone: Callable[[Slots], None]) -> None:
        self._engine, self._gone = engine, gone
        self.slots = no_slots()
        self._has_come = False  # a slot, since the pass began
        self._pass: Iterator[None] | None = None
        self._packing: list[tuple[Table, int]] = []  # stores that rows have left

    def __bool__(self) -> bool:
        """Whether there is anything to do."""
        return self._pass is not None or bool(self._packing) or bool(self.slots.any())

    def add(self, slots: Slots) -> None:
        """The copies of these slots are of no use any more."""
        self._has_come |= bool((slots & ~self.slots).any())
        self.slots = self.slots | slots

    def keep(self, slots: Slots) -> None:
        """Nothing of these slots is to go: what there was has gone, and new copies begin."""
        self.slots = self.slots & ~slots

    def working(self) -> Turns[None]:
        """Some turns of what there is to do."""
        for _ in range(TURNS):
            if not (self._sweep() or self._pack()):
                return
            yield

    def _sweep(self) -> bool:
        """Forget some rows; False: there is nothing to forget."""
        if self._pass is None:
            if not self.slots.any():
                return False
            self._pass = self._one_pass()
        for _ in self._pass:
            return True
        self._pass = None
        return True

    def _one_pass(self) -> Iterator[None]:
        """Forget the rows of the slots, in all tables."""
        began, self._has_come = self.slots, False
        for table in list(self._engine.tables):
            for number, (lock, store) in enumerate(table.store.stores):
                start = 0
                while start < store.top:
                    with lock:
                        start = store.remove_slots(self.slots, start, PLACES)
                    yield
                if (table, number) not in self._packing:
                    self._packing.append((table, number))
        if not self._has_come:  # else rows of those may lie where this pass had been
            through = began & self.slots
            self.slots = self.slots & ~through
            self._gone(through)

    def _pack(self) -> bool:
        """Move some rows of a store together; False: there is nothing to do for now."""
        for table, number in list(self._packing):
            _, store = table.store.stores[number]
            most = max(1, min(PLACES, NBYTES // store.row_nbytes))
            has_more = table.store.pack(number, most, QUIET)
            if has_more is None:  # somebody scans it
                continue
            if not has_more:
                self._packing.remove((table, number))
            return True
        return False
