"""What each slot remembers of the pushes applied to it.

A push is recognised per slot, so that one cut differently after a change of owner still counts
once: when a slot moves, what is remembered of it moves along (`export`, `adopt`). What must be
remembered is bounded by the makers: each request carries its maker's oldest unanswered timestamp,
the watermark, and a push below it has its answer, so a copy of it is late and means nothing.

The watermark is a fact about the maker and therefore kept once a stream; per slot there is one byte
for each timestamp from the watermark on. Of each sender only the latest life is remembered: what
comes from a former one is refused.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kv.requests.errors import WindowFullError
from kv.requests.messages import Failure
from kv.requests.signature import Signature, Stream
from kv.requests.slots import Slots

LIMIT = 1024
"""How far a maker may run ahead of its oldest unanswered request."""

UNSEEN, APPLIED, FAILED = 0, 1, 2


@dataclass
class Window:
    """One stream: its watermark, by timestamp one byte a slot, and why those failed that did."""

    watermark: int = 0
    rows: dict[int, NDArray[np.uint8]] = field(default_factory=dict)
    failures: dict[int, Failure] = field(default_factory=dict)

    def advance(self, oldest: int) -> None:
        if oldest > self.watermark:
            self.watermark = oldest
            for timestamp in [t for t in self.rows if t < oldest]:
                self.forget(timestamp)

    def row(self, timestamp: int, num_slots: int) -> NDArray[np.uint8]:
        if timestamp not in self.rows:
            self.rows[timestamp] = np.zeros(num_slots, np.uint8)
        return self.rows[timestamp]

    def forget(self, timestamp: int) -> None:
        del self.rows[timestamp]
        self.failures.pop(timestamp, None)

    def adopt(self, slot: int, num_slots: int, applied: list[int], failed: list[Any]) -> None:
        for timestamp in applied:
            if timestamp >= self.watermark:
                self.row(timestamp, num_slots)[slot] = APPLIED
        for timestamp, *failure in failed:
            if timestamp >= self.watermark:
                self.row(timestamp, num_slots)[slot] = FAILED
                self.failures[timestamp] = Failure(*failure)

    def export(self, slot: int) -> list[Any]:
        """[watermark, timestamps applied, [timestamp, *failure] of those that failed]."""
        applied = [t for t, row in self.rows.items() if row[slot] == APPLIED]
        failed = [[t, *self.failures[t]] for t, row in self.rows.items() if row[slot] == FAILED]
        return [self.watermark, applied, failed]


class Windows:
    """Which pushes each slot has had.

    Args:
        num_slots: slots are 0 … num_slots - 1.
        limit: timestamps from the watermark on that a stream may use.
    """

    def __init__(self, num_slots: int, limit: int = LIMIT) -> None:
        self.num_slots, self.limit = num_slots, limit
        self._streams: dict[tuple[int, int, int, int], Window] = {}  # by Stream
        self._floors: dict[int, int] = {}  # sender -> lowest incarnation that is heard

    def is_former(self, signature: Signature) -> bool:
        """Whether the request comes from a life that is over: fenced, or followed by another."""
        return signature.incarnation < self._floors.get(signature.sender, 0)

    def is_past(self, signature: Signature) -> bool:
        """Whether its maker has the answer already (or gave up), so that this is a late copy."""
        window = self._streams.get(signature[:4])
        return window is not None and signature.timestamp < window.watermark

    def is_beyond(self, signature: Signature, oldest: int) -> bool:
        """Whether the maker runs further ahead than it may."""
        return signature.timestamp >= oldest + self.limit

    def meet(self, signature: Signature, oldest: int) -> bool:
        """Note a maker's life and watermark. Returns whether this ended a former life of it."""
        window = self._streams.get(signature[:4])
        if window is not None:
            window.advance(oldest)
            return False
        if self.is_former(signature):
            return False
        ended = self._raise_floor(signature.sender, signature.incarnation)
        self._streams[signature.stream] = Window(oldest)
        return ended

    def fence(self, sender: int, incarnation: int) -> bool:
        """Refuse `sender` up to this life from now on. Returns whether that is news."""
        return self._raise_floor(sender, incarnation + 1)

    def knows(self, signature: Signature) -> bool:
        """Whether `fresh` could say no to any slot."""
        window = self._streams.get(signature[:4])
        if window is None:
            return self.is_former(signature)
        return signature.timestamp < window.watermark or signature.timestamp in window.rows

    def fresh(self, signature: Signature, slots: Slots) -> NDArray[np.bool_]:
        """Which of `slots` the push may still be applied to: bool (len(slots),)."""
        if self.is_former(signature) or self.is_past(signature):
            return np.zeros(slots.size, np.bool_)
        return np.equal(self._states(signature, slots), UNSEEN)

    def failure(self, signature: Signature, slots: Slots) -> Failure | None:
        """Why the push failed on some of `slots`; None: it did not."""
        window = self._streams.get(signature[:4])
        failure = window.failures.get(signature.timestamp) if window else None
        return failure if failure and (self._states(signature, slots) == FAILED).any() else None

    def record(
        self,
        signature: Signature,
        slots: Slots,
        oldest: int,
        failure: Failure | None = None,
    ) -> None:
        """Remember that the push was applied to `slots`, or with `failure` failed for good.

        What no copy can come of is not kept: pushes of former lives and below the watermark.

        Raises:
            WindowFullError: the maker runs too far ahead.
        """
        self.meet(signature, oldest)
        window = self._streams.get(signature[:4])
        if window is None or signature.timestamp < window.watermark or not slots.size:
            return
        if self.is_beyond(signature, window.watermark):
            raise WindowFullError(window.watermark, signature.timestamp, self.limit)
        window.row(signature.timestamp, self.num_slots)[slots] = FAILED if failure else APPLIED
        if failure is not None:
            window.failures[signature.timestamp] = failure

    def export(self, slot: int) -> dict[str, Any]:
        """What goes with `slot` to its next owner or into a checkpoint: plain msgpack types."""
        return {
            "floors": [list(item) for item in self._floors.items()],
            "streams": [[*stream, *w.export(slot)] for stream, w in self._streams.items()],
        }

    def adopt(self, slot: int, blob: dict[str, Any]) -> bool:
        """Take over what `export` gave. Returns whether that ended a former life of any sender.

        Watermarks and incarnations only rise; what was remembered of the slot from an earlier
        stay here is replaced, since its rows are.
        """
        self.forget(slot)
        ended = [self._raise_floor(sender, floor) for sender, floor in blob["floors"]]
        for *names, watermark, applied, failed in blob["streams"]:
            stream = Stream(*names)
            self.meet(stream.at(0), watermark)
            window = self._streams.get(stream)
            if window is not None:  # else a life that is known here to be over
                window.adopt(slot, self.num_slots, applied, failed)
        return any(ended)

    def forget(self, slot: int) -> None:
        """Drop what is remembered of `slot`, which has left."""
        for window in self._streams.values():
            for timestamp in [t for t, row in window.rows.items() if row[slot]]:
                window.rows[timestamp][slot] = UNSEEN
                if not window.rows[timestamp].any():
                    window.forget(timestamp)

    def __len__(self) -> int:
        """How many (stream, timestamp) rows of `num_slots` bytes are kept."""
        return sum(len(window.rows) for window in self._streams.values())

    def validate(self) -> None:
        """Raise AssertionError if the bookkeeping contradicts itself."""
        for stream, window in self._streams.items():
            sender, life, *_ = stream
            assert life >= self._floors.get(sender, 0), f"{stream} is over"
            for timestamp, row in window.rows.items():
                assert window.watermark <= timestamp < window.watermark + self.limit, stream
                assert row.any(), f"{stream}@{timestamp} remembers nothing"
                assert row.max() <= FAILED, f"{stream}@{timestamp}"
                if row.max() == FAILED:
                    assert timestamp in window.failures, (
                        f"{stream}@{timestamp} failed without reason"
                    )
            assert set(window.failures) <= set(window.rows), f"{stream}: failures outlive pushes"

    def _states(self, signature: Signature, slots: Slots) -> NDArray[np.uint8]:
        window = self._streams.get(signature[:4])
        row = window.rows.get(signature.timestamp) if window else None
        return np.zeros(slots.size, np.uint8) if row is None else row[slots]

    def _raise_floor(self, sender: int, incarnation: int) -> bool:
        if incarnation <= self._floors.get(sender, 0):
            return False
        self._floors[sender] = incarnation
        for stream in [s for s in self._streams if s[0] == sender and s[1] < incarnation]:
            del self._streams[stream]
        return True
