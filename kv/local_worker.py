"""A worker of a cluster in this process: its tables, steps, barriers and gathers."""

from __future__ import annotations

import random
import time
from collections.abc import Callable, Iterable, Sequence
from types import TracebackType
from typing import TYPE_CHECKING, Any, Self

import numpy as np
from numpy.typing import NDArray

from kv.clipping import Clipping
from kv.consistency.position import Position
from kv.consistency.settings import SemiSync
from kv.defining import DefinesTables
from kv.engine import Engine
from kv.engine import Write as EngineWrite
from kv.errors import KVError, NonFiniteError, VersionMismatchError, WouldWaitError
from kv.gather import sendable
from kv.given import clipping_of, reads_of, steps_ahead, timeout_of, weight_of, writes_of
from kv.leases.client import LocalLeases
from kv.leases.pieces import DataSet
from kv.leases.reader import Shards
from kv.local_tables import LocalDenseTable, LocalSparseTable
from kv.pipelining import Pipeline
from kv.protocols import DenseTable, Read, Request, SparseTable, Write
from kv.settings import learning_rate
from kv.spec import TableSpec
from kv.table_protocol import table_id

if TYPE_CHECKING:
    from kv.checkpoint.desk import Desk
    from kv.local import LocalCluster


class LocalWorker(DefinesTables[LocalSparseTable, LocalDenseTable]):
    """One worker of a `LocalCluster`; fits `kv.protocols.Worker`."""

    def __init__(self, cluster: LocalCluster, rank: int) -> None:
        self._cluster, self._rank = cluster, rank
        self.leases = LocalLeases(cluster, rank)
        self._steps = 0  # completed
        self._requests = 0  # made
        self._bases: dict[int, int] = {}  # by table, its clock when it was last pulled
        self._position = Position()
        self._chance = random.Random(rank)

    def __repr__(self) -> str:
        return f"<LocalWorker W[{self._rank}] of {self.num_workers} step={self._steps}>"

    @property
    def rank(self) -> int:
        return self._rank

    @property
    def num_workers(self) -> int:
        return self._cluster.num_workers

    def _sparse(self, spec: TableSpec) -> LocalSparseTable:
        return LocalSparseTable(self, *self._define(spec))

    def _dense(self, spec: TableSpec) -> LocalDenseTable:
        return LocalDenseTable(self, *self._define(spec))

    def pull_many(
        self, reads: Sequence[Read], *, create: bool = True, priority: int = 0
    ) -> list[NDArray[np.float32]]:
        """Pull from several tables; answers in the order of `reads`."""
        answers = []
        for read in reads_of(reads):
            if isinstance(read, tuple):
                answers.append(_sparse(read[0]).pull(read[1], create=create))
            else:
                answers.append(_dense(read).pull())
        return answers

    def pull_ahead(
        self, reads: Sequence[Read], *, steps: int = 1, create: bool = True, priority: int = 0
    ) -> LocalAhead:
        """Pull for the step that is `steps` after this one; see `kv.protocols.Worker`.

        At once, as a server would answer, unless the mode has that step wait.
        """
        reads = reads_of(reads)
        if not self._may_pull(reads, self._steps + steps_ahead(steps)):
            return LocalAhead(lambda: self.pull_many(reads, create=create))
        mine, self._bases = self._bases, {}
        try:
            values = self.pull_many(reads, create=create)
        finally:
            bases, self._bases = self._bases, mine

        def take() -> list[NDArray[np.float32]]:
            self._bases.update(bases)  # as if they had been pulled only now, as they were then
            return values

        return LocalAhead(take)

    def _may_pull(self, reads: Sequence[Read], step: int) -> bool:
        """Whether a pull for that step is answered now."""
        engine = self._open_engine()
        tables = [_sparse(read[0]) if isinstance(read, tuple) else _dense(read) for read in reads]
        numbers = [engine.number_of(table.name) for table in tables]
        return all(engine.may_pull(number, self._rank, step) for number in numbers)

    def pipeline(self, depth: int = 1) -> Pipeline:
        """Several steps under way; see `kv.protocols.Worker.pipeline`."""
        return Pipeline(self, depth)

    @property
    def max_staleness(self) -> int | None:
        """Updates that a table may have had since the pull of a push that is taken; None: any."""
        return self.engine.max_staleness

    def prefetch_many(
        self, reads: Sequence[Read], *, create: bool = True, priority: int = 0
    ) -> None:
        """Nothing: the values are here."""

    def push_many(
        self,
        writes: Sequence[Write],
        *,
        weight: float = 1.0,
        priority: int = 0,
        clipping: Clipping | None = None,
    ) -> Request:
        """Push to several tables; if one of the writes is refused, none is made."""
        writes, clipping = writes_of(writes), clipping_of(clipping)
        for write in writes:
            _ = _sparse(write[0]) if len(write) == 3 else _dense(write[0])
        if clipping is not None:
            writes = self._clipped(writes, clipping)
        prepared = []
        for write in writes:
            if len(write) == 3:
                prepared.append(_sparse(write[0]).prepared(write[1], write[2]))
            else:
                prepared.append(_dense(write[0]).prepared(write[1]))
        return self.push_prepared(prepared, weight)

    def _clipped(self, writes: Sequence[Write], clipping: Clipping) -> Sequence[Write]:
        try:
            return clipping.clipped(writes)
        except NonFiniteError as error:
            self.engine.note_non_finite(self.engine.number_of(error.table))
            raise error.knowing(step=self._steps, worker=self._rank) from None

    def push_pull_many(
        self, writes: Sequence[Write], *, weight: float = 1.0, priority: int = 0
    ) -> list[NDArray[np.float32]]:
        """`push_many` and then `pull_many` of the same."""
        writes = writes_of(writes)
        self.push_many(writes, weight=weight)
        return self.pull_many([write[:-1] if len(write) == 3 else write[0] for write in writes])

    def staleness(self, table: SparseTable | DenseTable) -> dict[str, int]:
        """How stale the pushes to the table were, see `kv.protocols.Worker.staleness`."""
        engine = self._open_engine()
        return engine.table(engine.number_of(_own(table).name)).staleness.report()

    def set_lr(self, table: SparseTable | DenseTable, lr: float) -> None:
        """From the next update on the learning rate of the table's optimiser is `lr`.

        Raises:
            SettingError: it is no finite number of 0 or more.
        """
        engine = self._open_engine()
        engine.set_lr(engine.number_of(_own(table).name), learning_rate(table.name, lr))

    def wait(self, request: Request, timeout: float | None = None) -> None:
        """Return at once: a local push is done when it returns.

        Raises:
            KVError: this worker made no such request.
        """
        timeout_of(timeout)
        if type(request) is not int or not 0 < request <= self._requests:
            raise KVError(f"worker {self._rank} made no request {request!r}")

    @property
    def steps(self) -> int:
        """Steps completed."""
        return self._steps

    def resume_at(self, steps: int, clocks: Iterable[tuple[str, int]] = ()) -> None:
        """Go on after so many steps, with those clocks by table; the engine knows them already."""
        self._steps = steps
        self._position.resume((table_id(name), clock) for name, clock in clocks)

    def desk(self) -> Desk:
        """Where checkpoints of this process are asked for."""
        return self._cluster.desk()

    @property
    def is_first(self) -> bool:
        """Whether this worker leads what all do together."""
        return self._rank == 0

    def ranks_here(self) -> set[int]:
        """Ranks of the workers that a barrier waits for."""
        return {rank for rank in range(self.num_workers) if not self._cluster.is_closed(rank)}

    def passed(self, barrier: str) -> int:
        """How often this worker has passed that barrier."""
        with self._cluster.lock:
            return self._cluster.passed_barrier(self._rank, barrier)

    def step(self) -> None:
        """This worker's step is over: in `sync` mode its part of the round is complete."""
        engine = self._open_engine()
        position = -1
        if self._position:
            tables = list(engine.tables)
            clocks = [(tables[number].id, clock) for number, clock in self._bases.items()]
            position = self._position.step(clocks, self._hear_clocks)
        try:
            engine.step(self._rank, self._steps, position)
        finally:  # it counts where a round failed, too
            self._steps += 1
            self._cluster.tell_change()

    def _hear_clocks(self) -> None:
        self._position.hear(self._open_engine().latest_round)

    def finish(self) -> None:
        """This worker pushes no more and nobody waits for its steps; it may still pull."""
        self.engine.finish(self._rank)
        self._cluster.tell_change()

    def rest(self) -> None:
        """Nobody waits for this worker's steps from now on, though it may push and step again."""
        self.engine.rest(self._rank)
        self._cluster.tell_change()

    def barrier(self, name: str = "") -> None:
        """Return when all workers that are not closed have come here.

        Raises:
            WouldWaitError: others have not, and this thread drives them, too.
            ClusterStoppedError: the cluster was stopped meanwhile.
        """
        with self._cluster.lock:
            self._open_engine()
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
            self._open_engine()
            return self._cluster.gather(self._rank, sent)

    def shards(
        self,
        name: str,
        records: int,
        *,
        epochs: int = 1,
        unit: int = 1,
        grain: int = 1,
        in_parts: bool = False,
    ) -> Shards:
        """The pieces of a data set that fall to this worker; see `kv.protocols.Worker.shards`.

        Where one thread drives all workers, the iteration ends when nothing is left to be given.
        """
        parts = self.num_workers if in_parts else 1
        size = {"records": records, "epochs": epochs, "unit": unit, "grain": grain}
        data = DataSet(name=name, parts=parts, **size)
        self._open_engine()
        return Shards(self.leases, data, lambda: None, self.rest)

    def has_begun(self, name: str) -> bool:
        """Whether pieces of that data set were given away."""
        return name in self.leases.look().begun

    def close(self) -> None:
        """This worker is done; nobody waits for it any more. A second call does nothing."""
        with self._cluster.lock:
            self._cluster.leases.lose(self._rank, "left", 0.0)
        self.finish()
        self._cluster.note_closed(self._rank)

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

    @property
    def engine(self) -> Engine:
        """The engine that all workers share."""
        return self._cluster.engine

    def pull_prepared(
        self, table: int, keys: NDArray[np.uint64] | None, create: bool
    ) -> NDArray[np.float32]:
        """What tables call: values of strictly increasing `keys`, as soon as the mode allows."""
        engine = self._open_engine()
        if not engine.may_pull(table, self._rank, self._steps):
            with self._cluster.lock:
                self._await(table, engine)
        clock = engine.clock(table)
        values = engine.pull(table, keys, create)
        self._bases[table] = clock
        engine.table(table).answered(self._rank, keys, values)
        return values

    def push_prepared(self, writes: Sequence[EngineWrite], weight: float = 1.0) -> Request:
        """What tables call: pushes of strictly increasing keys, all or none."""
        weight = weight_of(weight)
        engine, waits = self._open_engine(), self._cluster.retry.waits(self._chance)
        bases = [self._bases.get(number, -1) for number, *_ in writes]
        while True:
            try:
                engine.push_many(self._rank, self._steps, writes, weight, bases=bases)
                break
            except VersionMismatchError:
                wait = next(waits, None)
                if wait is None:
                    raise
                time.sleep(wait)
                bases = [engine.clock(number) for number, *_ in writes]
        self._requests += 1
        return self._requests

    def _open_engine(self) -> Engine:
        """The engine, of a worker that is not closed."""
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
        engine = self._open_engine()
        number = engine.define(spec)
        table = engine.table(number)
        if isinstance(table.spec.mode, SemiSync):
            self._position.add(table.id)
        return table.spec, number


class LocalAhead:
    """A pull for a later step, see `kv.pipelining.Ahead`."""

    def __init__(self, take: Callable[[], list[NDArray[np.float32]]]) -> None:
        self._take = take

    def values(self) -> list[NDArray[np.float32]]:
        """The values as they were, or as they are now where the mode had them wait."""
        return self._take()

    def drop(self) -> None:
        """Nothing is under way."""


def _own(table: Any) -> LocalSparseTable | LocalDenseTable:
    if not isinstance(table, LocalSparseTable | LocalDenseTable):
        raise KVError(f"{table!r} is not a table of this cluster")
    return table


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
    return _copied(sendable(value))


def _copied(value: Any) -> Any:
    if isinstance(value, np.ndarray):
        return value.copy()
    if isinstance(value, list):
        return [_copied(part) for part in value]
    if isinstance(value, dict):
        return {key: _copied(part) for key, part in value.items()}
    return value
