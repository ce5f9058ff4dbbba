"""Memory that two processes see: made by the sender, mapped read-only by the receiver.

A slab is a memfd, which has no name and so leaves nothing behind whoever is killed. It is sealed
against shrinking, since a mapping of a file that was cut off kills who reads it (SIGBUS), and its
pages are allocated when it is made, for the same reason.
"""

from __future__ import annotations

import fcntl
import mmap
import os
import stat
import threading
from collections import deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from van.errors import CodecError
from van.slabs import Place, Slabs

MOST_SLABS = 64  # that wait to be announced
_SEALS = fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL


def make_slab(size: int) -> tuple[int, mmap.mmap]:
    """A descriptor and a writable mapping of fresh memory. Raises OSError when there is none."""
    fd = os.memfd_create("pslite", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
    try:
        os.posix_fallocate(fd, 0, size)
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, _SEALS)
        return fd, mmap.mmap(fd, size, flags=mmap.MAP_SHARED | mmap.MAP_POPULATE)
    except OSError:
        os.close(fd)
        raise


def attach_slab(fd: int, size: int) -> mmap.mmap:
    """A read-only mapping of a peer's memory.

    Raises:
        CodecError: it is no sealed memory, of another size than the peer says, or not allocated.
    """
    try:
        status = os.fstat(fd)
        seals = fcntl.fcntl(fd, fcntl.F_GET_SEALS)
        if not stat.S_ISREG(status.st_mode) or not seals & fcntl.F_SEAL_SHRINK:
            raise CodecError("memory that its owner could cut off under us")
        if size < 1 or status.st_size != size:
            raise CodecError(f"memory of {status.st_size} bytes where {size} were announced")
        if status.st_blocks * 512 < size:  # reading it would make us allocate its pages
            raise CodecError("memory that its owner has not allocated")
        flags = mmap.MAP_SHARED | mmap.MAP_POPULATE
        return mmap.mmap(fd, size, flags=flags, prot=mmap.PROT_READ)
    except (OSError, ValueError, OverflowError) as error:
        raise CodecError(f"a descriptor that is no shared memory: {error}") from None


class _Region(np.ndarray[Any, np.dtype[np.uint8]]):
    """The bytes of one region; says so when nobody refers to it any more.

    Its base is a memoryview: were it an array, NumPy would let views of the region skip it.
    """

    on_end: Callable[[Place], object] | None = None
    place: Place
    pool: SlabPool | None = None

    def __del__(self) -> None:
        if self.on_end is not None:
            self.on_end(self.place)


def region(
    memory: mmap.mmap, place: Place, nbytes: int, on_end: Callable[[Place], object]
) -> _Region:
    """The bytes at `place` of a slab's memory; `on_end(place)` when the last view is gone."""
    view = memoryview(memory)[place.offset : place.offset + nbytes]
    made = _Region((nbytes,), np.uint8, view)
    made.place, made.on_end = place, on_end
    return made


def _start(array: NDArray[Any]) -> int:
    return int(array.__array_interface__["data"][0])


class SlabPool:
    """The memory that one connection sends from. Any thread.

    Args:
        budget: bytes in all.
    """

    def __init__(self, budget: int) -> None:
        self._lock = threading.Lock()
        # Filled where the last view of a region ends, which may be inside the lock.
        self._ended: deque[Place] = deque()
        self._slabs = Slabs(budget)
        self._memory: dict[int, mmap.mmap] = {}
        self._fresh: list[tuple[int, int, int]] = []  # number, size, descriptor: not announced
        self._is_exhausted = False  # the machine has no more
        self._is_closed = False

    def copy_in(self, frame: NDArray[Any] | bytes) -> Place | None:
        """Copy `frame` into a free region with one user; None when the memory is used up."""
        raw = np.frombuffer(frame, np.uint8) if isinstance(frame, bytes) else frame
        raw = raw.reshape(-1).view(np.uint8)
        taken = self._take(raw.size)
        if taken is None:
            return None
        place, memory = taken
        np.frombuffer(memory, np.uint8, raw.size, place.offset)[:] = raw
        return place

    def empty(self, nbytes: int) -> NDArray[np.uint8] | None:
        """A writable array of `nbytes` in shared memory, taken until its last view is gone."""
        taken = self._take(nbytes)
        if taken is None:
            return None
        place, memory = taken
        made = region(memory, place, nbytes, self._ended.append)
        made.pool = self
        return made.view(np.ndarray)

    def find(self, array: NDArray[Any]) -> Place | None:
        """Where `array` lies, if it begins a region that `empty` made; it gets one user more."""
        owner: Any = array
        while type(owner) is np.ndarray:
            owner = owner.base
        if type(owner) is not _Region or owner.pool is not self:
            return None
        # Without gaps and as large as the region it begins where that does: asking takes longer.
        is_whole = array.nbytes == owner.nbytes and array.flags.c_contiguous
        if not is_whole and _start(array) != _start(owner):
            return None
        with self._lock:
            self._slabs.use(owner.place)
        return owner.place

    def _take(self, nbytes: int) -> tuple[Place, mmap.mmap] | None:
        with self._lock:
            if self._is_closed:
                return None
            self._collect()
            place = self._slabs.take(nbytes)
            if place is None and self._grow(nbytes):
                place = self._slabs.take(nbytes)
            return None if place is None else (place, self._memory[place.slab])

    def _grow(self, nbytes: int) -> bool:
        """Add a slab with room for `nbytes`, if that may be."""
        if self._is_exhausted or len(self._fresh) == MOST_SLABS:
            return False
        size = self._slabs.growth(nbytes)
        for number in self._slabs.dropped:
            self._memory.pop(number, None)
        if not size:
            return False
        try:
            fd, memory = make_slab(size)
        except OSError:  # no memory: ordinary sending needs none
            self._is_exhausted = True
            return False
        number = self._slabs.add(size)
        self._memory[number] = memory
        self._fresh.append((number, size, fd))
        return True

    def _collect(self) -> None:
        while self._ended:
            self._slabs.give_back(self._ended.popleft())

    def give_back(self, place: Place) -> bool:
        """One user of a region less; False when nobody uses such a region."""
        with self._lock:
            return self._slabs.give_back(place)

    @property
    def has_news(self) -> bool:
        """Whether `news` has something to say."""
        return bool(self._fresh or self._slabs.dropped)

    def news(self) -> tuple[list[tuple[int, int, int]], list[int]]:
        """Slabs to announce (number, size, descriptor: to be closed then), and dropped ones."""
        with self._lock:
            fresh, self._fresh = self._fresh, []
            dropped, self._slabs.dropped = self._slabs.dropped, []
            return fresh, dropped

    @property
    def size(self) -> int:
        """Bytes of all slabs."""
        return self._slabs.size

    @property
    def taken(self) -> int:
        """How many regions are in use."""
        with self._lock:
            self._collect()
            return self._slabs.taken

    def close(self) -> None:
        """Give up the memory; arrays over it stay valid while they live."""
        with self._lock:
            self._is_closed = True
            self._memory.clear()
            while self._fresh:
                os.close(self._fresh.pop()[2])
