"""Address space reserved once and filled as it is touched, as NumPy arrays that never move.

An array that grew by copying would stop the server for the copy and need twice the memory. Here
the array has its final size from the start; pages come to exist when they are first written, and
`release` gives back those that are not needed any more. From two megabytes on, huge pages are asked
for: they cost an eighth of the page faults and far fewer address translations. Below that small
tables keep small pages, or each would take two megabytes.
"""

from __future__ import annotations

import logging
import mmap
import os
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

log = logging.getLogger(__name__)

HUGE_PAGE = 2 << 20
NORESERVE = 0x4000  # MAP_NORESERVE of Linux, which Python's mmap does not name
LEAST = 64 << 20  # bytes below which a smaller reservation is not worth trying
MOST = 1 << 42


def physical_memory() -> int:
    """Bytes of memory in this machine, the natural bound of what one table can hold."""
    try:
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    except (ValueError, OSError):
        return 16 << 30


def reserve(shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
    """An array of zeros, on a page of its own, whose memory is taken only where it is written.

    Its memory goes back to the system with the last view of it.

    Raises:
        OSError, ValueError: the system does not grant the address space.
    """
    kind = np.dtype(dtype)
    count = int(np.prod(shape, dtype=np.int64))
    nbytes = max(count * kind.itemsize, mmap.PAGESIZE)
    flags = mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | NORESERVE
    memory = mmap.mmap(-1, nbytes, flags=flags)
    if nbytes > 2 * HUGE_PAGE and hasattr(mmap, "MADV_HUGEPAGE"):
        try:
            memory.madvise(mmap.MADV_HUGEPAGE, HUGE_PAGE, nbytes - HUGE_PAGE)
        except OSError as error:  # a kernel without huge pages works, only slower
            log.debug("no huge pages: %s", error)
    return np.frombuffer(memory, kind, count).reshape(shape)


def page_after(place: int) -> int:
    """The first huge page's beginning at `place`, in bytes, or after it."""
    return -(-place // HUGE_PAGE) * HUGE_PAGE


def release(array: NDArray[Any], start: int, stop: int) -> int:
    """Give back the memory of the bytes from `start` to `stop` of an array that `reserve` made.

    They read zero afterwards. Only whole huge pages' worth goes (counted from the array's start),
    so that pages are not broken up; returns where the next call should start.
    """
    first, last = page_after(start), min(stop, array.nbytes) // HUGE_PAGE * HUGE_PAGE
    if last <= first:
        return start
    owner: Any = array
    while isinstance(owner, np.ndarray):
        owner = owner.base
    owner.obj.madvise(mmap.MADV_DONTNEED, first, last - first)
    return last
