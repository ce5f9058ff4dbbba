"""Modes by name. A new one is a class beside this file, a line here, and its name in `kv.spec`."""

from __future__ import annotations

from kv.consistency.asynchronous import Asynchronous
from kv.consistency.base import Mode
from kv.consistency.progress import Progress
from kv.consistency.sync import Synchronous

MODES: dict[str, type[Mode]] = {mode.name: mode for mode in (Asynchronous, Synchronous)}


def mode_of(name: str, table: str, progress: Progress, aggregator: str = "sum") -> Mode:
    """The mode `name` for one table, with its `aggregator` (`TableSpec` has checked both)."""
    return MODES[name](table, progress, aggregator)
