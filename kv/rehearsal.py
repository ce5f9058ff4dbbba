"""A table's kernels are loaded before its first request: by requests to a table that nobody sees.

A kernel compiles, or is loaded from Numba's cache, when it is first called with arguments of a
type. A server that did this in the middle of requests would keep its first workers waiting, so it
plays through every request on a small table of the same definition before it answers DEFINE.
`kv.kernels.warmup` compiles, once, for a launcher; this loads, in each server.
"""

from __future__ import annotations

import threading
from dataclasses import replace
from typing import Any

import numpy as np

from kv.engine import Engine
from kv.optimizers import CLIPS, Optimizer
from kv.spec import LINE, TableSpec

_LEAST = 1e-9  # a norm above which any gradient is
DIM = 8  # of the table that nobody sees
_first = threading.Lock()  # servers of one process make first calls of kernels one after the other


class Rehearsal:
    """Remembers which definitions need no more rehearsing.

    Args:
        parts: of the sparse tables.
    """

    def __init__(self, parts: int) -> None:
        self._parts = parts
        self._known: set[tuple[object, ...]] = set()

    def play(self, spec: TableSpec) -> None:
        """Load the kernels of `spec`, whose mode and seed are resolved."""
        kinds = type(spec.optimizer), type(spec.initializer), type(spec.mode)
        care = _is_prepared(spec.optimizer), spec.optimizer.weight_bounds is not None
        what = (spec.kind, spec.missing, spec.storage, *kinds, *care)
        if what in self._known:
            return
        spec = replace(spec, optimizer=_eager(spec.optimizer))
        with _first:
            if spec.kind == "dense":
                self._play_dense(spec)
            else:
                self._play_sparse(spec)
        self._known.add(what)

    def _play_sparse(self, spec: TableSpec) -> None:
        engine = Engine(1, parts=self._parts)
        # No kernel's types depend on these, and neither width nor limits should get in the way.
        table = engine.define(replace(spec, dim=DIM, memory_limit=0, when_full="refuse"))
        keys, later = (_received(np.arange(n, n + 40, dtype=np.uint64)) for n in (0, 20))
        values = _received(np.ones((keys.size, DIM), np.float32))
        engine.assign(table, keys, values)
        for _ in range(2):  # rows that are made, then rows that are there
            if spec.missing != "error":
                engine.push(table, 0, 0, later, values)
                engine.pull(table, later, create=False)
            engine.pull(table, keys)
        engine.tables[table].remember(keys)
        engine.push(table, 0, 0, keys, values)
        engine.step(0, 0)
        engine.scan(table, 0, 10)
        engine.delete(table, keys)

    def _play_dense(self, spec: TableSpec) -> None:
        engine = Engine(1)
        table = engine.define(replace(spec, shape=(LINE,), dim=LINE))
        values = _received(np.ones((1, LINE), np.float32))
        engine.assign(table, None, values)
        engine.push(table, 0, 0, None, values)
        engine.step(0, 0)
        engine.pull(table)


def _is_prepared(optimizer: Optimizer) -> bool:
    """Whether gradients may be changed before the step."""
    return any(getattr(optimizer, setting) for setting in ("weight_decay", *CLIPS))


def _eager(optimizer: Optimizer) -> Optimizer:
    """The same, clipping whatever comes, if it clips."""
    norms = ("clip_norm", "clip_global_norm")
    eager: dict[str, Any] = {norm: _LEAST for norm in norms if getattr(optimizer, norm)}
    return replace(optimizer, **eager)


def _received(array: np.ndarray) -> np.ndarray:
    """As an array comes from the van: read-only."""
    array.flags.writeable = False
    return array
