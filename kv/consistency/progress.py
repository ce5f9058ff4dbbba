"""How many steps each worker has completed, and who has finished.

All tables of an engine share one, so that a table defined late starts at the right round.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Mapping, Sequence
from typing import Any

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
        begun: by rank of a worker that was started again, its life and the step that it began at.
        positions: by rank, the next round that the worker will end a step in, as it has said
            (`kv.consistency.position`); of one that says nothing it grows with its steps.
        keeps_together: whether pulls of some table wait for the steps of the slowest.
    """

    def __init__(self, num_workers: int) -> None:
        if num_workers < 1:
            raise RankError(f"a job has 1 or more workers, not {num_workers}")
        self.completed = [0] * num_workers
        self.positions = [0] * num_workers
        self.keeps_together = False
        self.finished = [False] * num_workers
        self.lost = [False] * num_workers
        self.begun: dict[int, tuple[int, int]] = {}
        self.active = num_workers  # that have not finished
        self.version = 0  # of the last change
        self._changed: OrderedDict[int, int] = OrderedDict()  # rank -> version, in its order
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

    def step(self, rank: int, step: int, position: int = -1) -> bool:
        """Worker `rank` has completed its steps up to number `step` (0 is its first).

        Steps that were never said are taken as complete: a worker need not say those in which no
        table cared. False if nothing is new.

        Args:
            position: where that brings it, -1 if it does not say so.
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
            if position < 0:
                position = self.positions[rank] + step + 1 - self.completed[rank]
            self.positions[rank] = max(self.positions[rank], position)
            self.completed[rank] = step + 1
            self._note(rank)
        return True

    def finish(self, rank: int) -> bool:
        """Worker `rank` steps no more; nobody waits for it. False if that is known."""
        self.check_rank(rank)
        with self._lock:
            if self.finished[rank]:
                return False
            self.finished[rank] = True
            self.active -= 1
            self._at_slowest = 0
            self._note(rank)
        return True

    def lose(self, rank: int) -> bool:
        """Worker `rank` has died, or rests: nobody waits for it.

        False if that is known, or it had finished.

        Raises:
            RankError: no such worker.
        """
        is_new = self.finish(rank)
        self.lost[rank] |= is_new
        return is_new

    def await_again(self, rank: int, steps: int, position: int = 0) -> None:
        """Worker `rank`, whom nobody waited for here, is waited for again.

        Args:
            steps, position: how far it is.
        Raises:
            RankError: no such worker.
        """
        self.check_rank(rank)
        with self._lock:
            self.active += self.finished[rank]
            self.finished[rank] = self.lost[rank] = False
            self.completed[rank] = max(steps, self.completed[rank])
            self.positions[rank] = max(position, self.positions[rank])
            self._at_slowest = 0
            self._note(rank)

    def resume(self, completed: list[int]) -> None:
        """Go on from where a job was: steps by rank, of workers that have just begun.

        All are together in the rounds that the tables go on with, whatever was said before.

        Raises:
            RankError: not one count for each worker.
        """
        if len(completed) != self.num_workers or min(completed) < 0:
            raise RankError(f"steps {completed} are not those of {self.num_workers} workers")
        with self._lock:
            self.completed[:] = completed
            self.positions[:] = [0] * self.num_workers
            self._at_slowest = 0
            for rank in range(self.num_workers):
                self._note(rank)

    def begin_again(self, rank: int, life: int, step: int, position: int = -1) -> bool:
        """Worker `rank` was started again and goes on with its step number `step`.

        All steps below it are complete. Had it finished, it may push again, but nobody waits for
        it. False if that, or a later life of it, is known.

        Args:
            position: where it is then, see `step`.
        Raises:
            RankError: no such worker.
        """
        self.check_rank(rank)
        if self.begun.get(rank, (-1, 0))[0] >= life:
            return False
        self.begun[rank] = life, step
        self.lost[rank] = self.finished[rank]
        if step:
            self.step(rank, step - 1, position)
        return True

    def is_of_former_life(self, rank: int, life: int, step: int) -> bool:
        """Whether a push in that step is one that a later life of its worker makes again."""
        begun = self.begun.get(rank)
        return begun is not None and life < begun[0] and step >= begun[1]

    # -- copies ------------------------------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """All that another server must know, as msgpack types."""
        return {
            "completed": list(self.completed),
            "positions": list(self.positions),
            "finished": list(self.finished),
            "lost": list(self.lost),
            "begun": [[rank, life, step] for rank, (life, step) in self.begun.items()],
        }

    def catch_up(self, state: Mapping[str, Sequence[Any]]) -> bool:
        """Another server knows that; whether anything of it is news here."""
        before = self.version
        for rank in range(min(len(state["completed"]), self.num_workers)):
            if state["lost"][rank]:
                self.lose(rank)
                self.lost[rank] = True  # also where it came to be known as finished before
            completed = int(state["completed"][rank])
            if completed and (not self.finished[rank] or self.lost[rank]):
                self._catch_up_step(rank, completed - 1, int(state["positions"][rank]))
            if state["finished"][rank]:
                self.finish(rank)
        return self.version > before

    def _catch_up_step(self, rank: int, step: int, position: int) -> None:
        if not self.step(rank, step, position) and position > self.positions[rank]:
            with self._lock:
                self.positions[rank] = position
                self._note(rank)

    def changed_since(self, version: int) -> list[int]:
        """The workers that have ended a step or finished since `version`, as long as there are any.

        Takes as long as there are such, not as long as there are workers.
        """
        found = []
        with self._lock:
            for rank in reversed(self._changed):
                if self._changed[rank] <= version:
                    break
                found.append(rank)
        return found

    def _note(self, rank: int) -> None:
        """Something of a worker is new; the lock is held."""
        self.version += 1
        self._changed[rank] = self.version
        self._changed.move_to_end(rank)

    # -- who is waited for -------------------------------------------------------------------

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
