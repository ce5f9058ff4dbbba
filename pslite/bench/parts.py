"""The parts of a store by themselves: look-ups, rows, optimisers, with NumPy beside them.

Classes for `pslite.bench.driver`, each with its arrays; nothing here sends anything.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kv.kernels import rows as row_kernels
from kv.kernels.jit import frozen
from kv.kernels.updates import update_of
from kv.optimizers import Optimizer, by_name
from kv.spec import TableSpec
from kv.store import arena
from kv.store.formats import stride_of
from kv.store.sparse import SparseStore
from pslite.bench.cases import keys_at
from pslite.bench.formulas import FORMULAS

QUERIES = 1_000_000  # keys of one timed call of look-ups
ROWS = 100_000  # of one timed optimiser step
RESIDENT = 1_000_000  # rows that optimisers choose from
FILL = 1_000_000  # keys added at once
YARDSTICK = 16  # floats of a 64-byte row

Floats = NDArray[np.float32]


class StoreParts:
    """One store; look-up, reading and updating timed apart, as `TableCase`s."""

    def start(self) -> None:
        pass

    def prepare(self, rows: int, dim: int, optimizer: str) -> None:
        spec = TableSpec(name="parts", dim=dim, optimizer=by_name(optimizer)).resolved("async", 1)
        self.store = SparseStore(spec)
        for start in range(0, rows, ROWS):
            self.store.create(keys_at(np.arange(start, min(start + ROWS, rows))))
        self._update = update_of(spec.optimizer)

    def keys(self, positions: NDArray[np.int64]) -> tuple[Any, Any, Any]:
        """Keys, their rows, and memory for their values."""
        keys = frozen(keys_at(positions))
        rows = self.store.index.find(keys)[0]
        return keys, rows, np.empty((keys.size, self.store.dim), np.float32)

    def lookup(self, request: tuple[Any, Any, Any]) -> None:
        self.store.index.find(request[0])

    def gather(self, request: tuple[Any, Any, Any]) -> None:
        row_kernels.gather(self.store.data, request[1], request[2])

    def update(self, request: tuple[Any, Any, Any], grads: Floats) -> None:
        self._update(self.store.data, self.store.dim, request[1], grads, 0)


class Lookups:
    """An index of many entries, and as many rows of 64 bytes read at random: the yardstick."""

    _store: Any
    _data: Any

    def start(self) -> None:
        pass

    def prepare(self, entries: int) -> None:
        """Let go of the ones before, then build a store of the narrowest rows, and wide rows."""
        self._store = self._data = None
        self._store = SparseStore(TableSpec(name="index", dim=1).resolved("async", 1))
        for start in range(0, entries, FILL):
            self._store.create(keys_at(np.arange(start, min(start + FILL, entries))))
        self._data = arena.reserve((entries, YARDSTICK), np.float32)
        self._data[:] = 0.01
        rng = np.random.default_rng(1)
        self._rows = rng.integers(0, entries, QUERIES)
        shuffled = keys_at(rng.integers(0, entries, QUERIES))
        rng.shuffle(shuffled)
        self._keys = frozen(shuffled)

    def lookup(self) -> None:
        self._store.index.find(self._keys)

    def yardstick(self) -> None:
        self._data[self._rows]


class Optimisers:
    """One optimiser's step on scattered rows: pslite's kernel, and the same formula in NumPy."""

    def start(self) -> None:
        pass

    def prepare(self, name: str, dim: int) -> None:
        rng = np.random.default_rng(1)
        self.rows = rng.permutation(RESIDENT)[:ROWS]
        self.grads = frozen(rng.standard_normal((ROWS, dim), np.float32))
        optimizer = by_name(name)
        self._dim, self._update = dim, update_of(optimizer)
        self._data = _filled(stride_of(dim + optimizer.state_floats(dim)))
        self._weights = _filled(dim)
        self._state = [_filled(dim) for _ in range(FORMULAS[name].arrays)]
        self._steps = np.ones((RESIDENT, 1), np.float32)
        self._formula: Callable[..., None] = FORMULAS[name].step

    def ours(self) -> None:
        self._update(self._data, self._dim, self.rows, self.grads, 0)

    def numpy(self) -> None:
        self._formula(self._weights, self._state, self._steps, self.rows, self.grads)


def compared_optimisers() -> list[str]:
    """Names of pslite's optimisers that have a formula in NumPy here."""
    return [name for name in FORMULAS if name in Optimizer.members]


def _filled(floats: int) -> Floats:
    data = arena.reserve((RESIDENT, floats), np.float32)
    data[:] = 0.01  # every page touched
    return data
