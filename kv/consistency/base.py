"""The contract between an engine and a consistency mode.

A mode sees every push, pull, step and finish of one table and says what is to happen: it returns
the updates that the engine must apply now, in this order, and keeps those it holds back. It never
touches rows. Closing a round has three steps, so that the engine need hold no lock while it adds
up and applies: `due`, `total` and `settled`.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kv.consistency.progress import Progress
from van.message import Meta


class Update(NamedTuple):
    """A push, or one optimiser step made of pushes.

    keys: uint64, shape (n,), strictly increasing; grads: float32, shape (n, dim); weight: what a
    push counts in a weighted mean; clock: of a step, the number of steps of the table before it,
    as schedules and roundings count them; is_rest: a further piece of a push that was cut, with
    other keys, which counts no step of its own; push: the header of the request, where copies of
    rows are kept, which must recognise it.
    """

    keys: NDArray[np.uint64]
    grads: NDArray[np.float32]
    weight: float = 1.0
    clock: int = 0
    is_rest: bool = False
    push: Meta | None = None


Kept = tuple[int, int, Update]
"""A push that a mode keeps: the worker's rank, its step, the push."""

Due = Any
"""Something that a mode has held back and that is to be applied now; the mode's own type."""


class Mode(ABC):
    """One table's consistency.

    `clock` only grows; what it counts is the mode's own: updates (async) or rounds (sync).

    Args:
        table: its name, for errors.
        progress: how far the workers are; the engine keeps it and asks what is `due` after it has
            changed.
        aggregator: what a mode with rounds makes of one's pushes, see `kv.consistency.rounds`.
    """

    name: ClassVar[str]
    holds: ClassVar[bool]  # whether pushes may be kept: their arrays must not change then

    def __init__(self, table: str, progress: Progress, aggregator: str = "sum") -> None:
        self.table, self.progress, self.aggregator = table, progress, aggregator
        self.clock = 0
        self.held = 0  # floats in pushes that are kept

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
    def due(self) -> Sequence[Due]:
        """Take out what is to be applied now that a worker has ended a step or finished.

        In this order, each by way of `total`; then comes `settled`. Nobody calls `due` between.
        """

    def total(self, due: Due) -> Update:
        """The update of something due. May take long, and needs nothing of this object.

        A mode that holds nothing back, so that nothing is ever due, does without.
        """
        raise AssertionError(f"mode {self.name} holds nothing back")

    def settled(self) -> None:
        """What was due has been applied: the clock moves on, and pulls may be answered."""
        return

    def close(self) -> list[Update]:
        """All three steps, for one who applies the result before anybody pulls."""
        updates = [self.total(due) for due in self.due()]
        self.settled()
        return [update for update in updates if update.keys.size]

    # -- copies: what is kept here for slots that are another server's, or will be ----------------

    def kept(self) -> list[Kept]:
        """All pushes that are kept, in the order in which they would be applied."""
        return []

    def keep(self, kept: Sequence[Kept]) -> Sequence[Due]:
        """Keep these pushes, and no others; some are of slots that have come from another server.

        Returns what would have been due by now, in order: rounds that are closed here already.
        """
        assert not kept, f"mode {self.name} keeps no pushes"
        return ()

    def waits_for(self, rank: int, step: int) -> list[int]:
        """The workers whose steps a pull that may not be answered waits for."""
        return []

    def validate(self) -> None:
        """Assert what must always hold."""
        assert self.clock >= 0, f"clock {self.clock}"
