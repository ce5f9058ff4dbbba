"""Tables whose rows are in this process; they fit `kv.protocols` as the networked ones do."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kv.engine import Engine, Write
from kv.engine_table import Described, Table
from kv.executor import run_through
from kv.given import since_of
from kv.keylist import as_keys, as_values, checked_out, prepare
from kv.protocols import Request
from kv.spec import TableSpec
from kv.store.transfer import BATCH
from kv.versions import Changed, TableMeta, Version, described


class Owner(Protocol):
    """What a table needs of its worker."""

    def pull_prepared(
        self, table: int, keys: NDArray[np.uint64] | None, create: bool
    ) -> NDArray[np.float32]: ...

    def push_prepared(self, writes: Sequence[Write], weight: float = 1.0) -> Request: ...

    @property
    def engine(self) -> Engine: ...


class LocalSparseTable:
    """Rows of `dim` float32 under uint64 keys, in this process."""

    def __init__(self, owner: Owner, spec: TableSpec, number: int) -> None:
        self.spec, self._owner, self._number = spec, owner, number

    def __repr__(self) -> str:
        return f"<LocalSparseTable {self.name} dim={self.dim} rows={len(self)}>"

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def dim(self) -> int:
        return self.spec.dim

    def pull(
        self,
        keys: ArrayLike,
        *,
        create: bool = True,
        out: NDArray[np.float32] | None = None,
        priority: int = 0,
    ) -> NDArray[np.float32]:
        """Values of `keys`, float32 (len(keys), dim), in the order of `keys`; a copy.

        Raises:
            KeyListError: not one list of integers from 0 to 2^64 - 1.
            ValueShapeError: `out` cannot take them.
            MissingKeyError: a key has no row and the table says missing=error.
            WouldWaitError, ClusterStoppedError: see `LocalCluster`.
        """
        merged = prepare(keys, self.name)
        given = None if out is None else checked_out(out, (merged.size, self.dim), self.name)
        values = merged.expand(self._owner.pull_prepared(self._number, merged.unique, create))
        return _given(given, values)

    def prefetch(self, keys: ArrayLike, *, create: bool = True, priority: int = 0) -> None:
        """Nothing: the rows are here."""

    def push(
        self, keys: ArrayLike, grads: ArrayLike, *, weight: float = 1.0, priority: int = 0
    ) -> Request:
        """Give the gradients of `keys`, float32 (len(keys), dim); those of equal keys are summed.

        Raises:
            KeyListError, ValueShapeError, NonFiniteError: keys or gradients are not as above.
            MissingKeyError: a key has no row and the table says missing=error.
            SettingError: `weight` is no finite number of 0 or more.
        """
        return self._owner.push_prepared([self.prepared(keys, grads)], weight)

    def push_pull(
        self,
        keys: ArrayLike,
        grads: ArrayLike,
        *,
        out: NDArray[np.float32] | None = None,
        weight: float = 1.0,
        priority: int = 0,
    ) -> NDArray[np.float32]:
        """`push`, and what a `pull` right after it returns; errors as theirs."""
        if out is not None:  # before anything is pushed
            checked_out(out, (prepare(keys, self.name).size, self.dim), self.name)
        self.push(keys, grads, weight=weight)
        return self.pull(keys, out=out)

    def assign(self, keys: ArrayLike, values: ArrayLike) -> None:
        """Set rows outright, optimiser state reset; of a repeated key the last value counts.

        Raises:
            KeyListError, ValueShapeError, NonFiniteError: keys or values are not as above.
        """
        merged = prepare(keys, self.name)
        given = as_values(values, (merged.size, self.dim), self.name, "values")
        self._owner.engine.assign(self._number, merged.unique, merged.last_of_each(given))

    def delete(self, keys: ArrayLike) -> int:
        """Forget rows; returns how many there were."""
        merged = prepare(keys, self.name)
        return self._owner.engine.delete(self._number, merged.unique)

    def items(self) -> Iterator[tuple[NDArray[np.uint64], NDArray[np.float32]]]:
        """All rows in batches of (keys, values); keys rise within a batch.

        Pushes between two batches are seen by the later ones.
        """
        start = 0
        while start >= 0:
            keys, values, start = self._owner.engine.scan(self._number, start)
            if keys.size:
                yield keys, values

    def get_meta(self, keys: ArrayLike | None = None) -> TableMeta:
        """Clock and version of the table, and of the rows of `keys`.

        Raises:
            KeyListError: no list of keys.
        """
        asked = np.empty(0, np.uint64) if keys is None else as_keys(keys, self.name)
        table = self._owner.engine.table(self._number)
        unique = prepare(asked, self.name).unique
        return _meta_of(table, asked, [run_through(table.describing(unique))])

    def pull_changed(self, since: Version | None = None) -> Changed:
        """Rows that changed after `since`; see `kv.tables.RemoteSparseTable.pull_changed`."""
        table = self._owner.engine.table(self._number)
        known, until, start = since_of(since, self.name), table.store.versions, 0
        keys, values = [np.empty(0, np.uint64)], [np.empty((0, self.dim), np.float32)]
        while start >= 0:
            found = table.changed(start, BATCH, known.get(0), until)
            keys.append(found[0])
            values.append(found[1])
            start = found[2]
        return Changed(np.concatenate(keys), np.concatenate(values), {0: tuple(until)})

    def __len__(self) -> int:
        return self._owner.engine.size(self._number)

    def stats(self) -> list[dict[str, Any]]:
        """What a cluster's servers would say, one of them; see `Engine.stats`."""
        return [self._owner.engine.stats(self._number)]

    def prepared(self, keys: ArrayLike, grads: ArrayLike) -> Write:
        """What the engine takes for `push(keys, grads)`; the caller's arrays may change later."""
        merged = prepare(keys, self.name)
        given = as_values(grads, (merged.size, self.dim), self.name)
        if merged.inverse is None and _holds(self.spec):  # kept until the round closes
            return self._number, merged.unique.copy(), given.copy()
        return self._number, merged.unique, merged.merge_grads(given)


class LocalDenseTable:
    """One float32 array, in this process."""

    def __init__(self, owner: Owner, spec: TableSpec, number: int) -> None:
        self.spec, self._owner, self._number = spec, owner, number

    def __repr__(self) -> str:
        return f"<LocalDenseTable {self.name} shape={self.shape}>"

    @property
    def name(self) -> str:
        return self.spec.name

    @property
    def shape(self) -> tuple[int, ...]:
        return self.spec.shape

    def pull(
        self, *, out: NDArray[np.float32] | None = None, priority: int = 0
    ) -> NDArray[np.float32]:
        """The array, a copy.

        Raises:
            ValueShapeError: `out` cannot take it.
            WouldWaitError, ClusterStoppedError: see `LocalCluster`.
        """
        given = None if out is None else checked_out(out, self.shape, self.name)
        blocks = self._owner.pull_prepared(self._number, None, True)
        return _given(given, blocks.reshape(-1)[: math.prod(self.shape)].reshape(self.shape))

    def prefetch(self, *, priority: int = 0) -> None:
        """Nothing: the array is here."""

    def push(self, grad: ArrayLike, *, weight: float = 1.0, priority: int = 0) -> Request:
        """Give the gradient of the whole array.

        Raises:
            ValueShapeError, NonFiniteError: it has another shape, or NaN or infinity in it.
        """
        return self._owner.push_prepared([self.prepared(grad)], weight)

    def push_pull(
        self,
        grad: ArrayLike,
        *,
        out: NDArray[np.float32] | None = None,
        weight: float = 1.0,
        priority: int = 0,
    ) -> NDArray[np.float32]:
        """`push`, and what a `pull` right after it returns; errors as theirs."""
        if out is not None:  # before anything is pushed
            checked_out(out, self.shape, self.name)
        self.push(grad, weight=weight)
        return self.pull(out=out)

    def stats(self) -> list[dict[str, Any]]:
        """What a cluster's servers would say, one of them; see `Engine.stats`."""
        return [self._owner.engine.stats(self._number)]

    def get_meta(self) -> TableMeta:
        """Clock and version of the table."""
        return _meta_of(self._owner.engine.table(self._number), np.empty(0, np.uint64), [])

    def assign(self, value: ArrayLike) -> None:
        """Set the array outright, optimiser state reset; errors as for `push`."""
        given = as_values(value, self.shape, self.name, "values")
        self._owner.engine.assign(self._number, None, self._blocks(given))

    def prepared(self, grad: ArrayLike) -> Write:
        """What the engine takes for `push(grad)`; the caller's array may change later."""
        given = as_values(grad, self.shape, self.name)
        blocks = self._blocks(given)
        if _holds(self.spec) and np.may_share_memory(blocks, given):
            blocks = blocks.copy()  # kept until the round closes
        return self._number, None, blocks

    def _blocks(self, array: NDArray[np.float32]) -> NDArray[np.float32]:
        """`array` cut into blocks, (blocks, dim); a view where its size lets it, else zero-padded.

        All blocks are here, and the engine has them in their order.
        """
        size, dim = array.size, self.spec.dim
        if size % dim == 0:
            return array.reshape(-1, dim)
        padded = np.zeros(-(-size // dim) * dim, np.float32)
        padded[:size] = array.reshape(-1)
        return padded.reshape(-1, dim)


def _meta_of(table: Table, keys: NDArray[np.uint64], found: Sequence[Described]) -> TableMeta:
    return described(keys, {0: table.mode.clock}, {0: tuple(table.store.versions)}, found)


def _given(out: NDArray[np.float32] | None, values: NDArray[np.float32]) -> NDArray[np.float32]:
    if out is None:
        return values
    np.copyto(out, values)
    return out


def _holds(spec: TableSpec) -> bool:
    """Whether the table's mode keeps pushes back."""
    return spec.mode is not None and spec.mode.holds
