"""Mode `semi_sync`: rounds that close with a quorum, or after a time.

A worker ends a step *in* a round: the one that was open when it ended, or its own where it is not
late. So one that is late catches up with its next step, and never counts for a round that is over.
Pushes go into the round that is open when they come; with backup workers those that come after
their round are dropped, and their step counts for no round.

Sources: see `kv.consistency.settings.SemiSync`. Pushes of a round are added up in rank order, but
which round a late one joins depends on when it comes.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from kv.consistency.base import Context, Due, Kept, Mode, Update
from kv.consistency.rounds import Round, aggregated
from kv.consistency.settings import SemiSync
from kv.errors import LatePushError


class SemiSynchronous(Mode):
    """The clock counts the rounds closed.

    Attributes:
        late: pushes that came after the round they were meant for.
        dropped: those of them that were dropped.
    """

    name: ClassVar[str] = SemiSync.name
    holds: ClassVar[bool] = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        assert isinstance(context.settings, SemiSync)
        self.settings = context.settings
        self.late = self.dropped = 0
        self._begin(max(self.progress.completed))

    def _begin(self, clock: int) -> None:
        """All workers are together in round `clock`, however many steps each has completed."""
        completed = self.progress.completed
        self.clock = self._settling = clock
        self.rounds: dict[int, Round] = {}
        self.held = 0
        self._first_end: float | None = None  # when somebody ended a step in the open round
        self._shift = [clock - steps for steps in completed]  # step s belongs to round s + shift
        self._seen = list(completed)  # steps that have been looked at
        self._ended = [clock] * len(completed)  # rounds in which the worker has ended its step

    def check_push(self, rank: int, step: int) -> None:
        if step < self.progress.completed[rank]:
            raise LatePushError(self.table, rank, step, self.clock)

    def round_of(self, rank: int, step: int) -> int | None:
        wanted = step + self._shift[rank]
        if wanted < self.clock and self.settings.backup_workers:
            return None
        return max(wanted, self.clock)

    def on_push(self, rank: int, step: int, update: Update) -> Sequence[Update]:
        number = self.round_of(rank, step)
        self.late += step + self._shift[rank] < self.clock
        if number is None:
            self.dropped += 1
        else:
            self._hold(rank, number, update)
        return ()

    def _hold(self, rank: int, number: int, update: Update) -> None:
        if update.keys.size or self.aggregator == "weighted_mean":
            self.rounds.setdefault(number, {}).setdefault(rank, []).append(update)
            self.held += update.grads.size

    def kept(self) -> list[Kept]:
        return [
            (rank, number, push)
            for number in sorted(self.rounds)
            for rank, pushes in self.rounds[number].items()
            for push in pushes
        ]

    def keep(self, kept: Sequence[Kept]) -> Sequence[Due]:
        """As the contract says. Another server's rounds may have closed otherwise than those here:
        what is of a round that is over here counts in the open one."""
        self.rounds.clear()
        self.held = 0
        for rank, number, push in kept:
            self._hold(rank, max(number, self.clock), push)
        return ()

    def resume(self, clock: int) -> None:
        """What was held for the open round is not in a checkpoint, nor who had ended it."""
        self._begin(clock)

    def counts(self) -> dict[str, int]:
        return {"late": self.late, "dropped": self.dropped}

    def may_pull(self, rank: int, step: int) -> bool:
        # Steps that have ended and were not looked at yet do not shift anybody.
        return self.clock >= step + self._shift[rank]

    def due(self) -> Sequence[Due]:
        self._note_ends()
        closed = self.clock
        while self._is_complete(closed):
            closed += 1
        if self._active() == [] and self.rounds:
            closed = max(closed, max(self.rounds) + 1)  # what is left counts, too
        self._settling = closed
        numbers = sorted(number for number in self.rounds if number < closed)
        due = [(number, self.rounds.pop(number)) for number in numbers]
        self.held -= sum(p.grads.size for _, some in due for each in some.values() for p in each)
        return due

    def total(self, due: Due) -> Update:
        number, pushes = due
        return aggregated(self.aggregator, pushes, len(pushes), number)

    def settled(self) -> bool:
        has_closed = self._settling > self.clock
        self.clock = max(self.clock, self._settling)
        if has_closed:
            is_begun = any(ended > self.clock for ended in self._ended)
            self._first_end = self.now() if is_begun else None
        return has_closed

    @property
    def due_at(self) -> float | None:
        if not self.settings.window or self._first_end is None:
            return None
        return self._first_end + self.settings.window

    def waits_for(self, rank: int, step: int) -> list[int]:
        if self.clock >= step + self._shift[rank]:
            return []
        return [other for other in self._active() if self._ended[other] <= self.clock]

    def validate(self) -> None:
        super().validate()
        assert all(number >= self.clock for number in self.rounds), "a closed round holds pushes"
        assert all(late >= 0 for late in (self.late, self.dropped)), "counts below zero"
        for rank, ended in enumerate(self._ended):
            assert ended == self._seen[rank] + self._shift[rank], "a worker's round is lost"

    def _active(self) -> list[int]:
        return [rank for rank, done in enumerate(self.progress.finished) if not done]

    def _is_complete(self, number: int) -> bool:
        active = self._active()
        if not active:
            return number < max(self._ended)
        there = sum(self._ended[rank] > number for rank in active)
        if there >= self.settings.needed(len(active)):
            return True
        due_at = self.due_at
        return number == self.clock and there > 0 and due_at is not None and self.now() >= due_at

    def _note_ends(self) -> None:
        """See which workers have ended steps, and in which round that was."""
        for rank, completed in enumerate(self.progress.completed):
            steps = completed - self._seen[rank]
            if not steps:
                continue
            last = self._ended[rank] + steps - 1  # the round of its last step, were it in time
            if last >= self.clock:
                ended = last + 1
            else:
                ended = self.clock + (not self.settings.backup_workers)
            self._seen[rank], self._ended[rank] = completed, ended
            self._shift[rank] = ended - completed
            if self._first_end is None and ended > self.clock:
                self._first_end = self.now()
