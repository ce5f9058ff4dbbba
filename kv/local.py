"""A cluster in this process: the same engine behind the same tables, without a network.

For notebooks, tests and training on one machine. Workers are driven either by a thread each
(`threads=True`: a call that must wait for other workers waits) or all by one thread in turn
(`threads=False`: such a call could never return, and raises instead). The lock here is for waiting
(clocks, barriers, gathers); pushes and pulls of several threads meet only in the engine's own.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from typing import Any

from kv.checkpoint.desk import Desk
from kv.consistency.settings import Consistency
from kv.engine import Engine
from kv.errors import KVError, WouldWaitError
from kv.executor import threads_of
from kv.leases.book import LeaseBook
from kv.leases.events import Event
from kv.local_worker import LocalWorker
from kv.retrying import Retry
from postoffice.errors import ClusterStoppedError


class LocalCluster:
    """Tables in this process and the workers that share them.

    Args:
        num_workers: ranks 0 to num_workers - 1.
        mode: of tables that name none: a name, or a mode with its settings.
        seed: of initial values.
        threads: whether each worker has a thread of its own.
        record: called with each event of data leased to workers, before it counts.
        max_staleness: updates that a table may have had since the worker pulled whose push is
            taken; None: any number.
        retry: how a push that is too stale is tried again.
    """

    def __init__(
        self,
        num_workers: int = 1,
        mode: str | Consistency = "async",
        seed: int = 1,
        threads: bool = False,
        record: Callable[[Event], None] = lambda event: None,
        max_staleness: int | None = None,
        retry: Retry = Retry(),
    ) -> None:
        parts = threads_of(0) if threads else 1
        self.engine = Engine(num_workers, mode, seed, parts=parts, max_staleness=max_staleness)
        self.retry = retry
        self.num_workers, self.threads = num_workers, threads
        self.lock = threading.RLock()
        self.changed = threading.Condition(self.lock)
        self.failure: str | None = None
        self.leases = LeaseBook(num_workers, record)
        self.workers = [LocalWorker(self, rank) for rank in range(num_workers)]
        self._desk: Desk | None = None
        self._closed: set[int] = set()
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

    def desk(self) -> Desk:
        """Where checkpoints of the tables here are asked for."""
        with self.lock:
            if self._desk is None:
                self._desk = Desk(self.engine)
            return self._desk

    def is_closed(self, rank: int) -> bool:
        """Whether that worker is done."""
        return rank in self._closed

    def note_closed(self, rank: int) -> None:
        """That worker is done; those who wait for it look again."""
        with self.lock:
            self._closed.add(rank)
            self.changed.notify_all()

    def tell_change(self) -> None:
        """Let those who wait look again."""
        with self.lock:
            self.changed.notify_all()

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
        while not ready():
            if self.failure is not None:
                raise ClusterStoppedError(f"the local cluster stopped: {self.failure}")
            due_at = self.engine.due_at
            if due_at is not None and due_at <= self.engine.now():
                self.engine.settle()  # a round's time is over
                self.changed.notify_all()
            elif due_at is None and not self.threads:
                raise blocked()
            else:
                self.changed.wait(None if due_at is None else due_at - self.engine.now())

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

    def passed_barrier(self, rank: int, name: str) -> int:
        """How often a worker has come to a barrier; the lock is held."""
        counts = self._barriers.get(name)
        return 0 if counts is None else counts[rank]

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
