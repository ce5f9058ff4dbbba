"""Workers that train on a virtual clock, and the server that answers them.

Events happen in the order of their time, messages arrive as `van.wires` says, and computing takes
as long as it is told to. A gradient is computed with the values that its worker was answered with,
and is applied when its message arrives, after whatever others pushed meanwhile.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple, cast

import numpy as np

from apps.ctr.batch import Rows
from apps.ctr.learner import Learner
from apps.ctr.modelconf import ModelConfig
from apps.ctr.schema import Schema
from kv.clipping import Clipping
from kv.local import LocalCluster
from kv.local_worker import LocalWorker
from kv.pipelining import Pipeline
from kv.protocols import Request, Worker, Write
from pslite.simulate.cores import Events

SERVER = "server"  # the one there is, as the wires know it
KEY, FLOAT, HEADER = 8, 4, 64  # bytes


class Batch(NamedTuple):
    """Rows of one step, and how many different keys they have."""

    rows: Rows
    keys: int

    @staticmethod
    def of(rows: Rows) -> Batch:
        keys = np.concatenate([block.keys for block in rows.blocks.values()])
        return Batch(rows, len(np.unique(keys)))


class Deferred:
    """A worker whose pushes are kept until they are sent: for a `Learner`, whose step is one call.

    Everything else is the worker's own.
    """

    def __init__(self, worker: LocalWorker) -> None:
        self._worker = worker
        self._writes: Sequence[Write] = ()
        self._clipping: Clipping | None = None

    def __getattr__(self, name: str) -> Any:
        return getattr(self._worker, name)

    def pipeline(self, depth: int = 1) -> Pipeline:
        """A pipeline whose pushes are kept, too."""
        return Pipeline(cast(Worker, self), depth)

    def push_many(
        self,
        writes: Sequence[Write],
        *,
        weight: float = 1.0,
        priority: int = 0,
        clipping: Clipping | None = None,
    ) -> Request:
        self._writes, self._clipping = writes, clipping
        return 0

    def wait(self, request: Request, timeout: float | None = None) -> None:
        """Nothing: the driver sees to it that a push has arrived before the next pull."""

    def step(self) -> None:
        """Nothing yet."""

    @property
    def floats(self) -> int:
        """In the gradients that are kept."""
        return sum(np.size(write[-1]) for write in self._writes)

    @property
    def keys(self) -> int:
        """That the gradients which are kept name."""
        return sum(len(np.asarray(write[1])) for write in self._writes if len(write) == 3)

    def send(self) -> None:
        """Make the pushes."""
        self._worker.push_many(self._writes, clipping=self._clipping)

    def end_step(self) -> None:
        """The step is over."""
        self._worker.step()


class Server:
    """Answers pulls when the mode of all tables allows it, in the order in which they came.

    Attributes:
        lead: steps by which a worker that was answered led the slowest, at most.
    """

    def __init__(self, cluster: LocalCluster) -> None:
        self.lead = 0
        self._engine = cluster.engine
        self._held: deque[tuple[int, Callable[[], None]]] = deque()

    def pull(self, rank: int, answer: Callable[[], None]) -> None:
        progress = self._engine.progress
        step, tables = progress.completed[rank], range(len(self._engine.tables))
        if all(self._engine.may_pull(number, rank, step) for number in tables):
            slowest = progress.slowest()
            self.lead = max(self.lead, 0 if slowest is None else step - slowest)
            answer()
        else:
            self._held.append((rank, answer))

    def look_again(self) -> None:
        """A step is over, or a worker has finished."""
        for _ in range(len(self._held)):
            self.pull(*self._held.popleft())


class Trainee:
    """One worker: takes a batch, pulls, computes, pushes, says that the step is over.

    Args:
        update_rows: rows of the pushes that an update is made of.

    Attributes:
        losses: (virtual seconds, sum of the rows' losses, rows) of each of its steps.
        computed: seconds.
        lasting: seconds until the end of the last computation so far.
    """

    def __init__(
        self,
        worker: LocalWorker,
        conf: ModelConfig,
        schema: Schema,
        server: Server,
        events: Events,
        batches: Iterator[Batch],
        times: Sequence[float],
        update_rows: int,
    ) -> None:
        self.rank, self.name = worker.rank, f"worker {worker.rank}"
        self.worker, self._deferred = worker, Deferred(worker)
        self.learner = Learner(cast(Worker, self._deferred), conf, schema)
        self.losses: list[tuple[float, float, int]] = []
        self.computed = self.lasting = 0.0
        self._server, self._events, self._batches = server, events, batches
        self._times, self._update_rows = iter(times), update_rows

    def begin(self) -> None:
        """Take a batch and ask for what it needs; or finish, where there is none."""
        batch = next(self._batches, None)
        if batch is None:
            self._send(HEADER, self._finish)
            return
        rows, keys = batch
        self._send(HEADER + KEY * keys, self._server.pull, self.rank, lambda: self._train(rows))

    def _train(self, rows: Rows) -> None:
        """What the pull is answered with at this moment decides what will be pushed.

        The parts of a round are divided by what it is made of, so that their sum is a mean.
        """
        events, deferred = self._events, self._deferred
        loss = self.learner.train(rows, self._update_rows).loss
        self.losses.append((events.now, loss, len(rows)))
        events.send(SERVER, self.name, HEADER + FLOAT * deferred.floats, self._compute)

    def _compute(self) -> None:
        seconds = next(self._times)
        self.computed += seconds
        self._events.at(self._events.now + seconds, self._end)

    def _end(self) -> None:
        self.lasting = self._events.now
        nbytes = KEY * self._deferred.keys + FLOAT * self._deferred.floats
        self._send(HEADER + nbytes, self._deferred.send)
        self._send(HEADER, self._step)
        self.begin()

    def _step(self) -> None:
        self._deferred.end_step()
        self._server.look_again()

    def _finish(self) -> None:
        self.worker.finish()
        self._server.look_again()

    def _send(self, nbytes: int, act: Callable[..., None], *what: Any) -> None:
        self._events.send(self.name, SERVER, nbytes, act, *what)
