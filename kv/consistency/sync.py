"""Mode `sync`: rounds. Step c of all workers makes round c, one update made of all its pushes.

Source: Valiant, A bridging model for parallel computation, CACM 33 (1990): bulk synchronous
parallel. A worker that has finished counts as infinitely far ahead, so that workers with unequal
shares of the data never block each other.

Pushes are added up in rank order, not in order of arrival (`kv.consistency.rounds`): a job with
fixed seeds has one result, to the bit, however its messages were delayed.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from kv.consistency.base import Context, Due, Kept, Mode, Update
from kv.consistency.rounds import Round, aggregated, drop_former
from kv.errors import LatePushError


class Synchronous(Mode):
    """The clock counts the rounds applied; round c closes when every active worker ended step c."""

    name: ClassVar[str] = "sync"
    holds: ClassVar[bool] = True

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        self.progress.keeps_together = True
        self.clock = self._target()
        self.rounds: dict[int, Round] = {}
        self._settling = self.clock  # the clock when all that is due has been applied

    def check_push(self, rank: int, step: int) -> None:
        if step < max(self.clock, self.progress.completed[rank]):
            raise LatePushError(self.table, rank, step, self.clock)

    def on_push(self, rank: int, step: int, update: Update) -> Sequence[Update]:
        if update.keys.size or self.aggregator == "weighted_mean":  # its weight counts
            self.rounds.setdefault(step, {}).setdefault(rank, []).append(update)
            self.held += update.grads.size
        return ()

    def kept(self) -> list[Kept]:
        return [
            (rank, step, push)
            for step in sorted(self.rounds)
            for rank, pushes in self.rounds[step].items()
            for push in pushes
        ]

    def keep(self, kept: Sequence[Kept]) -> Sequence[Due]:
        self.rounds.clear()
        self.held = 0
        late: dict[int, Round] = {}
        for rank, step, push in kept:
            if step < self.clock:
                late.setdefault(step, {}).setdefault(rank, []).append(push)
            else:
                self.on_push(rank, step, push)
        return [self._with_workers(number, late[number]) for number in sorted(late)]

    def forget_former(self, rank: int) -> None:
        self.held -= drop_former(self.rounds, self.progress, rank)

    def may_pull(self, rank: int, step: int) -> bool:
        return self.clock >= step

    def due(self) -> Sequence[Due]:
        target = self._target()
        if self.progress.slowest() is None and self.rounds:
            # all have finished: what was pushed in a step nobody ended still counts
            target = max(target, max(self.rounds) + 1)
        closed = sorted(number for number in self.rounds if number < target)
        self._settling = target
        due = [self._due(number) for number in closed]
        self.held -= sum(push.grads.size for d in due for some in d[1].values() for push in some)
        return due

    def _due(self, number: int) -> tuple[int, Round, int]:
        """A round's number, its pushes, and how many workers took part in it."""
        return self._with_workers(number, self.rounds.pop(number))

    def _with_workers(self, number: int, pushes: Round) -> tuple[int, Round, int]:
        present = [r for r, done in enumerate(self.progress.completed) if done > number]
        return number, pushes, len({*present, *pushes})

    def total(self, due: Due) -> Update:
        number, pushes, workers = due
        return aggregated(self.aggregator, pushes, workers, number, self.group_of)

    def settled(self) -> bool:
        has_closed = self._settling > self.clock
        self.clock = max(self.clock, self._settling)
        return has_closed

    def resume(self, clock: int) -> None:
        self.clock = self._settling = self._target()

    def waits_for(self, rank: int, step: int) -> list[int]:
        return self.progress.behind(step)

    def validate(self) -> None:
        super().validate()
        assert all(number >= self.clock for number in self.rounds), "a closed round holds pushes"
        slowest = self.progress.slowest()
        assert slowest is None or self.clock == slowest, "rounds are not closed in time"

    def _target(self) -> int:
        """The number of rounds that can be closed by now."""
        slowest = self.progress.slowest()
        return max(self.progress.completed) if slowest is None else slowest
