"""Keys and values as the low-level API moves them.

Source: ps-lite, include/ps/kv_app.h (`KVPairs`, `KVMeta`).
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kv.errors import KeyValueShapeError, UnsortedKeysError


def _no_keys() -> NDArray[np.uint64]:
    return np.empty(0, np.uint64)


def _no_values() -> NDArray[Any]:
    return np.empty(0, np.float32)


@dataclass(slots=True)
class KVPairs:
    """A list of keys with their values.

    Args:
        keys: uint64, shape (n,), strictly increasing.
        vals: any number type, one-dimensional: the values of the keys one after the other.
        lens: int32, shape (n,): how many values each key has; None: all the same number.
    """

    keys: NDArray[np.uint64] = field(default_factory=_no_keys)
    vals: NDArray[Any] = field(default_factory=_no_values)
    lens: NDArray[np.int32] | None = None

    def check(self) -> None:
        """Raise `KeyValueShapeError` unless keys, vals and lens fit each other."""
        keys, vals, lens = self.keys, self.vals, self.lens
        if keys.dtype != np.uint64 or keys.ndim != 1:
            raise KeyValueShapeError(f"keys must be one list of uint64, not {keys.dtype}")
        if vals.ndim != 1:
            raise KeyValueShapeError(f"vals must be flat, not of shape {vals.shape}")
        if lens is None:
            if vals.size and (keys.size == 0 or vals.size % keys.size):
                raise KeyValueShapeError(
                    f"{vals.size} values do not divide among {keys.size} keys; give lens"
                )
        elif lens.shape != keys.shape or (lens < 0).any() or int(lens.sum()) != vals.size:
            raise KeyValueShapeError(
                f"lens of shape {lens.shape} adding up to {int(lens.sum())} do not describe "
                f"{vals.size} values of {keys.size} keys"
            )

    def arrays(self) -> list[NDArray[Any]]:
        """As the van takes them: keys, vals and, where there are any, lens."""
        arrays: list[NDArray[Any]] = [self.keys, self.vals]
        if self.lens is not None:
            arrays.append(np.asarray(self.lens, np.int32))
        return arrays

    def ends(self) -> NDArray[np.int64]:
        """Where each key's values end in `vals`, int64, shape (n,)."""
        if self.lens is not None:
            return np.cumsum(self.lens, dtype=np.int64)
        width = self.vals.size // max(1, self.keys.size)
        return np.arange(1, self.keys.size + 1, dtype=np.int64) * width

    def take(self, positions: NDArray[np.int64]) -> KVPairs:
        """The pairs at `positions`, in their order."""
        keys = self.keys[positions]
        if self.lens is None:
            if not self.vals.size:
                return KVPairs(keys, self.vals)
            rows = self.vals.reshape(self.keys.size, -1)
            return KVPairs(keys, rows[positions].reshape(-1))
        ends = self.ends()
        lens = self.lens[positions]
        starts = ends[positions] - lens
        places = np.repeat(starts - (np.cumsum(lens) - lens), lens) + np.arange(int(lens.sum()))
        return KVPairs(keys, self.vals[places] if self.vals.size else self.vals, lens)


@dataclass(frozen=True, slots=True)
class KVMeta:
    """What a server's handler learns about a request beside its pairs.

    Args:
        cmd: the worker's own command.
        push, pull: what is asked; both for a `push_pull`.
        sender: node id of the worker.
        timestamp: number of the request there.
        customer: which customer of that worker.
    """

    cmd: int
    push: bool
    pull: bool
    sender: int
    timestamp: int
    customer: int


def require_increasing(keys: NDArray[np.uint64]) -> None:
    """Raise `UnsortedKeysError` at the first key that does not exceed the one before it."""
    wrong = keys[1:] <= keys[:-1]
    if wrong.any():
        position = int(np.argmax(wrong)) + 1
        raise UnsortedKeysError(position, int(keys[position - 1]), int(keys[position]))
