"""Which parts of shared memory are in use: slabs, cut into regions that are taken and given back.

Pure bookkeeping of offsets; `van.shared_memory` has the memory. The first gap that is large enough
is taken, so that the same pages are used again and again: fresh pages cost more than a copy.
"""

from __future__ import annotations

import bisect
from typing import NamedTuple

_ALIGNMENT = 64  # of regions, in bytes: a cache line


class Place(NamedTuple):
    """Where some bytes lie."""

    slab: int
    offset: int


class Slab:
    """The regions of one piece of memory.

    Args:
        size: bytes.
    """

    def __init__(self, size: int) -> None:
        self.size = size
        self._taken: dict[int, int] = {}  # offset to bytes, rounded up
        self._gaps: list[tuple[int, int]] = [(0, size)] if size else []  # by offset, never adjacent

    def take(self, nbytes: int) -> int | None:
        """The offset of a free region of `nbytes`, which is taken now; None when there is none."""
        wanted = max(1, -(-nbytes // _ALIGNMENT)) * _ALIGNMENT
        for number, (offset, length) in enumerate(self._gaps):
            if length >= wanted:
                if length == wanted:
                    del self._gaps[number]
                else:
                    self._gaps[number] = (offset + wanted, length - wanted)
                self._taken[offset] = wanted
                return offset
        return None

    def give_back(self, offset: int) -> None:
        """Free the region that begins at `offset`; there must be one."""
        length = self._taken.pop(offset)
        number = bisect.bisect(self._gaps, (offset, 0))
        if number < len(self._gaps) and self._gaps[number][0] == offset + length:
            length += self._gaps.pop(number)[1]
        if number and sum(self._gaps[number - 1]) == offset:
            offset = self._gaps[number - 1][0]
            length += self._gaps.pop(number - 1)[1]
            number -= 1
        self._gaps.insert(number, (offset, length))

    @property
    def is_free(self) -> bool:
        """Whether no region is taken."""
        return not self._taken

    def validate(self) -> None:
        """Check what must always hold: gaps and regions tile the slab, no two gaps touch."""
        pieces = sorted([*self._gaps, *self._taken.items()])
        end = 0
        for offset, length in pieces:
            assert offset == end
            assert length > 0
            end += length
        assert end == self.size
        assert self._gaps == sorted(self._gaps)
        assert all(sum(a) < b[0] for a, b in zip(self._gaps, self._gaps[1:], strict=False))


class Slabs:
    """Slabs of one connection, in all not over a budget.

    Args:
        budget: bytes of all slabs together.
        least: bytes of the first slab; each later one is at least half of all before.

    Attributes:
        size: bytes of all slabs.
        dropped: slabs given up to make room for one of another size; whoever sends takes them out.
    """

    def __init__(self, budget: int, least: int = 4 << 20) -> None:
        self.size = 0
        self.dropped: list[int] = []
        self._budget, self._least = budget, least
        self._slabs: dict[int, Slab] = {}
        self._users: dict[Place, int] = {}
        self._next = 0

    def __len__(self) -> int:
        return len(self._slabs)

    def take(self, nbytes: int) -> Place | None:
        """A region with one user; None when no slab has room (see `grow`)."""
        for number, slab in self._slabs.items():
            offset = slab.take(nbytes)
            if offset is not None:
                place = Place(number, offset)
                self._users[place] = 1
                return place
        return None

    def growth(self, nbytes: int) -> int:
        """How large a slab to add for a region of `nbytes`; 0 when the budget forbids it.

        Slabs that nobody uses are dropped where that makes the room.
        """
        page = 4096
        needed = max(1, -(-nbytes // page)) * page
        if needed > self._budget - self.size:
            for number in [n for n, slab in self._slabs.items() if slab.is_free]:
                self.size -= self._slabs.pop(number).size
                self.dropped.append(number)
        left = (self._budget - self.size) // page * page
        if needed > left:
            return 0
        return min(left, max(needed, self._least, self.size // 2 // page * page))

    def add(self, size: int) -> int:
        """Add a slab of `size` bytes; returns its number."""
        number = self._next
        self._next += 1
        self._slabs[number] = Slab(size)
        self.size += size
        return number

    def use(self, place: Place) -> None:
        """One more user of a region that is in use."""
        self._users[place] += 1

    def give_back(self, place: Place) -> bool:
        """One user less; False when nobody uses such a region."""
        users = self._users.get(place)
        if users is None:
            return False
        if users > 1:
            self._users[place] = users - 1
        else:
            del self._users[place]
            self._slabs[place.slab].give_back(place.offset)
        return True

    @property
    def taken(self) -> int:
        """How many regions are in use."""
        return len(self._users)

    def validate(self) -> None:
        """Check what must always hold."""
        for slab in self._slabs.values():
            slab.validate()
        assert self.size == sum(slab.size for slab in self._slabs.values()) <= self._budget
        assert all(users > 0 for users in self._users.values())
