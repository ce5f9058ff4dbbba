"""When a message that nobody has answered is sent again.

Bookkeeping only: places of messages and the time go in, what is due comes out. The first look at a
message starts its clock, so that one which is answered soon never costs anything. The n-th wait
lasts n times as long as the first. A large message gets the time that it needs to cross a slow
network on top, since it would only wait behind itself. Whoever answers that it has the request
(HELD) is reminded seldom: only its later answer may get lost.

Source: ps-lite, src/resender.h; here an answer is the acknowledgement.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from van.message import Message

Place = tuple[int, int, int]
"""Timestamp, recipient and piece: what an answer names its request by."""


@dataclass(frozen=True, kw_only=True)
class Resend:
    """How patient a node is."""

    timeout: float = 1.0  # seconds before the first resend; the n-th wait lasts n times as long
    longest: float = 30.0  # seconds that no such wait exceeds
    reminder: float = 30.0  # seconds between repeats of what the receiver holds
    nbytes_per_second: float = 16 << 20  # of a slow network

    @property
    def tick(self) -> float:
        """Seconds between two looks."""
        return self.timeout / 4


@dataclass(slots=True)
class _Timing:
    sends: int
    due: float


class Resending:
    """The times of one customer's messages."""

    def __init__(self, settings: Resend) -> None:
        self.settings = settings
        self._times: dict[Place, _Timing] = {}

    def due(self, waiting: Iterable[tuple[Place, Message]], now: float) -> list[Message]:
        """Those of the unanswered messages that are to be sent again at `now`.

        What is not among `waiting` any more is forgotten.
        """
        known, self._times = self._times, {}
        found = []
        for place, message in waiting:
            timing = known.get(place)
            if timing is None:
                timing = _Timing(1, now + self._wait(1, message))
            elif timing.due <= now:
                timing.sends += 1
                timing.due = now + self._wait(timing.sends, message)
                found.append(message)
            self._times[place] = timing
        return found

    def hold(self, place: Place, now: float) -> None:
        """The receiver has it and will answer: remind it seldom."""
        self._times[place] = _Timing(1, now + self.settings.reminder)

    def retry(self, place: Place, now: float) -> None:
        """The receiver could not take it yet: ask again soon, ever more slowly."""
        known = self._times.get(place)
        sends = 1 if known is None else known.sends
        wait = min(sends * self.settings.tick, self.settings.longest)
        self._times[place] = _Timing(sends, now + wait)

    def hurry(self, now: float) -> None:
        """Others live now than before: whatever waits is due, and starts from the beginning."""
        for timing in self._times.values():
            timing.sends, timing.due = 1, now

    def _wait(self, sends: int, message: Message) -> float:
        patience = min(sends * self.settings.timeout, self.settings.longest)
        return patience + message.nbytes / self.settings.nbytes_per_second
