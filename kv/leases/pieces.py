"""A data set as the lease desk sees it: numbered records, in ranges; and sets of ranges.

Records have positions 0 to n - 1 within an epoch. What a position means, the order of an epoch for
instance, is the reading program's business, as long as all workers mean the same.
"""

from __future__ import annotations

import bisect
import itertools
from collections.abc import Iterable, Iterator
from dataclasses import asdict, dataclass, fields
from typing import Any

from kv.errors import LeaseError

MOST = 1 << 62  # records of all epochs together
MOST_SPANS = 200_000  # epochs times parts: the scheduler has all of them in memory
LONGEST_NAME = 200


@dataclass(frozen=True, kw_only=True)
class DataSet:
    """What all workers must say alike of a data set.

    Raises:
        LeaseError: a value is out of range.
    """

    name: str
    records: int  # in one epoch
    epochs: int = 1
    unit: int = 1  # records of a batch: pieces begin at multiples of it
    grain: int = 1  # records that are read at once, such as a row group: pieces like to end there
    parts: int = 1  # 1: a piece is for any worker; W: each unit has a part for each of W workers

    def __post_init__(self) -> None:
        if not isinstance(self.name, str) or not 0 < len(self.name) <= LONGEST_NAME:
            raise LeaseError(f"a data set's name is a text, not {self.name!r}")
        least = {"records": 0, "epochs": 0, "unit": 1, "grain": 1, "parts": 1}
        for key, low in least.items():
            value = getattr(self, key)
            if type(value) is not int or not low <= value <= MOST:
                raise LeaseError(f"{key} of {self.name} is a whole number >= {low}, not {value!r}")
        if self.epochs * self.parts > MOST_SPANS or self.epochs * self.records > MOST:
            raise LeaseError(
                f"{self.name}: {self.epochs} epochs of {self.records} records in {self.parts} "
                f"part(s) are more than the job can keep account of ({MOST_SPANS} epochs times "
                f"parts, {MOST} records); read fewer epochs, each so many under a name of its own"
            )

    def pack(self) -> dict[str, Any]:
        """As msgpack and JSON types."""
        return asdict(self)

    @staticmethod
    def unpack(packed: Any) -> DataSet:
        """The inverse of `pack`; raises LeaseError on anything else."""
        known = {field.name for field in fields(DataSet)}
        if not isinstance(packed, dict) or packed.keys() != known:
            raise LeaseError(f"{packed!r} describes no data set")
        return DataSet(**packed)

    def records_of(self, span: Span) -> int:
        """How many records the span's part has, of those in the span."""
        if self.parts == 1:
            return span.stop - span.start
        whole, rest = divmod(span.stop - span.start, self.unit)
        return whole * self._part_of(self.unit, span.part) + self._part_of(rest, span.part)

    def _part_of(self, size: int, part: int) -> int:
        return (part + 1) * size // self.parts - part * size // self.parts

    def spans(self) -> Iterator[Span]:
        """All there is to do, by epoch and part."""
        for epoch in range(1, self.epochs + 1):
            for part in range(self.parts):
                if self.records:
                    yield Span(epoch, part, 0, self.records)


@dataclass(frozen=True, order=True, slots=True)
class Span:
    """Positions `start` to `stop` of a part of an epoch; epochs count from 1, parts from 0."""

    epoch: int
    part: int
    start: int
    stop: int

    def pack(self) -> list[int]:
        """As msgpack and JSON types."""
        return [self.epoch, self.part, self.start, self.stop]

    @staticmethod
    def unpack(packed: Any) -> Span:
        """The inverse of `pack`; raises LeaseError on anything else."""
        if (
            not isinstance(packed, list | tuple)
            or len(packed) != 4
            or any(type(number) is not int for number in packed)
            or not 0 <= packed[2] < packed[3]
        ):
            raise LeaseError(f"{packed!r} is no span of records")
        return Span(*packed)


class Spans:
    """A set of records as disjoint spans, neighbours merged, in order of epoch, part, start."""

    def __init__(self, spans: Iterable[Span] = ()) -> None:
        self._spans: list[Span] = []
        for span in spans:
            self.add(span)

    def __iter__(self) -> Iterator[Span]:
        return iter(self._spans)

    def __len__(self) -> int:
        return len(self._spans)

    def overlap(self, span: Span) -> Span | None:
        """Some records of `span` that are in the set already, or None."""
        place = bisect.bisect_left(self._spans, Span(span.epoch, span.part, span.stop, 0))
        if place:
            before = self._spans[place - 1]
            if (before.epoch, before.part) == (span.epoch, span.part) and before.stop > span.start:
                low, high = max(span.start, before.start), min(span.stop, before.stop)
                return Span(span.epoch, span.part, low, high)
        return None

    def add(self, span: Span) -> None:
        """Put in records that are not in it."""
        assert self.overlap(span) is None, f"{span} is there already"
        place = bisect.bisect_left(self._spans, span)
        if place < len(self._spans) and _follows(span, self._spans[place]):
            after = self._spans.pop(place)
            span = Span(span.epoch, span.part, span.start, after.stop)
        if place and _follows(self._spans[place - 1], span):
            before = self._spans.pop(place - 1)
            span = Span(span.epoch, span.part, before.start, span.stop)
            place -= 1
        self._spans.insert(place, span)

    def take(self, span: Span) -> None:
        """Take out records that are all in it, next to each other."""
        place = bisect.bisect_right(self._spans, Span(span.epoch, span.part, span.start, MOST)) - 1
        around = self._spans.pop(place) if place >= 0 else None
        assert around is not None, f"{span} is not there"
        assert (around.epoch, around.part) == (span.epoch, span.part), f"{span} is not there"
        assert around.start <= span.start, f"{span} is not there"
        assert span.stop <= around.stop, f"{span} is not there"
        for start, stop in ((span.stop, around.stop), (around.start, span.start)):
            if start < stop:
                self._spans.insert(place, Span(span.epoch, span.part, start, stop))

    def has(self, span: Span) -> bool:
        """Whether all records of `span` are in the set."""
        place = bisect.bisect_right(self._spans, Span(span.epoch, span.part, span.start, MOST)) - 1
        if place < 0:
            return False
        around = self._spans[place]
        is_there = (around.epoch, around.part) == (span.epoch, span.part)
        return is_there and around.start <= span.start and span.stop <= around.stop

    def first(self, part: int) -> Span | None:
        """The first span of a part, or None."""
        return next((span for span in self._spans if span.part == part), None)

    def validate(self) -> None:
        """Check order and disjointness."""
        for one, other in itertools.pairwise(self._spans):
            assert one < other
            assert not _follows(one, other), "neighbours are merged"
            if (one.epoch, one.part) == (other.epoch, other.part):
                assert one.stop < other.start


def _follows(one: Span, other: Span) -> bool:
    return (one.epoch, one.part, one.stop) == (other.epoch, other.part, other.start)


@dataclass(frozen=True, slots=True)
class Piece:
    """A span of a data set under a number, which no other piece of the data set has.

    `records` is how many the piece counts: all from `start` to `stop`, or its part of them.
    """

    number: int
    span: Span
    records: int

    @property
    def epoch(self) -> int:
        """From 1."""
        return self.span.epoch

    @property
    def start(self) -> int:
        """Position of its first record in the epoch."""
        return self.span.start

    @property
    def stop(self) -> int:
        """Position after its last record."""
        return self.span.stop

    def pack(self) -> list[int]:
        """As msgpack and JSON types."""
        return [self.number, self.records, *self.span.pack()]

    @staticmethod
    def unpack(packed: Any) -> Piece:
        """The inverse of `pack`; raises LeaseError on anything else."""
        if not isinstance(packed, list | tuple) or len(packed) != 6:
            raise LeaseError(f"{packed!r} is no piece")
        number, records, *span = packed
        if type(number) is not int or type(records) is not int:
            raise LeaseError(f"{packed!r} is no piece")
        return Piece(number, Span.unpack(span), records)
