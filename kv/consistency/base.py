"""The contract between an engine and a consistency mode.

A mode sees every push, pull, step and finish of one table and says what is to happen: it returns
the updates that the engine must apply now, in this order, and keeps those it holds back. It never
touches rows. Closing a round has three steps, so that the engine need hold no lock while it adds
up and applies: `due`, `total` and `settled`.
"""

from __future__ import annotations

import time
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kv.consistency.progress import Progress
from kv.consistency.settings import Async, Consistency
from kv.store.delay import Delay
from van.message import Meta

Keys = NDArray[np.uint64]
Values = NDArray[np.float32]


class Update(NamedTuple):
    """A push, or one optimiser step made of pushes.

    keys: uint64, shape (n,), strictly increasing; grads: float32, shape (n, dim); weight: what a
    push counts in a weighted mean; clock: of a step, the number of steps of the table before it,
    as schedules and roundings count them; is_rest: a further piece of a push that was cut, with
    other keys, which counts no step of its own; push: the header of the request, where copies of
    rows are kept, which must recognise it; base: of a push, the table's clock here that its
    worker knew when it computed, -1 where that is not known; rate: what the learning rate is
    multiplied with; seen: the weights that the gradients were computed with, float32 (n, dim), NaN
    where that is not known, and lam: how much their delay is compensated (`dc_async`); step: of a
    push, the number of its worker's step; makers: how many workers' pushes it stands for, where a
    dispatcher has merged them.
    """

    keys: Keys
    grads: Values
    weight: float = 1.0
    clock: int = 0
    is_rest: bool = False
    push: Meta | None = None
    base: int = -1
    rate: float = 1.0
    seen: Values | None = None
    lam: np.float32 = np.float32(0)
    step: int = 0
    makers: int = 1

    @property
    def delay(self) -> Delay | None:
        """What its delay does to its step; None: nothing."""
        if self.rate == 1.0 and self.seen is None:
            return None
        return Delay(self.rate, self.seen, self.lam)


Kept = tuple[int, int, Update]
"""A push that a mode keeps: the worker's rank, the round it is kept for, the push."""

Due = Any
"""Something that a mode has held back and that is to be applied now; the mode's own type."""


_ASYNC = Async()


@dataclass(frozen=True)
class Context:
    """What a mode is made of.

    Args:
        table: its name, for errors.
        progress: how far the workers are; the engine keeps it and asks what is `due` after it has
            changed.
        aggregator: what a mode with rounds makes of one's pushes, see `kv.consistency.rounds`.
        settings: the mode's own.
        now: the time in seconds, for modes with time-outs.
        group_of: by the rank of a worker the group whose parts of a round are added up first, as a
            dispatcher may have done already; None: there are no groups.
    """

    table: str
    progress: Progress
    aggregator: str = "sum"
    settings: Consistency = _ASYNC
    now: Callable[[], float] = time.monotonic
    group_of: Callable[[int], int] | None = None


class Mode(ABC):
    """One table's consistency.

    `clock` only grows; what it counts is the mode's own: updates (async) or rounds (sync).
    """

    name: ClassVar[str]
    holds: ClassVar[bool]  # whether pushes may be kept: their arrays must not change then
    notes_pulls: ClassVar[bool] = False  # whether it wants to know what pulls are answered with

    def __init__(self, context: Context) -> None:
        self.table, self.progress, self.now = context.table, context.progress, context.now
        self.aggregator, self.group_of = context.aggregator, context.group_of
        self.clock = 0
        self.held = 0  # floats in pushes that are kept

    def check_push(self, rank: int, step: int) -> None:
        """Raise LatePushError if a push of worker `rank` in its step number `step` comes too late.

        Apart from `on_push`, so that a request for several tables is refused as a whole or not.
        """
        return

    def round_of(self, rank: int, step: int, base: int = -1) -> int | None:
        """The round that such a push is kept for; None: it will not be kept. Before `on_push`.

        Args:
            base: the clock here that its worker knew, -1 where that is not known.
        """
        return step

    @abstractmethod
    def on_push(self, rank: int, step: int, update: Update) -> Sequence[Update]:
        """Worker `rank`, in its step number `step`, pushes `update`, which may be empty.

        Called after `check_push`. Returns what to apply now.
        """

    def on_pull(self, rank: int, keys: Keys, values: Values) -> None:  # noqa: B027 (few care)
        """Worker `rank` is answered with `values`; called only where `notes_pulls`. Any thread."""

    @abstractmethod
    def may_pull(self, rank: int, step: int) -> bool:
        """Whether worker `rank`, which has completed `step` steps, may be answered now."""

    @property
    def due_at(self) -> float | None:
        """The time at which something may be due though no worker ends a step; None: never."""
        return None

    @abstractmethod
    def due(self) -> Sequence[Due]:
        """Take out what is to be applied now that a worker has ended a step or finished, or
        that it is `due_at`.

        In this order, each by way of `total`; then comes `settled`. Nobody calls `due` between.
        """

    def total(self, due: Due) -> Update:
        """The update of something due. May take long, and needs nothing of this object.

        A mode that holds nothing back, so that nothing is ever due, does without.
        """
        raise AssertionError(f"mode {self.name} holds nothing back")

    def settled(self) -> bool:
        """What was due has been applied: the clock moves on. Whether pulls may be answered now
        that could not be before."""
        return False

    def close(self) -> list[Update]:
        """All three steps, for one who applies the result before anybody pulls."""
        updates = [self.total(due) for due in self.due()]
        self.settled()
        return [update for update in updates if update.keys.size]

    def counts(self) -> dict[str, int]:
        """What there is to tell of this mode alone."""
        return {}

    def resume(self, clock: int) -> None:
        """Go on from the clock of a checkpoint, with nothing held back; progress is resumed."""
        self.clock = clock

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

    def forget_former(self, rank: int) -> None:  # noqa: B027 (where pushes count at once)
        """Worker `rank` was started again (`Progress.begun`): forget what it will push again."""

    def waits_for(self, rank: int, step: int) -> list[int]:
        """The workers whose steps a pull that may not be answered waits for."""
        return []

    def validate(self) -> None:
        """Assert what must always hold."""
        assert self.clock >= 0, f"clock {self.clock}"
