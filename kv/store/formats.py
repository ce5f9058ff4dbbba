"""How the weights of a row lie in memory: as float32, or as float16 in half of the space.

    FloatRows    float32 weights, then state
    HalfRows     float16 weights, two to a float32, then state in float32

A format reads and writes rows by their numbers in an arena that is not its own: `data`, float32
(capacity, stride) with a stride of `floats` or more (`stride_of`). Outside, weights are float32
always. `rows` are int64 (n,), none twice, and keys, values and gradients read-only (`jit.frozen`).
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kv.initializers import table_seed
from kv.kernels import halves
from kv.kernels import rows as kernels
from kv.kernels.delay import compensate
from kv.kernels.jit import frozen
from kv.kernels.updates import update_of
from kv.spec import LINE, TableSpec
from kv.store.delay import Delay

BLOCK = 1 << 15  # floats of rows widened at a time: they stay in the cache

Keys = NDArray[np.uint64]
Values = NDArray[np.float32]
Rows = NDArray[np.int64]


class FloatRows:
    """Rows of `dim` float32 weights, then state.

    Args:
        spec: the table's definition, its seed resolved.
    """

    def __init__(self, spec: TableSpec) -> None:
        self.dim = spec.dim
        self.state_at = self._slots(spec.dim)  # floats before the state
        self.floats = self.state_at + spec.optimizer.state_floats(spec.dim)  # of a row
        self.step = update_of(spec.optimizer, spec.kind == "dense", spec.storage)
        self._seed = np.uint64(table_seed(spec.seed or 0, spec.name))
        recipe, a, b = spec.initializer.recipe()
        self._recipe = (recipe, float(a), float(b))
        self._state = np.float32(spec.optimizer.initial_state)

    def gather(self, data: Values, rows: Rows, out: Values) -> None:
        """out[i] = the weights of row rows[i]; out: float32 (n, dim)."""
        kernels.gather(data, rows, out)

    def gather_or_zero(self, data: Values, rows: Rows, out: Values) -> None:
        """Like `gather`, and zeros where rows[i] is -1."""
        kernels.gather_or_zero(data, rows, out)

    def preview(self, out: Values, places: Rows, keys: Keys) -> None:
        """out[places[i]] = what a new row of keys[i] would read; out: float32 (m, dim)."""
        kernels.initialize(out, places, keys, self.dim, *self._recipe, self._seed)
        self.step.bound(out, self.dim, places)

    def initialize(self, data: Values, rows: Rows, keys: Keys) -> None:
        """Initial weights and state of `keys` into new rows."""
        self.preview(data, rows, keys)
        self.reset_state(data, rows)

    def assign(self, data: Values, rows: Rows, values: Values) -> None:
        """Set weights outright, within the optimiser's bounds; the state starts again."""
        kernels.scatter(data, rows, values)
        self.step.bound(data, self.dim, rows)
        self.reset_state(data, rows)

    def reset_state(self, data: Values, rows: Rows) -> None:
        """The optimiser's state as in a new row."""
        kernels.reset_state(data, rows, self.state_at, self._state)

    def update(
        self,
        data: Values,
        keys: Keys,
        rows: Rows,
        grads: Values,
        clock: int,
        delay: Delay | None = None,
    ) -> None:
        """One optimiser step, at the table's `clock`, on the rows of `keys`; grads as weights.

        Args:
            delay: of the gradients, if that changes the step.
        """
        if delay is None:
            self.step(data, self.dim, rows, grads, clock)
            return
        grads = self._corrected(data, rows, grads, delay)
        rate, scale = self._rate(clock, delay), self.step.scale(grads) * delay.scale
        self.step.apply(data, self.dim, rows, grads, rate, scale)

    def _corrected(self, data: Values, rows: Rows, grads: Values, delay: Delay) -> Values:
        """The gradients as the rows' weights have moved since they were computed."""
        if delay.seen is None:
            return grads
        out = np.empty_like(grads)
        compensate(data, self.dim, rows, grads, frozen(delay.seen), delay.lam, out)
        return frozen(out)

    def _rate(self, clock: int, delay: Delay | None) -> np.float32:
        rate = self.step.rate(clock)
        return rate if delay is None else np.float32(rate * np.float32(delay.rate))

    @staticmethod
    def _slots(dim: int) -> int:
        """Floats that `dim` weights take."""
        return dim


class HalfRows(FloatRows):
    """Rows of `dim` float16 weights, then state in float32.

    An update widens a block of rows, runs the optimiser as for float32 and rounds what comes out
    by chance, on average right; the chance follows from seed, key, clock and column, so that a run
    repeats. Initial and assigned values are rounded to nearest. Beyond ±65504 is ±65504.
    """

    def gather(self, data: Values, rows: Rows, out: Values) -> None:
        halves.gather_halves(data, rows, out)

    def gather_or_zero(self, data: Values, rows: Rows, out: Values) -> None:
        halves.gather_halves_or_zero(data, rows, out)

    def preview(self, out: Values, places: Rows, keys: Keys) -> None:
        packed, fresh = np.empty((keys.size, self.state_at), np.float32), np.arange(keys.size)
        values = np.empty((keys.size, self.dim), np.float32)
        self._initial(packed, fresh, keys)
        self.gather(packed, fresh, values)
        out[places] = values

    def initialize(self, data: Values, rows: Rows, keys: Keys) -> None:
        self._initial(data, rows, keys)
        self.reset_state(data, rows)

    def assign(self, data: Values, rows: Rows, values: Values) -> None:
        if self.step.has_bounds:
            values = np.array(values)
            self.step.bound(values, self.dim, np.arange(rows.size))
        halves.scatter_halves(data, rows, frozen(values))
        self.reset_state(data, rows)

    def update(
        self,
        data: Values,
        keys: Keys,
        rows: Rows,
        grads: Values,
        clock: int,
        delay: Delay | None = None,
    ) -> None:
        push_scale = np.float32(1)
        if delay is not None:
            grads, push_scale = self._corrected(data, rows, grads, delay), delay.scale
        width = self.dim + self.floats - self.state_at
        block = min(max(1, BLOCK // width), rows.size)
        wide, places = np.empty((block, width), np.float32), np.arange(block)
        rate, scale = self._rate(clock, delay), self.step.scale(grads) * push_scale
        for start in range(0, rows.size, block):
            part = slice(start, start + block)
            mine, taken = rows[part], wide[: rows.size - start]
            halves.take_rows(data, mine, self.dim, taken)
            self.step.apply(taken, self.dim, places[: mine.size], grads[part], rate, scale)
            stamp = self._seed, np.uint64(clock)
            halves.put_rows(data, mine, keys[part], self.dim, taken, *stamp)

    def _corrected(self, data: Values, rows: Rows, grads: Values, delay: Delay) -> Values:
        if delay.seen is None:
            return grads
        weights = np.empty((rows.size, self.dim), np.float32)
        self.gather(data, rows, weights)
        return super()._corrected(weights, np.arange(rows.size), grads, delay)

    def _initial(self, data: Values, rows: Rows, keys: Keys) -> None:
        """Initial weights of `keys`, rounded to nearest, into rows of `data`."""
        block = max(1, BLOCK // self.dim)
        for start in range(0, rows.size, block):
            mine = rows[start : start + block]
            values = np.empty((mine.size, self.dim), np.float32)
            super().preview(values, np.arange(mine.size), keys[start : start + block])
            halves.scatter_halves(data, mine, frozen(values))

    @staticmethod
    def _slots(dim: int) -> int:
        return (dim + 1) // 2


def format_of(spec: TableSpec) -> FloatRows:
    """The format that the table's `storage` names."""
    return HalfRows(spec) if spec.storage == "float16" else FloatRows(spec)


def stride_of(floats: int, is_tight: bool = False) -> int:
    """Floats from one row to the next: whole cache lines where that costs little memory.

    Up to a cache line the next power of two, so that no row lies across two lines; above, whole
    lines if they add a third at most, else multiples of 4. `is_tight` is for tables that are to be
    small: multiples of 4 from 4 floats on.
    """
    if is_tight and floats > 4:
        return -(-floats // 4) * 4
    if floats <= LINE:
        return 1 << (floats - 1).bit_length()
    lines = -(-floats // LINE) * LINE
    return lines if 3 * lines <= 4 * floats else -(-floats // 4) * 4
