"""A cluster in this process: the same engine behind the same tables, without a network.

For notebooks, tests and training on one machine. Workers are driven either by a thread each
(`threads=True`: a call that must wait for other workers waits) or all by one thread in turn
(`threads=False`: such a call could never return, and raises instead).
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from types import TracebackType
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kv.engine import Engine
from kv.errors import KVError, WouldWaitError
from kv.initializers import Initializer
from kv.local_tables import LocalDenseTable, LocalSparseTable
from kv.optimizers import Optimizer
from kv.protocols import Read, Request, Write
from kv.spec import TableSpec
from postoffice.errors import ClusterStoppedError


class LocalCluster:
    """Tables in this process and the workers that share them.

    Args:
        num_workers: ranks 0 to num_workers - 1.
        mode: of tables that name none, `async` or `sync`.
        seed: of initial values.
        threads: whether each worker has a thread of its own.
    """

    def __init__(
        self, num_workers: int = 1, mode: str = "async", seed: int = 0, threads: bool = False
    ) -> None:
        self.engine = Engine(num_workers, mode, seed)
        self.num_workers, self.threads = num_workers, threads
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.failure: str | None = None
        self.workers = [LocalWorker(self, rank) for rank in range(num_workers)]
        self._barriers: dict[str, list[int]] = {}  # name -> how often each rank came
        self._gathers: list[list[Any]] = [[] for _ in range(num_workers)]  # values not yet taken

    def __repr__(self) -> str:
        return f"<LocalCluster workers={self.num_workers} tables={list(self.engine.numbers)}>"

    def worker(self, rank: int) -> LocalWorker:
        """The worker of that rank, always the same object.

        Raises:
            RankError: no such rank.
        """
        self.engine.progress.check_rank(rank)
        return self.workers[rank]

    def is_closed(self, rank: int) -> bool:
        """Whether that worker is done."""
        return self.engine.progress.finished[rank]

    def abort(self, reason: str) -> None:
        """Wake every worker that waits: it raises ClusterStoppedError with `reason`."""
        with self.lock:
            self.failure = self.failure or reason
            self.changed.notify_all()

    def wait_until(self, ready: Callable[[], bool], blocked: Callable[[], Exception]) -> None:
        """Return when `ready()`; the lock is held on entry and on return.

        Raises:
            the result of `blocked()`: it is not ready and nobody else runs.
            ClusterStoppedError: `abort` was called meanwhile.
        """
        if ready():
            return
        if not self.threads:
            raise blocked()
        self.changed.wait_for(lambda: self.failure is not None or ready())
        if not ready():
            raise ClusterStoppedError(f"the local cluster stopped: {self.failure}")

    def pass_barrier(self, rank: int, name: str) -> None:
        """See `LocalWorker.barrier`; the lock is held."""
        counts = self._barriers.setdefault(name, [0] * self.num_workers)
        mine = counts[rank] + 1

        def behind() -> list[int]:
            return [r for r in self._others(rank) if counts[r] < mine]

        if not self.threads and behind():
            raise WouldWaitError(f"barrier {name!r}", rank, behind())
        counts[rank] = mine
        self.changed.notify_all()
        self.wait_until(
            lambda: not behind(), lambda: WouldWaitError(f"barrier {name!r}", rank, behind())
        )

    def gather(self, rank: int, value: Any) -> list[Any] | None:
        """See `LocalWorker.gather`; the lock is held."""
        if rank:
            self._gathers[rank].append(value)
            self.changed.notify_all()
            return None

        def missing() -> list[int]:
            return [r for r in self._others(0) if not self._gathers[r]]

        self.wait_until(lambda: not missing(), lambda: WouldWaitError("gather", rank, missing()))
        silent = [r for r in range(1, self.num_workers) if not self._gathers[r]]
        if silent:
            raise KVError(f"workers {silent} were closed without their part of a gather")
        return [value, *(self._gathers[r].pop(0) for r in range(1, self.num_workers))]

    def _others(self, rank: int) -> list[int]:
        """The ranks besides `rank` that are not closed."""
        return [r for r in range(self.num_workers) if r != rank and not self.is_closed(r)]


class LocalWorker:
    """One worker of a `LocalCluster`; fits `kv.protocols.Worker`."""

    def __init__(self, cluster: LocalCluster, rank: int) -> None:
        self._cluster, self._rank = cluster, rank
        self._steps = 0  # completed
        self._requests = 0  # made

    def __repr__(self) -> str:
        return f"<LocalWorker W[{self._rank}] of {self.num_workers} step={self._steps}>"

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def num_workers(self) -> int:
        return self._cluster.num_workers

    def sparse_table(
        self,
        name: str,
        dim: int,
        *,
        optimizer: Optimizer | None = None,
        initializer: Initializer | None = None,
        missing: str = "init",
        mode: str | None = None,
    ) -> LocalSparseTable:
        """Define or find a table; defaults as in `TableSpec.sparse`.

        Raises:
            SettingError: the definition makes no sense.
            TableConflictError: the name stands for another definition.
        """
        spec = TableSpec.sparse(
            name, dim, optimizer=optimizer, initializer=initializer, missing=missing, mode=mode
        )
        return LocalSparseTable(self, *self._define(spec))

    def dense_table(
        self,
        name: str,
        shape: Sequence[int],
        *,
        optimizer: Optimizer | None = None,
        initializer: Initializer | None = None,
        mode: str | None = None,
    ) -> LocalDenseTable:
        """Define or find a dense table; defaults as in `TableSpec.dense`, errors as above."""
        spec = TableSpec.dense(name, shape, optimizer=optimizer, initializer=initializer, mode=mode)
        return LocalDenseTable(self, *self._define(spec))

    def pull_many(self, reads: Sequence[Read], *, create: bool = True) -> list[NDArray[np.float32]]:
        """Pull from several tables; answers in the order of `reads`."""
        answers = []
        for read in reads:
            if isinstance(read, tuple):
                answers.append(_sparse(read[0]).pull(read[1], create=create))
            else:
                answers.append(_dense(read).pull())
        return answers

    def push_many(self, writes: Sequence[Write]) -> Request:
        """Push to several tables; if one of the writes is refused, none is made."""
        prepared = []
        for write in writes:
            if len(write) == 3:
                prepared.append(_sparse(write[0]).prepared(write[1], write[2]))
            else:
                prepared.append(_dense(write[0]).prepared(write[1]))
        return self.push_prepared(prepared)

    def wait(self, request: Request, timeout: float | None = None) -> None:
        """Return at once: a local push is done when it returns.

        Raises:
            KVError: this worker made no such request.
        """
        if not 0 < request <= self._requests:
            raise KVError(f"worker {self._rank} made no request {request}")

    def step(self) -> None:
        """This worker's step is over: in `sync` mode its part of the round is complete."""
        with self._cluster.lock:
            advanced = self._engine().step(self._rank, self._steps)
            self._steps += 1
            if advanced:
                self._cluster.changed.notify_all()

    def barrier(self, name: str = "") -> None:
        """Return when all workers that are not closed have come here.

        Raises:
            WouldWaitError: others have not, and this thread drives them, too.
            ClusterStoppedError: the cluster was stopped meanwhile.
        """
        with self._cluster.lock:
            self._engine()
            self._cluster.pass_barrier(self._rank, name)

    def gather(self, value: Any) -> list[Any] | None:
        """The `value` of each worker, in rank order, at rank 0; None elsewhere, without waiting.

        Raises:
            KVError: `value` is made of other types than msgpack's and NumPy arrays, or a worker
                was closed without its part.
            WouldWaitError: others have not called yet, and this thread drives them, too.
        """
        sent = plain(value)
        with self._cluster.lock:
            self._engine()
            return self._cluster.gather(self._rank, sent)

    def close(self) -> None:
        """This worker is done; nobody waits for it any more. A second call does nothing."""
        with self._cluster.lock:
            self._cluster.engine.finish(self._rank)
            self._cluster.changed.notify_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if error is not None:
            self._cluster.abort(f"worker {self._rank} failed with {error!r}")
        self.close()

    def pull_prepared(
        self, table: int, keys: NDArray[np.uint64], create: bool
    ) -> NDArray[np.float32]:
        """What tables call: values of strictly increasing `keys`, as soon as the mode allows."""
        with self._cluster.lock:
            engine = self._engine()
            if not engine.may_pull(table, self._rank, self._steps):
                self._await(table, engine)
            return engine.pull(table, keys, create)

    def push_prepared(
        self, writes: Sequence[tuple[int, NDArray[np.uint64], NDArray[np.float32]]]
    ) -> Request:
        """What tables call: pushes of strictly increasing keys, all or none."""
        with self._cluster.lock:
            self._engine().push_many(self._rank, self._steps, writes)
            self._requests += 1
            return self._requests

    @contextlib.contextmanager
    def locked(self) -> Iterator[Engine]:
        """The engine, with the cluster's lock held."""
        with self._cluster.lock:
            yield self._cluster.engine

    def _engine(self) -> Engine:
        """The engine of a worker that is not closed; the lock is held."""
        if self._cluster.is_closed(self._rank):
            raise KVError(f"worker {self._rank} is closed")
        return self._cluster.engine

    def _await(self, table: int, engine: Engine) -> None:
        self._cluster.wait_until(
            lambda: engine.may_pull(table, self._rank, self._steps),
            lambda: WouldWaitError(
                f"a pull of table {engine.table(table).spec.name}",
                self._rank,
                engine.waits_for(table, self._rank, self._steps),
            ),
        )

    def _define(self, spec: TableSpec) -> tuple[TableSpec, int]:
        with self._cluster.lock:
            engine = self._engine()
            number = engine.define(spec)
            return engine.table(number).spec, number


def _sparse(table: Any) -> LocalSparseTable:
    if not isinstance(table, LocalSparseTable):
        raise KVError(f"(table, keys) needs a sparse table of this cluster, not {table!r}")
    return table


def _dense(table: Any) -> LocalDenseTable:
    if not isinstance(table, LocalDenseTable):
        raise KVError(f"a read or write without keys needs a dense table, not {table!r}")
    return table


def plain(value: Any) -> Any:
    """A copy of `value` as it would arrive over a network: tuples become lists, arrays are copied.

    Raises:
        KVError: it is made of other types than msgpack's and NumPy arrays.
    """
    if value is None or isinstance(value, bool | int | float | str | bytes):
        return value
    if isinstance(value, np.ndarray) and value.dtype.kind in "biufc":
        return value.copy()
    if isinstance(value, np.generic):
        return value.item()
    if isinstance(value, list | tuple):
        return [plain(part) for part in value]
    if isinstance(value, dict):
        return {plain(key): plain(part) for key, part in value.items()}
    raise KVError(f"a {type(value).__name__} cannot be sent; use plain Python values or arrays")
