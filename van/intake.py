"""When what has come over a network is through a node's own line, as seen at the node itself.

A node sees a message when its last bit is there, and not before; a large one has then been on its
way in for long, while smaller ones came and went. So the line is gone through again in the order
of first bits, as `van.wires` does it: who began earlier was served earlier. What came and was
handed on meanwhile took its time of the line, too.
"""

from __future__ import annotations

from bisect import insort

_MOST = 128  # messages that are remembered one by one
_LONGEST = 120.0  # seconds that a message may be on its way in


class Intake:
    """A line that takes in what others send.

    Args:
        seconds: that it needs for a byte.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._free = 0.0  # when all that is forgotten is through
        self._taken: list[tuple[float, float]] = []  # first bit and seconds of the line, in order

    def arrive(self, nbytes: int, first_bit: float, last_bit: float) -> float:
        """So much has come; when it is through, at `last_bit` or later.

        To be called in the order of last bits.
        """
        takes, free, later = nbytes * self._seconds, self._free, 0.0
        for began, took in self._taken:
            if began <= first_bit:
                free = max(free, began) + took
            else:
                later += took
        insort(self._taken, (first_bit, takes))
        if len(self._taken) > _MOST:
            self._forget(last_bit)
        return max(last_bit, max(free, first_bit) + takes + later)

    def _forget(self, now: float) -> None:
        """Remember what is old as one, and of the rest two as one."""
        old = [one for one in self._taken if one[0] < now - _LONGEST]
        for began, took in old:
            self._free = max(self._free, began) + took
        rest = self._taken[len(old) :]
        odd = [*rest[1::2], *([(0.0, 0.0)] if len(rest) % 2 else [])]
        self._taken = [
            (began, took + more) for (began, took), (_, more) in zip(rest[::2], odd, strict=True)
        ]
