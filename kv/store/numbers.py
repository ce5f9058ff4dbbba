"""Numbers of rows or of records on disk, given out from 0 on; freed ones again, last one first."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Rows = NDArray[np.int64]


class Numbers:
    """Which numbers below `top` are free.

    While rows are packed free numbers from `bottom` on are not given out: their places are to be
    filled from the end, so that `top` can come down.
    """

    def __init__(self) -> None:
        self.top = 0  # numbers ever given out
        self.num_free = 0  # that may be given out again
        self.bottom: int | None = None  # while rows are packed: no place below it is left to fill
        self._withheld = 0  # free numbers that are not given out
        self._free: list[Rows] = []

    @property
    def in_use(self) -> int:
        return self.top - self.num_free - self._withheld

    def take(self, count: int) -> Rows:
        """`count` numbers that nobody uses, rising where they are new."""
        from_top = max(0, count - self.num_free)
        parts = [np.arange(self.top, self.top + from_top)]
        self.top += from_top
        need = count - from_top
        while need:
            last = self._free.pop()
            if last.size > need:
                self._free.append(last[: last.size - need])
                last = last[last.size - need :]
            parts.append(last)
            need -= last.size
            self.num_free -= last.size
        return np.concatenate(parts) if need != count - from_top else parts[0]

    def give_back(self, numbers: Rows) -> None:
        """These are free again."""
        if self.bottom is not None:
            self._withheld += int(np.count_nonzero(numbers >= self.bottom))
            numbers = numbers[numbers < self.bottom]
        if numbers.size:
            self._free.append(numbers)
            self.num_free += numbers.size

    def begin_packing(self) -> None:
        """From now on no free number is given out, but new ones, until `pack` is through."""
        self.bottom, self._withheld = 0, self.num_free
        self._free, self.num_free = [], 0

    def pack(self, bottom: int, top: int) -> bool:
        """No place below `bottom` is left to fill, none from `top` on is in use; whether that is
        all."""
        self._withheld -= self.top - top
        self.top = top
        return self.fill(0, bottom)

    def fill(self, count: int, bottom: int) -> bool:
        """So many free numbers below `bottom` are taken, and none is left; whether that is all."""
        assert -1 < (self.bottom or 0) <= bottom <= self.top, "packing goes upwards"
        self._withheld -= count
        self.bottom = bottom
        if bottom == self.top:
            assert self._withheld == 0, "free numbers are lost"
            self.bottom = None
        return self.bottom is None

    def cut(self, top: int) -> None:
        """Forget the numbers from `top` on, which must all be free."""
        kept = self.free()
        kept = kept[kept < top]
        assert self.num_free - kept.size == self.top - top, "numbers in use are cut off"
        self._free, self.num_free, self.top = [kept] if kept.size else [], kept.size, top

    def free(self) -> Rows:
        """All free numbers below `top`."""
        return np.concatenate([*self._free, np.empty(0, np.int64)])

    def export(self) -> tuple[Rows, Rows]:
        """The free numbers, and how many came back together, in the order in which they did."""
        return self.free(), np.array([part.size for part in self._free], np.int64)

    @classmethod
    def of(cls, top: int, free: Rows, sizes: Rows) -> Numbers:
        """What gives out the same numbers as one that exported these."""
        found = cls()
        found.top, found.num_free = top, free.size
        found._free = np.split(free, np.cumsum(sizes)[:-1]) if free.size else []
        return found

    def validate(self) -> None:
        """Assert that no number is free twice or out of range."""
        free = self.free()
        assert self.bottom is not None or not self._withheld, "numbers are withheld for nothing"
        assert free.size == self.num_free, "the free list is miscounted"
        assert np.unique(free).size == free.size, "a number is free twice"
        assert free.size == 0 or 0 <= free.min() <= free.max() < self.top, "none such was given out"
