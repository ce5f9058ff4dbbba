"""The rows of one table on one server.

A row is one stretch of memory: weights, optimiser state, padding, so that an update touches one
place. Beside it stand the row's key and its version, the store's version when the row last changed.
Rows of deleted keys are given out again, last one first.
"""

from __future__ import annotations

import logging
from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from kv.errors import ArenaFullError, MissingKeyError
from kv.kernels import rows as kernels
from kv.kernels.jit import frozen
from kv.spec import LINE, TableSpec
from kv.store import arena
from kv.store.formats import format_of
from kv.store.index import Index

log = logging.getLogger(__name__)

BATCH = 65536  # rows of one batch of `items`
Keys = NDArray[np.uint64]
Values = NDArray[np.float32]
Rows = NDArray[np.int64]


class SparseStore:
    """Rows of `spec.dim` weights with their optimiser's state, by key.

    All key arguments are uint64 (n,), strictly increasing, and all values float32 (n, dim); the
    engine has checked that.

    Args:
        spec: the table's definition, its mode and seed resolved.
        capacity: keys to expect; only a hint.
        reserve: bytes of address space for rows; by default this machine's memory.
    """

    def __init__(self, spec: TableSpec, capacity: int = 0, reserve: int | None = None) -> None:
        self.spec, self.dim = spec, spec.dim
        self.format = format_of(spec)
        self.stride = stride_of(self.format.floats)
        self.index = Index(capacity)
        self.version = 0  # grows with every change
        self.generation = 0  # changes when a row may have become another key's
        self.top = 0  # rows ever given out
        self.free: list[Rows] = []
        self.num_free = 0
        self._reserve(arena.physical_memory() if reserve is None else reserve, capacity)

    def __len__(self) -> int:
        return len(self.index)

    def __repr__(self) -> str:
        return f"<SparseStore {self.spec.name} rows={len(self)} version={self.version}>"

    @property
    def nbytes(self) -> int:
        """Bytes in use by rows ever given out and by the index."""
        return self.top * (4 * self.stride + 16) + self.index.nbytes

    def pull(
        self,
        keys: Keys,
        create: bool = True,
        out: Values | None = None,
        rows: Rows | None = None,
    ) -> Values:
        """Weights of `keys`, float32 (n, dim), in `out` or new memory.

        A key without a row gets one if the table says missing=init and `create` is true; else it
        reads what it would be initialised to, or zeros under missing=zeros.

        Raises:
            MissingKeyError: a key has no row and the table says missing=error.
        """
        if out is None:
            out = np.empty((keys.size, self.dim), np.float32)
        if rows is not None:
            self.format.gather(self.data, rows, out)
            return out
        keys = frozen(keys)
        rows, absent = self.index.find(keys)
        if absent and create and self.spec.missing == "init":
            self._make_room(absent)
            self.version += 1
            self._create(keys, rows, absent)
            absent = 0
        if not absent:
            self.format.gather(self.data, rows, out)
            return out
        self._refuse_missing(keys, rows)
        self.format.gather_or_zero(self.data, rows, out)
        if self.spec.missing == "init":
            places = np.flatnonzero(rows < 0)
            self.format.preview(out, places, frozen(keys[places]))
        return out

    def locate(self, keys: Keys) -> Rows | None:
        """The row numbers of `keys` if all have rows, else None."""
        rows, absent = self.index.find(frozen(keys))
        return None if absent else rows

    def push(self, keys: Keys, grads: Values, clock: int = 0, rows: Rows | None = None) -> None:
        """One optimiser step on the rows of `keys`; a key without a row gets one first.

        Args:
            clock: the table's, which schedules and stochastic rounding follow.

        Raises:
            MissingKeyError: a key has no row and the table says missing=error; nothing changed.
        """
        if keys.size == 0:
            return
        keys, grads = frozen(keys), frozen(grads)
        absent = 0
        if rows is None:
            rows, absent = self.index.find(keys)
        if absent:
            self._refuse_missing(keys, rows)
            self._make_room(absent)
        self.version += 1
        if absent:
            self._create(keys, rows, absent)
        self.format.update(self.data, keys, rows, grads, clock)
        kernels.stamp(self.versions, rows, np.uint64(self.version))

    def set_lr(self, lr: float) -> None:
        """The learning rate of later pushes, before the schedule's factor.

        Raises:
            SettingError: no finite number of 0 or more.
        """
        self.format.step.set_lr(lr)

    def create(self, keys: Keys) -> None:
        """Make and initialise rows for the keys that have none, whatever the table's `missing`."""
        keys = frozen(keys)
        rows, absent = self.index.find(keys)
        if absent:
            self._make_room(absent)
            self.version += 1
            self._create(keys, rows, absent)

    def absent(self, keys: Keys) -> Keys:
        """Those of `keys` that have no row."""
        rows, absent = self.index.find(frozen(keys))
        return keys[rows < 0] if absent else keys[:0]

    def assign(self, keys: Keys, values: Values) -> None:
        """Set rows outright, made where there are none; their optimiser state starts again."""
        if keys.size == 0:
            return
        keys, values = frozen(keys), frozen(values)
        rows, absent = self.index.find(keys)
        if absent:
            self._make_room(absent)
        self.version += 1
        if absent:
            self._add(keys, rows, absent)
        self.format.assign(self.data, rows, values)
        kernels.stamp(self.versions, rows, np.uint64(self.version))

    def delete(self, keys: Keys) -> int:
        """Forget rows; returns how many there were."""
        rows = self.index.remove(frozen(keys))
        rows = rows[rows >= 0]
        if rows.size:
            self.version += 1
            self.generation += 1
            self.used[rows] = False
            self.free.append(rows)
            self.num_free += rows.size
        return int(rows.size)

    def items(self, batch: int = BATCH) -> Iterator[tuple[Keys, Values]]:
        """All rows in batches of (keys, weights), at most `batch` each; keys rise within a batch.

        Between two batches the table may change; a key added meanwhile may come or not.
        """
        start = 0
        while start < self.top:
            keys, values, start = self.scan(start, batch)
            if keys.size:
                yield keys, values

    def scan(self, start: int, count: int) -> tuple[Keys, Values, int]:
        """The rows numbered from `start`, `count` or fewer: (keys, weights, where to go on).

        The scan is over when the returned number is not below `top`.
        """
        start = max(start, 0)
        stop = min(start + max(count, 1), self.top)
        rows = start + np.flatnonzero(self.used[start:stop])
        rows = rows[np.argsort(self.keys[rows])]
        out = np.empty((rows.size, self.dim), np.float32)
        self.format.gather(self.data, rows, out)
        return self.keys[rows], out, stop

    def validate(self) -> None:
        """Assert what must always hold between index, rows and free list."""
        self.index.validate()
        free = np.concatenate([*self.free, np.empty(0, np.int64)])
        assert free.size == self.num_free, "the free list is miscounted"
        assert np.unique(free).size == free.size, "a row is free twice"
        assert not self.used[free].any(), "a row is free and in use"
        used = np.flatnonzero(self.used[: self.top])
        assert used.size == len(self) == self.top - free.size, "rows are lost"
        rows, absent = self.index.find(frozen(self.keys[used]))
        assert absent == 0, "a row's key is not in the index"
        assert np.array_equal(rows, used), "a row's key leads to another row"
        assert (self.versions[used] <= self.version).all(), "a row is newer than the store"

    def _refuse_missing(self, keys: Keys, rows: Rows) -> None:
        if self.spec.missing == "error":
            key = int(keys[int(np.argmax(rows < 0))])
            raise MissingKeyError(
                self.spec.name,
                f"key {key} has no row and the table says missing=error; assign it first",
            )

    def _create(self, keys: Keys, rows: Rows, absent: int) -> None:
        """Make and initialise the rows that `rows` marks with -1; complete it in place."""
        places = np.flatnonzero(rows < 0)
        self._add(keys, rows, absent)
        fresh = rows[places]
        self.format.initialize(self.data, fresh, frozen(keys[places]))
        kernels.stamp(self.versions, fresh, np.uint64(self.version))

    def _add(self, keys: Keys, rows: Rows, absent: int) -> None:
        places = np.flatnonzero(rows < 0)
        fresh = self._allocate(absent)
        self.index.add(keys, rows, fresh)
        self.keys[fresh] = keys[places]
        self.used[fresh] = True

    def _make_room(self, count: int) -> None:
        """Before anything changes: see that `count` more rows will fit.

        Raises:
            ArenaFullError: the reserved address space has no room for them.
        """
        total = max(self.top, len(self) + count)
        if total > self.capacity:
            raise ArenaFullError(
                self.spec.name,
                f"{total} rows of {4 * self.stride} bytes do not fit into the {self.capacity} "
                f"reserved on this server; use more servers or a smaller dim",
            )
        self.index.make_room(count)

    def _allocate(self, count: int) -> Rows:
        """`count` rows that nobody uses, freed ones first."""
        from_top = max(0, count - self.num_free)
        parts = [np.arange(self.top, self.top + from_top)]
        self.top += from_top
        need = count - from_top
        while need:
            last = self.free.pop()
            if last.size > need:
                self.free.append(last[: last.size - need])
                last = last[last.size - need :]
            parts.append(last)
            need -= last.size
            self.num_free -= last.size
        return np.concatenate(parts)

    def _reserve(self, nbytes: int, capacity: int) -> None:
        """Reserve address space for rows; with less of it if the system grants no more."""
        row_bytes = 4 * self.stride
        if capacity * row_bytes > arena.physical_memory():
            raise ArenaFullError(
                self.spec.name,
                f"{capacity} rows of {row_bytes} bytes are more than this machine's memory of "
                f"{arena.physical_memory()} bytes; use more servers",
            )
        least = max(capacity, arena.LEAST // row_bytes, 1)
        count = max(least, min(nbytes, arena.MOST) // row_bytes)
        while True:
            try:
                self.data = arena.reserve((count, self.stride), np.float32)
                self.keys = arena.reserve((count,), np.uint64)
                self.versions = arena.reserve((count,), np.uint64)
                self.used = arena.reserve((count,), np.bool_)
                break
            except (OSError, ValueError, MemoryError) as error:
                if count == least:
                    raise ArenaFullError(
                        self.spec.name,
                        f"no address space for {count} rows ({error}); see ulimit -v",
                    ) from error
                log.warning(
                    "table %s: %d rows cannot be reserved (%s)", self.spec.name, count, error
                )
                count = max(least, count // 4)
        self.capacity = count


def stride_of(floats: int) -> int:
    """Floats from one row to the next: whole cache lines where that costs little memory.

    Up to a cache line the next power of two, so that no row lies across two lines; above, whole
    lines if they add a third at most, else multiples of 4.
    """
    if floats <= LINE:
        return 1 << (floats - 1).bit_length()
    lines = -(-floats // LINE) * LINE
    return lines if 3 * lines <= 4 * floats else -(-floats // 4) * 4
