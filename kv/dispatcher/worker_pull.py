"""What a worker's pull asks for."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from kv.dispatcher.known_tables import KnownTable
from kv.dispatcher.receiving import Keys


@dataclass(frozen=True, eq=False, slots=True)
class WorkerPull:
    """A pull that is made in the name of a worker.

    Attributes:
        keys: by table, increasing; None of a dense one.
        rank, step: the worker's, for the consistency modes.
        create: whether keys without a row may get one.
        priority: as in `Meta`.
    """

    tables: Sequence[KnownTable]
    keys: Sequence[Keys | None]
    rank: int
    step: int
    create: bool
    priority: int
