"""Any list of keys -> strictly increasing unique keys, and back to the caller's order.

Both families of tables use it: `kv.tables` before a request is sent, `kv.local` before the engine
is asked. A list that is already strictly increasing costs one scan.

Also the coercions of what users pass: keys to uint64, values to float32, errors naming table and
position.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import ArrayLike, DTypeLike, NDArray

from kv.errors import KeyListError, ValueShapeError
from kv.kernels.jit import frozen
from kv.kernels.merge import add_rows, merge_keys
from kv.kernels.rows import expand as expand_rows

MAX_KEY = (1 << 64) - 1
_UINT64, _FLOAT32 = np.dtype(np.uint64), np.dtype(np.float32)  # comparing with a type is slow

Empty = Callable[[tuple[int, ...], DTypeLike], NDArray[Any]]
"""Makes an array of a shape and type, as `np.empty` does."""


@dataclass(slots=True, eq=False)
class KeyList:
    """A key list, merged. Not frozen, which would double the time to make one.

    Args:
        unique: uint64, shape (m,), strictly increasing; may be the caller's own array.
        inverse: int64, shape (n,): where each of the n keys is in `unique`; None if the list was
            strictly increasing already, so that it is `unique`.
    """

    unique: NDArray[np.uint64]
    inverse: NDArray[np.int64] | None

    @property
    def size(self) -> int:
        """How many keys the caller gave."""
        return self.unique.size if self.inverse is None else self.inverse.size

    def expand(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Values of `unique`, (m, dim), as values of the caller's keys, (n, dim)."""
        if self.inverse is None:
            return values
        out = np.empty((self.inverse.size, values.shape[1]), np.float32)
        expand_rows(frozen(values), self.inverse, out)
        return out

    def merge_grads(
        self, grads: NDArray[np.float32], empty: Empty = np.empty
    ) -> NDArray[np.float32]:
        """Gradients of the caller's keys, (n, dim), summed to those of `unique`, (m, dim).

        Gradients of equal keys are added in their order of occurrence. Without repeats or
        disorder the result is `grads` itself, not a copy; else it is in memory from `empty`.
        """
        if self.inverse is None:
            return grads
        sums = empty((self.unique.size, grads.shape[1]), np.float32)
        sums.fill(-0.0)
        add_rows(sums, self.inverse, frozen(grads))
        return sums

    def last_of_each(self, values: NDArray[np.float32]) -> NDArray[np.float32]:
        """Values of the caller's keys reduced to `unique`: of a repeated key the last counts."""
        if self.inverse is None:
            return values
        last = np.empty(self.unique.size, np.int64)
        last[self.inverse] = np.arange(self.inverse.size)  # NumPy keeps the last of equal places
        return values[last]


def prepare(keys: ArrayLike, table: str = "?") -> KeyList:
    """`keys` as a merged key list.

    Args:
        keys: integers from 0 to 2^64 - 1 in any order, repeated or none at all.
        table: named in errors.
    Raises:
        KeyListError: not one list of such integers.
    """
    return merged(as_keys(keys, table))


def merged(keys: NDArray[np.uint64]) -> KeyList:
    """The merged list of `keys`, uint64, shape (n,), read-only."""
    return KeyList(*merge_keys(keys))


def as_keys(keys: ArrayLike, table: str) -> NDArray[np.uint64]:
    """`keys` as uint64, shape (n,), read-only; a view of the caller's memory where it can be.

    Raises:
        KeyListError: a negative number, one above 2^64 - 1, no integer, or not one list.
    """
    try:
        array = np.asarray(keys)
    except (ValueError, TypeError, RuntimeError, OverflowError) as error:
        raise KeyListError(table, f"keys cannot be read as one list: {error}") from error
    if array.ndim != 1:
        raise KeyListError(table, f"keys must be one list, not an array of shape {array.shape}")
    if array.dtype is _UINT64 or array.dtype == _UINT64:
        return frozen(array)
    if array.dtype.kind == "i":
        negative = array < 0
        if negative.any():
            position = int(np.argmax(negative))
            problem = f"key {array[position]} at position {position} is negative"
            raise KeyListError(table, problem, position)
        return frozen(array.astype(np.int64, copy=False).view(np.uint64))
    if array.dtype.kind == "u":
        return frozen(array.astype(np.uint64))
    if array.size == 0:
        return frozen(np.empty(0, np.uint64))
    return frozen(_keys_of_numbers(keys, array, table))


def _keys_of_numbers(keys: ArrayLike, array: NDArray[np.generic], table: str) -> NDArray[np.uint64]:
    """A Python list whose integers NumPy fits into no integer type, or the error in it."""
    listed = list(keys) if isinstance(keys, list | tuple) else array.tolist()
    for position, key in enumerate(listed):
        is_whole = isinstance(key, int | np.integer) and not isinstance(key, bool)
        if not is_whole or not 0 <= int(key) <= MAX_KEY:
            problem = f"key {key!r} at position {position} is not an integer from 0 to 2^64 - 1"
            raise KeyListError(table, problem, position)
    return np.array([int(key) for key in listed], np.uint64)


def as_values(
    values: ArrayLike, shape: tuple[int, ...], table: str, what: str = "gradients"
) -> NDArray[np.float32]:
    """`values` as float32 of `shape`, read-only; a view of the caller's memory where it can be.

    Raises:
        ValueShapeError: another shape, or no real numbers.
    """
    try:
        array = np.asarray(values)
    except (ValueError, TypeError, RuntimeError) as error:
        raise ValueShapeError(table, f"{what} cannot be read as one array: {error}") from error
    if array.dtype is _FLOAT32 and array.shape == shape:
        return frozen(array)
    if array.dtype.kind not in "fiu":
        raise ValueShapeError(table, f"{what} must be real numbers, not {array.dtype}")
    if array.shape != shape:
        raise ValueShapeError(table, f"{what} have shape {array.shape}, not {shape}")
    if array.dtype != np.float32:
        with np.errstate(over="ignore"):  # becomes infinity, which the engine refuses by name
            array = array.astype(np.float32)
    return frozen(array)


def checked_out(out: Any, shape: tuple[int, ...], table: str) -> NDArray[np.float32]:
    """`out`, if values of `shape` can be put there.

    Raises:
        ValueShapeError: no writable C-contiguous float32 array of that shape.
    """
    if (
        not isinstance(out, np.ndarray)
        or out.dtype != np.float32
        or out.shape != shape
        or not (out.flags.c_contiguous and out.flags.writeable and out.flags.aligned)
    ):
        got = f"{out.dtype} {out.shape}" if isinstance(out, np.ndarray) else repr(out)
        problem = f"out must be a writable C-contiguous float32 array of shape {shape}, not {got}"
        raise ValueShapeError(table, problem)
    return out
