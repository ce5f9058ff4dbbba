"""Memory for values on their way, used again when nobody holds it any more.

Fresh pages cost as much as the copy into them. What is sent stays in use until the van has let go
of it, on some transports until the receiver has; every holder has a reference to the array, so
an array that only this pool refers to is free.
"""

from __future__ import annotations

import math
import sys
import threading
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

MOST = 64  # arrays that are kept: all are looked at for each that is wanted
SMALLEST = 1 << 16  # bytes; below, NumPy's own allocation is as quick
_FREE = 3  # references to an array in use by nobody: the list's, the loop's, the call's


class Buffers:
    """A pool of arrays.

    Args:
        limit: bytes that are kept for later use.
    """

    def __init__(self, limit: int = 256 << 20) -> None:
        self._limit = limit
        self._kept: list[NDArray[np.uint8]] = []
        self._lock = threading.Lock()

    def empty(self, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """An array like `np.empty`'s; its memory is used again once no view of it is left."""
        size = math.prod(shape) * np.dtype(dtype).itemsize
        if size < SMALLEST:
            return np.empty(shape, dtype)
        return self._take(size)[:size].view(dtype).reshape(shape)

    def _take(self, size: int) -> NDArray[np.uint8]:
        with self._lock:
            for base in self._kept:
                if size <= base.nbytes <= 2 * size and sys.getrefcount(base) == _FREE:
                    return base
            base = np.empty(1 << (size - 1).bit_length() if size < 1 << 24 else size, np.uint8)
            self._kept.append(base)
            while len(self._kept) > MOST or self.nbytes > self._limit:
                self._kept.pop(0)  # whoever uses it keeps it
            return base

    @property
    def nbytes(self) -> int:
        """Bytes that are kept, in use or not."""
        return sum(base.nbytes for base in self._kept)
