"""Mode `semi_sync`: rounds that close with a quorum, or after a time.

A worker's *position* is the next round that it will end a step in. With each step it says a new
one to all servers: behind the one before, and behind the latest round that it has pulled from, of
any table on any server (`kv.consistency.position`). A pull waits while its worker's position is
beyond the open round; a round closes when a quorum is beyond it. A step whose round is over counts
for no other, and with the next pull its worker is in time again.

Nobody waits for ever. Servers close rounds each by itself, but what they know of positions is the
same, once all that was said has come. Were all active workers waiting, then each at a table whose
open round is below its position; in the lowest of all open rounds every one of them would be beyond
it, which is a quorum. And if some waited for ever while others go on, the positions of these would
grow beyond any round. Who has finished, died or rests is not counted; who does not pull does not
wait, and is told with the answer to each step how far rounds are. A worker that was started again
asks all servers and says the furthest position that one of them knew. (Were a step counted in the
round that is open where it comes, or positions told apart by table, then each of two servers, or
tables, could wait for a worker that waits at the other.) Beside tables whose pulls wait for steps
(`sync`, `ssp`) the worker with the fewest steps waits nowhere.

Pushes go into the round that is open when they come; with backup workers those that come after
their round are dropped.

Sources: see `kv.consistency.settings.SemiSync`. Pushes of a round are added up in rank order, but
which round a late one joins depends on when it comes.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import ClassVar

from kv.consistency.base import Context, Due, Kept, Mode, Update
from kv.consistency.rounds import Round, aggregated, drop_former
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
        self._begin(max(*self.progress.completed, *self.progress.positions))

    def _begin(self, clock: int) -> None:
        """All workers are together in round `clock`, however many steps each has completed, but
        for those who are known to be further."""
        completed, positions = self.progress.completed, list(self.progress.positions)
        self.clock = self._settling = clock
        self.rounds: dict[int, Round] = {}
        self.held = 0
        self._first_end: float | None = None  # when somebody ended a step in the open round
        self._seen = list(completed)  # steps that have been looked at
        self._news = self.progress.version  # up to which changes have been looked at
        self._ended = [max(clock, there) for there in positions]  # as far as that was looked at
        self._shift = [ended - steps for ended, steps in zip(self._ended, completed, strict=True)]
        self._most = max(self._ended)  # step s belongs to round s + shift
        # Of the workers that have not finished, as far as that was looked at:
        self._is_active = [not done for done in self.progress.finished]
        self._active = sum(self._is_active)
        # How many have ended what, beyond the open round; then all of these.
        active = (ended for ended, is_in in zip(self._ended, self._is_active, strict=True) if is_in)
        self._ahead: Counter[int] = Counter(ended for ended in active if ended > clock)
        self._there = self._ahead.total()

    def check_push(self, rank: int, step: int) -> None:
        if step < self.progress.completed[rank]:
            raise LatePushError(self.table, rank, step, self.clock)

    def _wanted(self, rank: int, step: int, base: int) -> int:
        """The round that a push is meant for."""
        return max(step + self._shift[rank], base)

    def round_of(self, rank: int, step: int, base: int = -1) -> int | None:
        wanted = self._wanted(rank, step, base)
        if wanted < self.clock and self.settings.backup_workers:
            return None
        return max(wanted, self.clock)

    def on_push(self, rank: int, step: int, update: Update) -> Sequence[Update]:
        number = self.round_of(rank, step, update.base)
        self.late += self._wanted(rank, step, update.base) < self.clock
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

    def forget_former(self, rank: int) -> None:
        self.held -= drop_former(self.rounds, self.progress, rank)

    def counts(self) -> dict[str, int]:
        return {"late": self.late, "dropped": self.dropped}

    def may_pull(self, rank: int, step: int) -> bool:
        # Steps that have ended and were not looked at yet do not shift anybody.
        if self.clock >= step + self._shift[rank]:
            return True
        return self.progress.keeps_together and step <= (self.progress.slowest() or 0)

    def due(self) -> Sequence[Due]:
        self._note_changes()
        self._settling = closed = self._first_open()
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
            self._first_end = self.now() if self._most > self.clock else None
        return has_closed

    @property
    def due_at(self) -> float | None:
        if not self.settings.window or self._first_end is None:
            return None
        return self._first_end + self.settings.window

    def waits_for(self, rank: int, step: int) -> list[int]:
        if self.may_pull(rank, step):
            return []
        active = [r for r, done in enumerate(self.progress.finished) if not done]
        return [other for other in active if self._ended[other] <= self.clock]

    def validate(self) -> None:
        super().validate()
        assert all(number >= self.clock for number in self.rounds), "a closed round holds pushes"
        assert all(late >= 0 for late in (self.late, self.dropped)), "counts below zero"
        for rank, ended in enumerate(self._ended):
            assert ended == self._seen[rank] + self._shift[rank], "a worker's round is lost"
        active = [ended for ended, is_in in zip(self._ended, self._is_active, strict=True) if is_in]
        ahead = Counter(ended for ended in active if ended > self._settling)
        assert (len(active), ahead) == (self._active, self._ahead), "workers are counted wrongly"
        assert self._there == ahead.total(), "workers that are there are counted wrongly"
        assert self._most == max(self._ended), "a round was ended that nobody knows"

    def _first_open(self) -> int:
        """The first round that is not complete. Who is ahead is counted from there on."""
        closed = self.clock
        if not self._active:
            last = max(self.rounds, default=-1)  # what is left counts, too
            return max(closed, self._most, last + 1)
        due_at = self.due_at
        is_over = due_at is not None and self.now() >= due_at
        while self._there and (is_over or self._there >= self.settings.needed(self._active)):
            nearest = min(self._ahead)  # all who are there have ended the rounds below
            closed = closed + 1 if is_over and not self._has_quorum() else nearest
            is_over = False
            if closed == nearest:
                self._there -= self._ahead.pop(nearest)
        return closed

    def _has_quorum(self) -> bool:
        return self._there >= self.settings.needed(self._active)

    def _note_changes(self) -> None:
        """See which workers have ended steps, and in which round that was, or have finished."""
        version = self.progress.version
        for rank in self.progress.changed_since(self._news):
            is_further = self.progress.positions[rank] > self._ended[rank]
            if is_further or self.progress.completed[rank] > self._seen[rank]:
                self._note_end(rank)
            if self.progress.finished[rank] and self._is_active[rank]:
                self._count(rank, -1)
                self._is_active[rank] = False
                self._active -= 1
        self._news = version

    def _note_end(self, rank: int) -> None:
        completed = self.progress.completed[rank]
        ended = max(self._ended[rank], self.progress.positions[rank])
        self._count(rank, -1)
        self._seen[rank], self._ended[rank] = completed, ended
        self._shift[rank] = ended - completed
        self._count(rank, +1)
        self._most = max(self._most, ended)
        if self._first_end is None and ended > self.clock:
            self._first_end = self.now()

    def _count(self, rank: int, by: int) -> None:
        """Count a worker in or out of those that are ahead, if it is one of them."""
        ended = self._ended[rank]
        if self._is_active[rank] and ended > self.clock:
            self._there += by
            self._ahead[ended] += by
            if not self._ahead[ended]:
                del self._ahead[ended]
