"""What has been read of a data set, as a checkpoint holds it: ranges of records of epochs.

A range counts only what all parts of it have been read, so that a job with any number of workers
can go on from there, whether its workers share batches or not. Of a piece that is not done, what
its holder has said to be pushed counts, up to a whole unit: all that is in a checkpoint.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator

from kv.errors import LeaseError
from kv.leases.pieces import DataSet, Span, Spans
from kv.leases.shards import DataShards, Lease

Ranges = list[list[int]]
"""[epoch, start, stop] each, disjoint and in order; msgpack and JSON types."""


def ranges_read(shards: DataShards) -> Ranges:
    """What all parts have read of a data set, done or seen."""
    read = Spans(shards.done)
    for lease in shards.leases.values():
        span = _seen(lease, shards.data)
        if span is not None:
            read.add(span)
    by_part: list[Ranges] = [[] for _ in range(shards.data.parts)]
    for span in read:
        by_part[span.part].append([span.epoch, span.start, span.stop])
    common, *others = by_part
    for other in others:
        common = list(_common(common, other))
    return common


def spans_of(data: DataSet, ranges: Iterable[Iterable[int]]) -> tuple[Span, ...]:
    """The spans of a data set, of all its parts, that ranges hold; epochs it has not are left out.

    Raises:
        LeaseError: these are no ranges, or they reach beyond the data set.
    """
    spans = Spans()
    for found in ranges:
        try:
            epoch, start, stop = found
        except (TypeError, ValueError):
            raise LeaseError(f"{found!r} is no range of records of {data.name}") from None
        whole = Span.unpack([epoch, 0, start, stop])
        if whole.stop > data.records:
            problem = f"of it {whole.stop} records were read, and it has {data.records}"
            raise LeaseError(f"data set {data.name}: {problem}; is it another one?")
        if 1 <= whole.epoch <= data.epochs:
            for part in range(data.parts):
                spans.add(Span(whole.epoch, part, whole.start, whole.stop))
    return tuple(spans)


def records_in(ranges: Iterable[Iterable[int]]) -> int:
    """How many records ranges hold.

    >>> records_in([[1, 0, 1000], [2, 0, 64]])
    1064
    """
    return sum(stop - start for _, start, stop in ranges)


def _seen(lease: Lease, data: DataSet) -> Span | None:
    """The beginning of a piece that its holder has pushed, to a multiple of units."""
    span = lease.piece.span
    stop = span.start + lease.seen
    if stop < span.stop:
        stop -= stop % data.unit
    return Span(span.epoch, span.part, span.start, stop) if stop > span.start else None


def _common(one: Ranges, other: Ranges) -> Iterator[list[int]]:
    """The overlaps of two lists of ranges."""
    mine, yours = iter(one), iter(other)
    a, b = next(mine, None), next(yours, None)
    while a is not None and b is not None:
        if a[0] == b[0] and max(a[1], b[1]) < min(a[2], b[2]):
            yield [a[0], max(a[1], b[1]), min(a[2], b[2])]
        if (a[0], a[2]) <= (b[0], b[2]):
            a = next(mine, None)
        else:
            b = next(yours, None)
