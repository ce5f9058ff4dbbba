"""What a node measures of itself, for whoever asks: counters, gauges and histograms by name.

    office.metrics.offer("pslite_rows", "gauge", "Rows here.", lambda: [({"table": "user"}, 7)])

Values are read when somebody asks, so that measuring costs no more than what is counted anyway.
Names, kinds and labels are those of Prometheus; `pslite.metrics` writes its text.
"""

from __future__ import annotations

from bisect import bisect_left
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Literal

Kind = Literal["counter", "gauge", "histogram"]


class Histogram:
    """How many values were not above each of some bounds.

    Args:
        bounds: increasing; values above the last one are only counted.
    """

    def __init__(self, bounds: Sequence[float]) -> None:
        self.bounds = tuple(bounds)
        self.sum = 0.0
        self._counts = [0] * (len(self.bounds) + 1)

    def observe(self, value: float) -> None:
        """Count a value."""
        self._counts[bisect_left(self.bounds, value)] += 1
        self.sum += value

    @property
    def count(self) -> int:
        """How many values there were."""
        return sum(self._counts)

    def pack(self) -> dict[str, Any]:
        """As msgpack types: `buckets` are [bound, values that are not above it]."""
        below, buckets = 0, []
        for bound, count in zip(self.bounds, self._counts, strict=False):
            below += count
            buckets.append([bound, below])
        return {"buckets": buckets, "sum": self.sum, "count": self.count}


Sample = tuple[Mapping[str, str], float | Histogram]
"""Labels, without the node's, and a value."""


class Metrics:
    """The families of one node."""

    def __init__(self) -> None:
        self._families: dict[str, tuple[Kind, str, Callable[[], Iterable[Sample]]]] = {}

    def offer(
        self, name: str, kind: Kind, meaning: str, read: Callable[[], Iterable[Sample]]
    ) -> None:
        """Tell of a family from now on.

        Args:
            meaning: one sentence for people.
            read: its values of now; called by the thread that drives the node's van, so quick.
        """
        self._families[name] = kind, meaning, read

    def facts(self) -> list[Any]:
        """All values, as msgpack types: [name, kind, meaning, [[labels, value], …]] each."""
        return [
            [name, kind, meaning, [[dict(labels), _packed(value)] for labels, value in read()]]
            for name, (kind, meaning, read) in self._families.items()
        ]


def _packed(value: float | Histogram) -> Any:
    return value.pack() if isinstance(value, Histogram) else value
