"""What a worker and its tables look like to the programs that use them.

Two families fit these protocols: `kv.tables` (rows on servers, over the van) and `kv.local`
(rows in this process, no network). A training program takes a `Worker` and does not know which.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kv.consistency.settings import Consistency
from kv.initializers import Initializer
from kv.leases.reader import Shards
from kv.optimizers import Optimizer
from kv.policies import Admission, Expiry
from kv.versions import Changed, TableMeta, Version

if TYPE_CHECKING:
    from kv.clipping import Clipping
    from kv.pipelining import Ahead, Pipeline

Request = int
"""A request that was made and may be waited for: `worker.wait(request)`."""


class SparseTable(Protocol):
    """Rows of `dim` float32 under uint64 keys.

    Keys may be any list of integers >= 0 below 2^64, in any order, repeated or none at all.
    """

    @property
    def name(self) -> str: ...
    @property
    def dim(self) -> int: ...

    def pull(
        self,
        keys: ArrayLike,
        *,
        create: bool = True,
        out: NDArray[np.float32] | None = None,
        priority: int = 0,
    ) -> NDArray[np.float32]:
        """Values of `keys`, float32 (len(keys), dim), in the order of `keys`; a copy.

        In `out`, a writable C-contiguous float32 array of that shape, if it is given. Requests of
        higher priority go first where several wait to be sent.

        A key without a row is initialised, reads zeros, or is an error, as the table's `missing`
        says. With `create=False` (evaluation) no row is ever made: a key without one reads what it
        would be initialised to (or zeros, or is an error).
        """

    def prefetch(self, keys: ArrayLike, *, create: bool = True, priority: int = 0) -> None:
        """Start a pull whose answer the next `pull` of these keys takes; see `prefetch_many`."""

    def push(
        self, keys: ArrayLike, grads: ArrayLike, *, weight: float = 1.0, priority: int = 0
    ) -> Request:
        """Give the gradients of `keys`, float32 (len(keys), dim); those of equal keys are added.

        `weight`, finite and 0 or more, is what the push counts where pushes are averaged by weight.
        """

    def push_pull(
        self,
        keys: ArrayLike,
        grads: ArrayLike,
        *,
        out: NDArray[np.float32] | None = None,
        weight: float = 1.0,
        priority: int = 0,
    ) -> NDArray[np.float32]:
        """`push`, and what a `pull` right after it returns, in one request."""

    def assign(self, keys: ArrayLike, values: ArrayLike) -> None:
        """Set rows outright, optimiser state reset; of a repeated key the last value counts."""

    def delete(self, keys: ArrayLike) -> int:
        """Forget rows; returns how many there were."""

    def items(self) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.float32]]]:
        """All rows in batches of (keys, values); keys rise within a batch."""

    def get_meta(self, keys: ArrayLike | None = None) -> TableMeta:
        """Clocks and versions of the table, and of the rows of `keys` if they are given."""

    def pull_changed(self, since: Version | None = None) -> Changed:
        """Rows that changed after `since`, the version that an earlier call returned; None: all."""

    def __len__(self) -> int: ...


class DenseTable(Protocol):
    """One float32 array."""

    @property
    def name(self) -> str: ...
    @property
    def shape(self) -> tuple[int, ...]: ...

    def pull(
        self, *, out: NDArray[np.float32] | None = None, priority: int = 0
    ) -> NDArray[np.float32]:
        """The array, a copy.

        In `out`, a writable C-contiguous float32 array of its shape, if it is given.
        """

    def prefetch(self, *, priority: int = 0) -> None:
        """Start a pull whose answer the next `pull` takes; see `prefetch_many`."""

    def push(self, grad: ArrayLike, *, weight: float = 1.0, priority: int = 0) -> Request:
        """Give the gradient of the whole array."""

    def push_pull(
        self,
        grad: ArrayLike,
        *,
        out: NDArray[np.float32] | None = None,
        weight: float = 1.0,
        priority: int = 0,
    ) -> NDArray[np.float32]:
        """`push`, and what a `pull` right after it returns, in one request."""

    def get_meta(self) -> TableMeta:
        """Clocks and versions of the table."""

    def assign(self, value: ArrayLike) -> None:
        """Set the array outright, optimiser state reset."""


Read = tuple[SparseTable, ArrayLike] | DenseTable
Write = tuple[SparseTable, ArrayLike, ArrayLike] | tuple[DenseTable, ArrayLike]


class Worker(Protocol):
    """One worker of a job: makes tables, moves their values, keeps step with the others."""

    @property
    def rank(self) -> int: ...
    @property
    def num_workers(self) -> int: ...

    @property
    def steps(self) -> int:
        """Steps completed.

        Of a worker that was started again (`on_worker_failure = restart`) those of its former lives
        count, as the servers know them, where a table or the job's mode counts steps.
        """

    @property
    def max_staleness(self) -> int | None:
        """Updates that a table may have had since the pull of a push that is taken; None: any."""

    def sparse_table(
        self,
        name: str,
        dim: int,
        *,
        optimizer: Optimizer | None = None,
        initializer: Initializer | None = None,
        missing: str = "init",
        mode: str | Consistency | None = None,
        aggregator: str = "sum",
        storage: str = "float32",
        admission: Admission | None = None,
        expiry: Expiry | None = None,
        memory_limit: int | str = 0,
        when_full: str = "refuse",
    ) -> SparseTable:
        """Define or find a table.

        Args:
            dim: floats in a row.
            mode: the name of a mode or one with its settings, of kv.consistency.settings; None is
                the job's.
            aggregator: what the pushes of a round become in mode sync: `sum`, `mean` over the
                workers of the round, `weighted_mean` by the weights of the pushes, or `max_norm`,
                for each key the worker's gradient that is longest.
            storage: `float32`, or `float16` for weights of half the size, see docs/optimizers.md.
            admission: which keys get a row, of kv.policies; None is every key.
            expiry: which rows go again, of kv.policies; None is none.
            memory_limit: bytes of rows, records and index on one server, or a text such as
                `1GiB`; 0 is its memory.
            when_full: what a table at its limit does: `refuse` new rows, `evict` rows not used for
                long, or `spill` them to disk, see docs/store.md.
        """

    def dense_table(
        self,
        name: str,
        shape: Sequence[int],
        *,
        optimizer: Optimizer | None = None,
        initializer: Initializer | None = None,
        mode: str | Consistency | None = None,
        aggregator: str = "sum",
        storage: str = "float32",
    ) -> DenseTable:
        """Define or find a dense table; arguments as above."""

    def pull_many(
        self, reads: Sequence[Read], *, create: bool = True, priority: int = 0
    ) -> list[NDArray[np.float32]]:
        """Pull from many tables in one request per server; answers in the order of `reads`."""

    def prefetch_many(
        self, reads: Sequence[Read], *, create: bool = True, priority: int = 0
    ) -> None:
        """Start a pull whose answer the next `pull_many` of the same reads takes.

        The values are those of the time when the servers answer, so pushes made after the prefetch
        may be missing, one's own as well; in `sync` mode they are those of the step in which the
        prefetch was made. An error is raised by the pull. In one process it does nothing.
        """

    def pull_ahead(
        self, reads: Sequence[Read], *, steps: int = 1, create: bool = True, priority: int = 0
    ) -> Ahead:
        """Start a pull for the step that is `steps` after this one; its `values()` come there.

        A server answers when it may answer a pull of that step, so that no mode is got round: in
        `sync` when all rounds before that step are closed, in `ssp` when no worker is behind it by
        more than `staleness`. Pushes that are made after that are not in the values.
        """

    def pipeline(self, depth: int = 1) -> Pipeline:
        """Steps under way at a time: `depth` are asked for ahead, `depth` not waited for.

            pipeline = worker.pipeline(depth=3)
            for batch, (rows,) in pipeline.over(batches, lambda batch: [(table, batch.keys)]):
                pipeline.push([(table, batch.keys, gradients(batch, rows))])

        Raises:
            SettingError: a wrong depth. One with which gradients would be staler than
                `max_staleness` is refused where it asks ahead.
        """

    def push_many(
        self,
        writes: Sequence[Write],
        *,
        weight: float = 1.0,
        priority: int = 0,
        clipping: Clipping | None = None,
    ) -> Request:
        """Push to many tables in one request per server.

        Args:
            clipping: what is done to the gradients first, all tables' together.
        """

    def push_pull_many(
        self, writes: Sequence[Write], *, weight: float = 1.0, priority: int = 0
    ) -> list[NDArray[np.float32]]:
        """`push_many` and then `pull_many` of the same, in one request per server."""

    def set_lr(self, table: SparseTable | DenseTable, lr: float) -> None:
        """From the next update on the learning rate of the table's optimiser is `lr`."""

    def staleness(self, table: SparseTable | DenseTable) -> dict[str, int]:
        """How many pushes to the table were how stale, on all servers together.

        A push's staleness is the number of updates that the table had on that server since its
        worker pulled there last; up to 16 one by one, then by powers of two, such as
        `{"0": 7, "17-32": 1}`. Pushes of a worker that has not pulled there are not counted.
        """

    def wait(self, request: Request, timeout: float | None = None) -> None:
        """Return when every server has answered; an error on a server is raised here."""

    def step(self) -> None:
        """This worker's step is over: in `sync` mode its part of the round is complete."""

    def finish(self) -> None:
        """This worker pushes no more and nobody waits for its steps; it may still pull.

        When all have finished, all rounds are closed. `close` does it, too.
        """

    def rest(self) -> None:
        """Nobody waits for this worker's steps from now on, though it may push and step again.

        `shards` calls it for a worker that has to wait for what others do. It cannot be undone.
        """

    def barrier(self, name: str = "") -> None:
        """Return when all workers have come here."""

    def gather(self, value: Any) -> list[Any] | None:
        """Collect one value of each worker, in rank order, at rank 0.

        A value is of msgpack types and NumPy arrays. Returns the list at rank 0, None elsewhere;
        all workers must call it.
        """

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
        """Share the reading of a data set: iterate over the pieces that fall to this worker.

            for piece in worker.shards("train", records=1_000_000, epochs=3, unit=1024):
                for start in range(piece.start, piece.stop, 1024):
                    ...  # records start to start + 1024 of epoch piece.epoch: pull, push

        A worker that is slow gets fewer, what a dead one had not done goes to the others, and in
        the job's accounts every record counts exactly once. It counts when the next piece is asked
        for and all pushes of this worker are answered. The iteration ends when all workers together
        have done everything, so a name stands for one reading; who opens it again carries on. One
        thread of a worker reads a data set.

        Args:
            name: of the data set; all workers must say the same of it.
            records: how many there are in an epoch, under positions 0 to records - 1.
            epochs: how often all of them are read. Pieces of an epoch come before those of the
                next, which may begin while others finish the one before.
            unit: records of a batch; pieces begin at its multiples.
            grain: records that are read at once, a row group for instance; pieces rather end there.
            in_parts: each unit is cut into one part for each worker, by rank, as for `sync` mode:
                every worker gets every unit.
        Raises:
            LeaseError: another worker describes the data set differently.
        """

    def has_begun(self, name: str) -> bool:
        """Whether pieces of a data set have been given away, here or by a job that goes on.

        A program that was started again amid a job learns by it, before it opens the data, that its
        tables have their values already.
        """

    def close(self) -> None: ...
