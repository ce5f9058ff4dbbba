"""The tables of one server by number and name, each defined once.

What is counted of all of them (progress, clocks, rounds) has one lock, which is held for
microseconds; who keeps copies of tables elsewhere hears of each new one.
"""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
from numpy.typing import NDArray

from kv.block_table import BlockTable
from kv.consistency.base import Context, Mode
from kv.consistency.modes import mode_of
from kv.consistency.progress import Progress
from kv.consistency.settings import Consistency
from kv.dense import share_of
from kv.engine_log import EngineLog
from kv.engine_table import Keys, Table
from kv.errors import TableConflictError, UnknownTableError
from kv.keyed_table import KeyedTable
from kv.spec import TableSpec

OwnerFilter = Callable[[Keys], NDArray[np.bool_]]


class Catalogue:
    """Makes tables and finds them. Any thread.

    Args:
        num_workers, default_mode, seed, owner_filter, parts, spill_dir, now, group_of: see
            `kv.engine.Engine`.

    Attributes:
        progress: how far the workers are.
        tables: by number.
        numbers: by name.
        lock: of what is counted.
        log: hears of changes, where copies of tables are kept.
    """

    def __init__(
        self,
        num_workers: int,
        default_mode: str | Consistency,
        seed: int,
        owner_filter: OwnerFilter | None,
        parts: int,
        spill_dir: str,
        now: Callable[[], float],
        group_of: Callable[[int], int] | None,
    ) -> None:
        self.default_mode, self.seed = Consistency.of(default_mode), seed
        self.owner_filter, self.parts, self.spill_dir = owner_filter, parts, spill_dir
        self.now, self.group_of = now, group_of
        self.progress = Progress(num_workers)
        self.tables: list[Table] = []
        self.numbers: dict[str, int] = {}
        self.lock = threading.Lock()
        self.log: EngineLog | None = None
        self._mine: NDArray[np.bool_] | None = None
        self._defining = threading.Lock()

    def define(self, spec: TableSpec) -> int:
        """Make the table, or find it if it is defined alike; returns its number.

        Raises:
            TableConflictError: the name stands for another definition; the text shows both.
        """
        spec = spec.resolved(self.default_mode, self.seed)
        with self._defining:
            number = self.numbers.get(spec.name)
            return self._add(spec) if number is None else self._found(number, spec)

    def _found(self, number: int, spec: TableSpec) -> int:
        known = self.tables[number].spec
        if known != spec:
            raise TableConflictError(
                spec.name,
                f"two definitions disagree: {known.difference(spec)} "
                f"(here is the first definition, there the new one)",
            )
        return number

    def _add(self, spec: TableSpec) -> int:
        table: Table
        if spec.kind == "dense":
            table = BlockTable(spec, self._new_mode(spec), share_of(spec, self.owner_filter))
        else:
            table = KeyedTable(spec, self._new_mode(spec), self.parts, self.spill_dir)
        with self.lock:
            table.mode = self._new_mode(spec)  # of this moment's progress
            number = len(self.tables)
            self.tables.append(table)
            self.numbers[spec.name] = number
            if self._mine is not None:
                table.own(self._mine)
            if self.log is not None:
                self.log.defined(table)
        return number

    def _new_mode(self, spec: TableSpec) -> Mode:
        assert spec.mode is not None, "the definition is resolved"
        return mode_of(
            Context(spec.name, self.progress, spec.aggregator, spec.mode, self.now, self.group_of)
        )

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

    def is_dense(self, table: int) -> bool:
        """Whether the table is dense: its values come without keys."""
        return self.table(table).is_dense

    def own(self, mine: NDArray[np.bool_]) -> None:
        """Own the rows of these slots, bool (1024,), and no others."""
        with self.lock:
            self._mine = mine
        for found in list(self.tables):
            found.own(mine)

    def note_non_finite(self, table: int, count: int = 1) -> None:
        """So many pushes to the table were refused, or not sent, for numbers that are none."""
        found = self.table(table)
        with self.lock:
            found.non_finite += count
