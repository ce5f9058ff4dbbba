"""How stale the pushes were that a table took: a histogram of the delays of their gradients.

The staleness of a push is the number of updates that the table has had, on one server, since its
worker last pulled there: the table's clock now less the one that came with the pull. Pushes of
one's own count, too. Up to 16 each number has a place of its own, then each power of two.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping

EXACT = 16


class Staleness:
    """Counts pushes by their staleness. Not thread safe."""

    def __init__(self) -> None:
        self._counts = [0] * (EXACT + 1)
        self._most = 0

    def note(self, staleness: int) -> None:
        """A push that was so stale was taken."""
        place = staleness if staleness <= EXACT else EXACT - 4 + (staleness - 1).bit_length()
        while place >= len(self._counts):
            self._counts.append(0)
        self._counts[place] += 1
        if staleness > self._most:
            self._most = staleness

    def report(self) -> dict[str, int]:
        """How many pushes there were, of msgpack types: by number, or first and last number.

        >>> staleness = Staleness()
        >>> for updates in (0, 0, 3, 17, 32, 33): staleness.note(updates)
        >>> staleness.report()
        {'0': 2, '3': 1, '17-32': 2, '33-64': 1}
        """
        return {_label(place): count for place, count in enumerate(self._counts) if count}

    @property
    def most(self) -> int:
        """That of the stalest push."""
        return self._most


def together(reports: Iterable[Mapping[str, int]]) -> dict[str, int]:
    """The reports of several servers in one, rising.

    >>> together([{'17-32': 1, '2': 1}, {'2': 4}])
    {'2': 5, '17-32': 1}
    """
    total: dict[str, int] = {}
    for report in reports:
        for label, count in report.items():
            total[label] = total.get(label, 0) + count
    return dict(sorted(total.items(), key=lambda entry: int(entry[0].partition("-")[0])))


def _label(place: int) -> str:
    if place <= EXACT:
        return str(place)
    last = 1 << (place - EXACT + 4)
    return f"{last // 2 + 1}-{last}"
