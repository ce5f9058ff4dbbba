"""Pulls that a consistency mode does not answer yet, by the table that they wait for.

A pull about several tables waits for one of them at a time. Those of a table are looked at again
when clocks have advanced, and only handed on when nothing is in their way any more: so a step that
closes no round costs nothing, however many wait.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

from kv.engine_table import Table
from kv.table_messages import Tables
from van.message import Message

Waiting = tuple[Message, Tables, int]
"""A pull, its tables, and the rank of the worker that asks."""


class HeldPulls:
    """Any thread."""

    def __init__(self) -> None:
        self._by_table: dict[Table, list[Waiting]] = {}
        self._lock = threading.Lock()

    def __len__(self) -> int:
        return sum(map(len, self._by_table.values()))

    def keep(self, message: Message, tables: Tables, rank: int) -> bool:
        """Keep a pull if it has to wait; whether it has to."""
        if blocking(tables, rank) is None:
            return False
        with self._lock:  # looked at again: a clock may just have advanced, unseen by `ready`
            return self._keep((message, tables, rank))

    def _keep(self, waiting: Waiting) -> bool:
        _, tables, rank = waiting
        table = blocking(tables, rank)
        if table is None:
            return False
        self._by_table.setdefault(table, []).append(waiting)
        return True

    def ready(self) -> list[Message]:
        """Those that may be answered now; they are kept no longer."""
        with self._lock:
            before, self._by_table = self._by_table, {}
            return [w[0] for some in before.values() for w in some if not self._keep(w)]

    def take_all(self) -> list[Message]:
        """All of them; they are kept no longer."""
        with self._lock:
            before, self._by_table = self._by_table, {}
        return [message for some in before.values() for message, _, _ in some]


def blocking(tables: Sequence[tuple[int, Table, int]], rank: int) -> Table | None:
    """The first table that worker `rank` may not pull in its step; None: it may pull all."""
    for _, table, step in tables:
        if not table.mode.may_pull(rank, step):
            return table
    return None
