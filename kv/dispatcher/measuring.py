"""What a dispatcher measures of itself: what waits, and how long sums take.

    pslite_dispatcher_queue              pushes that wait, by table
    pslite_aggregation_latency_seconds   from closing a buffer until its sum is on its way, by table

A push to several tables counts under all their names, joined by `+`: it waits once.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Iterator

from kv.dispatcher.buffers import Buffer, Pairs
from kv.dispatcher.known_tables import KnownTables
from postoffice.metrics import Histogram, Metrics, Sample

BUCKETS = (0.0005, 0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
"""Seconds: a sum of a few small pushes takes under a millisecond, a stuck one many seconds."""

Group = tuple[int, ...]
"""Ids of the tables of a push."""


class Measures:
    """The metrics of one dispatcher; its lock is held by who calls, but for `offer`.

    Args:
        pairs: its buffers.
        tables: that it knows.
        now: the time in seconds.
    """

    def __init__(self, pairs: Pairs, tables: KnownTables, now: Callable[[], float]) -> None:
        self._pairs, self._tables, self._now = pairs, tables, now
        self._latency: dict[Group, Histogram] = {}
        self._longest = 0.0  # since `longest` was last asked

    def offer(self, metrics: Metrics) -> None:
        """Let others ask for them."""
        metrics.offer(
            "pslite_dispatcher_queue",
            "gauge",
            "Pushes of workers that this dispatcher has not sent on.",
            self._queue,
        )
        metrics.offer(
            "pslite_aggregation_latency_seconds",
            "histogram",
            "Seconds from closing a buffer of pushes until their sum is on its way to servers.",
            lambda: [(self._label(group), found) for group, found in list(self._latency.items())],
        )

    def summed(self, buffer: Buffer) -> None:
        """The sum of a buffer is on its way."""
        group = buffer.shards[0].tables
        latency = self._latency.get(group)
        if latency is None:
            latency = self._latency[group] = Histogram(BUCKETS)
        seconds = self._now() - buffer.closed
        latency.observe(seconds)
        self._longest = max(self._longest, seconds)

    def waiting(self) -> Counter[int]:
        """Pushes that were not sent on, by rank of their worker."""
        return Counter(shard.rank for buffer in self._buffers() for shard in buffer.shards)

    def _buffers(self) -> Iterator[Buffer]:
        for pair in self._pairs:
            yield pair.filling
            if pair.leaving is not None:
                yield pair.leaving

    def longest(self) -> float:
        """The longest latency since this was last asked; a sum under way counts with its age."""
        now, longest, self._longest = self._now(), self._longest, 0.0
        ages = [now - pair.leaving.closed for pair in self._pairs if pair.leaving is not None]
        return max([longest, *ages])

    @property
    def mean(self) -> float | None:
        """Seconds, of all sums; None: there were none."""
        count = sum(found.count for found in self._latency.values())
        return sum(found.sum for found in self._latency.values()) / count if count else None

    def _queue(self) -> Iterable[Sample]:
        waiting: Counter[Group] = Counter(dict.fromkeys(self._latency, 0))
        for buffer in self._buffers():
            waiting.update(shard.tables for shard in list(buffer.shards))
        return [(self._label(group), float(count)) for group, count in waiting.items()]

    def _label(self, group: Group) -> dict[str, str]:
        return {"table": "+".join(table.spec.name for table in self._tables.named(group))}
