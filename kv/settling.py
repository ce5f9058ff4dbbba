"""Steps of workers: what they bring to an end is applied to the rows, and clocks move.

A worker that ends a step, finishes, dies or begins again may complete rounds. Those are summed up
and applied here, table by table; pulls that waited may be answered when this returns. So it is
where time closes a round, and where another server tells how far the workers are.

What may take long exists twice, as `kv.engine` says.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from kv.catalogue import Catalogue
from kv.consistency.base import Due, Kept, Update
from kv.consistency.semi_sync import SemiSynchronous
from kv.engine_table import Table
from kv.errors import KVError, NonFiniteError
from kv.executor import Turns, run_through


class Settling(Catalogue):
    """Counts the steps of workers and closes the rounds of their tables. Any thread."""

    # -- steps ------------------------------------------------------------------------------

    def step(self, rank: int, clock: int, position: int = -1) -> bool:
        """Worker `rank` has completed its steps up to number `clock`; whether any clock advanced.

        A step said twice changes nothing. The rounds it closes are applied when this returns.

        Args:
            position: where that brings the worker, -1 if it does not say (`kv.consistency`).
        Raises:
            RankError: no such worker, or it has finished.
            ArenaFullError: a round found no room for its rows and was dropped; the step counts.
            NonFiniteError: likewise, of a round whose sum is no finite number.
        """
        return run_through(self.stepping(rank, clock, position))

    def stepping(self, rank: int, clock: int, position: int = -1) -> Turns[bool]:
        """`step` in turns; two of `stepping` and `finishing` never overlap in one executor."""
        with self.lock:
            is_new = self.progress.step(rank, clock, position)
        if is_new and self.log is not None:
            self.log.progressed()
        return (yield from self._settling()) if is_new else False

    def finish(self, rank: int) -> bool:
        """Worker `rank` will push no more and nobody waits for it; whether any clock advanced.

        What it pushed in a step it did not end still counts in that step's round.
        """
        return run_through(self.finishing(rank))

    def finishing(self, rank: int) -> Turns[bool]:
        """`finish` in turns."""
        with self.lock:
            is_new = self.progress.finish(rank)
        if is_new and self.log is not None:
            self.log.progressed()
        return (yield from self._settling()) if is_new else False

    def rest(self, rank: int) -> bool:
        """Nobody waits for worker `rank` any more, though it may push; as `finish` else."""
        return run_through(self.losing(rank))

    def losing(self, rank: int) -> Turns[bool]:
        """Worker `rank` has died, or rests: nobody waits for it; whether any clock advanced."""
        with self.lock:
            is_new = self.progress.lose(rank)
        if is_new and self.log is not None:
            self.log.progressed()
        return (yield from self._settling()) if is_new else False

    def beginning(self, rank: int, life: int, step: int, position: int = -1) -> Turns[bool]:
        """Worker `rank` was started again and begins with step number `step`, in turns.

        What a former life of it pushed in that step or later, and a round still holds, is
        forgotten: it is pushed again. Whether any clock advanced.

        Args:
            life: the worker's incarnation; said again, or of a former life, it changes nothing.
            position: see `step`.
        Raises:
            RankError: no such worker.
        """
        with self.lock:
            is_new = self._begin(rank, life, step, position)
        if is_new and self.log is not None:
            self.log.progressed()
        return (yield from self._settling()) if is_new else False

    def _begin(self, rank: int, life: int, step: int, position: int = -1) -> bool:
        is_new = self.progress.begin_again(rank, life, step, position)
        for found in self.tables if is_new else ():
            found.mode.forget_former(rank)
        return is_new

    def catching_up(self, state: Mapping[str, Sequence[Any]]) -> Turns[bool]:
        """Another server knows that (`Progress.state`); whether any clock advanced."""
        is_new = False
        with self.lock:
            for rank, life, step in state["begun"]:
                if rank < self.progress.num_workers:
                    is_new |= self._begin(rank, life, step, state["positions"][rank])
            is_new |= self.progress.catch_up(state)
        return (yield from self._settling()) if is_new else False

    # -- what is due --------------------------------------------------------------------------

    @property
    def latest_round(self) -> int:
        """The latest that is open in a table whose rounds do not wait for everybody."""
        modes = [found.mode for found in list(self.tables)]
        return max((m.clock for m in modes if isinstance(m, SemiSynchronous)), default=0)

    @property
    def due_at(self) -> float | None:
        """When `settling` has something to do though no worker ends a step; None: never."""
        times = [found.mode.due_at for found in list(self.tables)]
        return min((time for time in times if time is not None), default=None)

    @property
    def has_windows(self) -> bool:
        """Whether a table has a mode that asks for the time: `due_at` may come to be something."""
        return any(found.has_window for found in list(self.tables))

    def settle(self) -> bool:
        """Apply what is due, now that it is `due_at`; whether any clock advanced."""
        return run_through(self.settling())

    def settling(self) -> Turns[bool]:
        """`settle` in turns; as `stepping`."""
        return self._settling()

    def _settling(self) -> Turns[bool]:
        """Apply what is due; clocks move, so that pulls are answered, when a table is complete.

        A round that cannot be applied, because memory is full or its sum is no number, is dropped.
        That is raised when all others are applied and the clocks have moved, or everybody would
        wait for ever.
        """
        has_advanced, failure = False, None
        for found in list(self.tables):
            with found.settling:
                with self.lock:
                    due = found.mode.due()
                for held in due:
                    try:
                        yield from found.applying_round(self._sum_of(found, held))
                    except KVError as error:
                        failure = failure or error
                with self.lock:
                    has_advanced |= found.mode.settled()
                if due and self.log is not None:
                    self.log.closed(found)
        if failure is not None:
            raise failure
        return has_advanced

    def _sum_of(self, found: Table, held: Due) -> Update:
        """The update of what was held back.

        Raises:
            NonFiniteError: finite gradients add up to none.
        """
        update = found.mode.total(held)
        try:
            found.check_sum(update)
        except NonFiniteError:
            self.note_non_finite(self.numbers[found.spec.name])
            raise
        return update

    def keeping(self, found: Table, kept: Sequence[Kept]) -> Turns[None]:
        """Keep these pushes of rounds, and no others; what is late is applied at once."""
        with self.lock:
            late = found.mode.keep(kept)
        for due in late:
            yield from found.applying_round(self._sum_of(found, due))
