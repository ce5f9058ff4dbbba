"""Several steps of a worker under way: pulls for the next ones, pushes of the last ones.

    pipeline = worker.pipeline(depth=3)
    for batch, (rows,) in pipeline.over(batches, lambda batch: [(table, batch.keys)]):
        pipeline.push([(table, batch.keys, gradients(batch, rows))])

With depth d the pulls for steps k + 1 to k + d are on their way while step k computes, and the
pushes of steps k - d to k - 1 may have no answer yet. So the values of a step lack at least the
worker's own last d pushes in modes that apply a push when it comes; in those that count steps a
pull is made for its step and waits for what that may see. Depth 0 is pull, compute, push in turn.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Protocol, TypeVar

import numpy as np
from numpy.typing import NDArray

from kv.consistency.settings import SSP, Async, Consistency, DCAsync
from kv.errors import KVError, SettingError, in_step
from kv.protocols import Read, Request, Worker, Write
from van.errors import UnreachablePeerError

if TYPE_CHECKING:
    from kv.clipping import Clipping

Batch = TypeVar("Batch")
Values = NDArray[np.float32]
DEEPEST = 256  # steps; each has requests under way, of which a worker may have only so many


class Pipeline:
    """A worker's steps under way. Used by the thread that uses the worker.

    Args:
        worker: pulls and pushes.
        depth: steps that are asked for ahead, and whose pushes are not waited for.
    Raises:
        SettingError: the depth is no whole number from 0 to 256.
    """

    def __init__(self, worker: Worker, depth: int = 1) -> None:
        is_whole = isinstance(depth, int | np.integer) and not isinstance(depth, bool)
        if not is_whole or not 0 <= depth <= DEEPEST:
            raise SettingError("pipeline", f"depth must be 0 to {DEEPEST}, not {depth!r}")
        self.worker, self.depth = worker, int(depth)
        self._asked: dict[int, tuple[Sequence[Read], Ahead]] = {}  # by step
        self._pushes: deque[tuple[int, Request]] = deque()  # unanswered, with their steps
        self._fits: set[str] = set()  # tables that a pull ahead was checked for

    def over(
        self, batches: Iterable[Batch], reads: Callable[[Batch], Sequence[Read]]
    ) -> Iterator[tuple[Batch, list[Values]]]:
        """Each batch with the values that it reads; a step is over when the next is asked for.

        The loop pushes by `push`. When all batches are through, all pushes are answered.

        Args:
            reads: what a batch needs, as `worker.pull_many` takes it.
        Raises:
            PsliteError: of a pull of this step, or of a push of an earlier one, which is named.
        """
        source, coming = iter(batches), deque[tuple[Batch, Sequence[Read]]]()
        try:
            while True:
                for batch in source:
                    coming.append((batch, reads(batch)))
                    if len(coming) > self.depth:
                        break
                if not coming:
                    break
                batch, wanted = coming.popleft()
                values = self.pull(wanted)
                for ahead, (_, later) in enumerate(coming, 1):
                    self.ask(later, ahead)
                yield batch, values
                self.step()
            self.drain()
        finally:
            self.drop()

    def ask(self, reads: Sequence[Read], ahead: int = 1) -> None:
        """Start the pull for the step that is `ahead` after this one; no matter if it is started.

        Raises:
            SettingError: servers would refuse the gradients as too stale, or a table's mode
                remembers too few pulls to compensate their delay.
        """
        step = self.worker.steps + ahead
        if step not in self._asked:
            self._check_modes(reads)
            self._asked[step] = reads, self.worker.pull_ahead(reads, steps=ahead)

    def has_asked(self, ahead: int) -> bool:
        """Whether the pull for that step is started."""
        return self.worker.steps + ahead in self._asked

    def pull(self, reads: Sequence[Read]) -> list[Values]:
        """The values of this step, once no more than `depth` steps' pushes have no answer.

        Args:
            reads: the very ones that were asked for ahead, if any were.
        """
        self.settle()
        asked = self._asked.pop(self.worker.steps, None)
        if asked is None:
            return self.worker.pull_many(reads)
        return asked[1].values()

    def push(
        self, writes: Sequence[Write], *, weight: float = 1.0, clipping: Clipping | None = None
    ) -> None:
        """Push in this step, without waiting for the answer. A step may push more than once.

        Raises:
            PsliteError: as `worker.push_many` does. What servers refuse is raised by a later call.
        """
        request = self.worker.push_many(writes, weight=weight, clipping=clipping)
        self._pushes.append((self.worker.steps, request))

    def step(self) -> None:
        """This step is over.

        Raises:
            PsliteError: a push failed, whose step is named; the step counts all the same.
        """
        self.worker.step()

    def settle(self) -> None:
        """Wait until no more than `depth` steps before this one have pushes without an answer.

        Raises:
            PsliteError: one failed, whose step is named.
        """
        self._settle(self.worker.steps - self.depth)

    def drain(self) -> None:
        """Wait for all pushes.

        Raises:
            PsliteError: one failed, whose step is named; called again, it waits for the rest.
        """
        self._settle(self.worker.steps + 1)

    def drop(self) -> None:
        """Forget what was asked for ahead."""
        while self._asked:
            self._asked.popitem()[1][1].drop()

    def _settle(self, stop: int) -> None:
        """Wait for the pushes of the steps below `stop`."""
        while self._pushes and self._pushes[0][0] < stop:
            step, request = self._pushes.popleft()
            try:
                self.worker.wait(request)
            except (KVError, UnreachablePeerError) as error:  # not that the cluster has ended
                raise in_step(error, step, self.worker.rank) from None

    def _check_modes(self, reads: Sequence[Read]) -> None:
        for read in reads:
            table = read[0] if isinstance(read, tuple) else read
            if table.name not in self._fits:
                self._fits.add(table.name)
                mode = getattr(getattr(table, "spec", None), "mode", None) or Async()
                problem = problem_of(self.depth, mode, self.worker.max_staleness)
                if problem:
                    raise SettingError(f"pipeline of table {table.name}", problem)


def problem_of(depth: int, mode: Consistency, max_staleness: int | None) -> str:
    """Why a mode cannot do with a pipeline of this depth, or nothing."""
    if isinstance(mode, DCAsync) and mode.memory <= depth:
        return (
            f"depth {depth} in mode dc_async needs servers that remember {depth + 1} pulls of each "
            f"worker, and [param_sync] dc_memory is {mode.memory:g}"
        )
    lacking = 0 if mode.holds else depth
    if isinstance(mode, SSP):
        lacking = min(depth, int(mode.staleness))
    if max_staleness is not None and lacking > max_staleness:
        return (
            f"depth {depth} in mode {mode.name} makes each gradient {lacking} updates stale by "
            f"itself, and servers refuse more than [param_sync] max_staleness = {max_staleness}"
        )
    return ""


class Ahead(Protocol):
    """A pull that was started for a later step."""

    def values(self) -> list[Values]:
        """What `pull_many` would have returned; waits for it. Once."""

    def drop(self) -> None:
        """Nobody will ask for the values."""
