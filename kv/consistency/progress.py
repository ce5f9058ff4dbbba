"""How many steps each worker has completed, and who has finished.

All tables of an engine share one, so that a table defined late starts at the right round.
"""

from __future__ import annotations

import threading

from kv.errors import RankError


class Progress:
    """The workers' step counts.

    Args:
        num_workers: ranks are 0 to num_workers - 1.

    Attributes:
        finished: by rank; nobody waits for these.
        lost: those of them that died or rest. They may push again, a dead one's rank by another
            process, but nobody waits for them: one that rests has fewer steps than the others, and
            another process knows nothing of the steps of the one before.
    """

    def __init__(self, num_workers: int) -> None:
        if num_workers < 1:
            raise RankError(f"a job has 1 or more workers, not {num_workers}")
        self.completed = [0] * num_workers
        self.finished = [False] * num_workers
        self.lost = [False] * num_workers
        # Asked at each pull and each end of a step, and found anew when nobody is there any more.
        self._slowest: int | None = 0
        self._at_slowest = num_workers
        self._lock = threading.Lock()  # pulls ask while another thread ends a step

    @property
    def num_workers(self) -> int:
        return len(self.completed)

    def check_rank(self, rank: int) -> None:
        """Raise RankError unless `rank` is a worker of this job."""
        if not 0 <= rank < self.num_workers:
            raise RankError(f"no worker {rank}; this job has 0 to {self.num_workers - 1}")

    def check_active(self, rank: int) -> None:
        """Raise RankError unless `rank` is a worker that has not finished."""
        self.check_rank(rank)
        if self.finished[rank] and not self.lost[rank]:
            raise RankError(f"worker {rank} has finished and can push and step no more")

    def step(self, rank: int, step: int) -> bool:
        """Worker `rank` has completed its steps up to number `step` (0 is its first).

        Steps that were never said are taken as complete: a worker need not say those in which no
        table cared. False if nothing is new.

        Raises:
            RankError: no such worker, or it has finished.
        """
        self.check_rank(rank)
        if step < self.completed[rank]:
            return False
        self.check_active(rank)
        with self._lock:
            if not self.finished[rank] and self._at_slowest:
                self._at_slowest -= self.completed[rank] == self._slowest
            self.completed[rank] = step + 1
        return True

    def finish(self, rank: int) -> bool:
        """Worker `rank` steps no more; nobody waits for it. False if that is known."""
        self.check_rank(rank)
        with self._lock:
            before = self.finished[rank]
            self.finished[rank] = True
            self._at_slowest = 0
        return not before

    def lose(self, rank: int) -> bool:
        """Worker `rank` has died, or rests: nobody waits for it.

        False if that is known, or it had finished.

        Raises:
            RankError: no such worker.
        """
        is_new = self.finish(rank)
        self.lost[rank] |= is_new
        return is_new

    def resume(self, completed: list[int]) -> None:
        """Go on from where a job was: steps by rank, of workers that have just begun.

        Raises:
            RankError: not one count for each worker.
        """
        if len(completed) != self.num_workers or min(completed) < 0:
            raise RankError(f"steps {completed} are not those of {self.num_workers} workers")
        with self._lock:
            self.completed[:] = completed
            self._at_slowest = 0

    def slowest(self) -> int | None:
        """Steps completed by the slowest worker that has not finished; None if all have."""
        if self._at_slowest:
            return self._slowest
        with self._lock:
            active = [c for c, done in zip(self.completed, self.finished, strict=True) if not done]
            slowest = self._slowest = min(active, default=None)
            self._at_slowest = 0 if slowest is None else active.count(slowest)
            return slowest

    def behind(self, clock: int) -> list[int]:
        """Ranks that have not finished and completed fewer than `clock` steps."""
        return [
            rank
            for rank, done in enumerate(self.finished)
            if not done and self.completed[rank] < clock
        ]
