"""The contract between an engine and a consistency mode.

A mode sees every push, pull, step and finish of one table and says what is to happen: it returns
the updates that the engine must apply now, in this order, and keeps those it holds back. It never
touches rows.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kv.consistency.progress import Progress


class Update(NamedTuple):
    """A push, or one optimiser step made of pushes.

    keys: uint64, shape (n,), strictly increasing; grads: float32, shape (n, dim); weight: what a
    push counts in a weighted mean; clock: of a step, the number of steps of the table before it,
    as schedules and roundings count them; is_rest: a further piece of a push that was cut, with
    other keys, which counts no step of its own.
    """

    keys: NDArray[np.uint64]
    grads: NDArray[np.float32]
    weight: float = 1.0
    clock: int = 0
    is_rest: bool = False


class Mode(ABC):
    """One table's consistency.

    `clock` only grows; what it counts is the mode's own: updates (async) or rounds (sync).

    Args:
        table: its name, for errors.
        progress: how far the workers are; the engine keeps it and tells `on_step` and `on_finish`
            after it has changed.
    """

    name: ClassVar[str]
    holds: ClassVar[bool]  # whether pushes may be kept: their arrays must not change then

    def __init__(self, table: str, progress: Progress) -> None:
        self.table, self.progress = table, progress
        self.clock = 0

    def check_push(self, rank: int, step: int) -> None:
        """Raise LatePushError if a push of worker `rank` in its step number `step` comes too late.

        Apart from `on_push`, so that a request for several tables is refused as a whole or not.
        """
        return

    @abstractmethod
    def on_push(self, rank: int, step: int, update: Update) -> Sequence[Update]:
        """Worker `rank`, in its step number `step`, pushes `update`, which may be empty.

        Called after `check_push`. Returns what to apply now.
        """

    @abstractmethod
    def may_pull(self, rank: int, step: int) -> bool:
        """Whether worker `rank`, which has completed `step` steps, may be answered now."""

    @abstractmethod
    def on_step(self) -> Sequence[Update]:
        """A worker has completed a step. Returns what to apply now."""

    @abstractmethod
    def on_finish(self) -> Sequence[Update]:
        """A worker has finished. Returns what to apply now."""

    def waits_for(self, rank: int, step: int) -> list[int]:
        """The workers whose steps a pull that may not be answered waits for."""
        return []

    def validate(self) -> None:
        """Assert what must always hold."""
        assert self.clock >= 0, f"clock {self.clock}"
