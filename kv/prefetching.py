"""Pulls that were started ahead of the `pull` that will want them.

Bookkeeping only: the worker sends, waits and forgets the requests.
"""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Hashable, Sequence
from typing import NamedTuple

import numpy as np

from kv.protocols import Request
from kv.pulling import Pull
from kv.tables import Values, Wanted

MOST = 4  # prefetches that nobody has taken


class Prefetched(NamedTuple):
    """A pull under way, of merged keys that the worker keeps itself."""

    request: Request
    wanted: Sequence[Wanted]
    pull: Pull

    def fits(self, wanted: Sequence[Wanted]) -> bool:
        """Whether it asks for just the keys of `wanted`, whatever their order there."""
        return all(
            own.table is other.table
            and (
                own.keylist is None
                or other.keylist is None
                or np.array_equal(own.keylist.unique, other.keylist.unique)
            )
            for own, other in zip(self.wanted, wanted, strict=True)
        )

    def values_for(self, wanted: Sequence[Wanted]) -> list[Values]:
        """The values, once they have come, in the order of the keys of `wanted`."""
        return [
            read.filled(values) for read, values in zip(wanted, self.pull.results(), strict=True)
        ]


class PulledAhead:
    """A pull for a later step, see `kv.pipelining.Ahead`.

    Args:
        prefetched: what was sent.
        given: the same reads as the caller gave them.
        take: waits for a prefetch, whose clocks are then the bases of pushes.
        forget: drops a request.
    """

    def __init__(
        self,
        prefetched: Prefetched,
        given: Sequence[Wanted],
        take: Callable[[Prefetched], None],
        forget: Callable[[Request], None],
    ) -> None:
        self._prefetched, self._given = prefetched, given
        self._take, self._forget = take, forget

    def values(self) -> list[Values]:
        """The values, in the order of the keys as they were given."""
        self._take(self._prefetched)
        return self._prefetched.values_for(self._given)

    def drop(self) -> None:
        """Take no answer any more."""
        self._forget(self._prefetched.request)


class Prefetches:
    """Those that nobody has taken, oldest first."""

    def __init__(self) -> None:
        self._waiting: OrderedDict[Hashable, Prefetched] = OrderedDict()

    def __bool__(self) -> bool:
        return bool(self._waiting)

    def add(self, place: Hashable, prefetched: Prefetched) -> list[Prefetched]:
        """Keep it; returns what is dropped for it."""
        dropped = [] if place not in self._waiting else [self._waiting.pop(place)]
        self._waiting[place] = prefetched
        while len(self._waiting) > MOST:
            dropped.append(self._waiting.popitem(last=False)[1])
        return dropped

    def take(self, place: Hashable, wanted: Sequence[Wanted]) -> Prefetched | None:
        """The prefetch at `place`, which is then no longer kept."""
        found = self._waiting.get(place)
        if found is None or not found.fits(wanted):
            return None
        return self._waiting.pop(place)
