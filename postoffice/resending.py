"""When a message that nobody has answered is sent again.

Bookkeeping only: places of messages and the time go in, what is due comes out. The first look at a
message starts its clock, so that one which is answered soon never costs anything. The first wait
follows how long answers took lately, so that on a fast network a lost message costs little, and a
slow receiver is not asked twice; pulls, which a mode may hold, and all else are told apart. The
n-th wait lasts n times as long as the first. A large message gets the time that it needs to cross a
slow network on top, since it would only wait behind itself. Whoever answers that it has the request
(HELD) is reminded, each time after twice as long: only its later answer may get lost.

Sources: ps-lite, src/resender.h; here an answer is the acknowledgement. Jacobson, Karels,
Congestion avoidance and control, SIGCOMM 1988, for waits that follow the round trip; where it is
not known which of several copies was answered, the first is assumed here, but the wait becomes only
as long as that took, not twice: else losses alone would lengthen all waits.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

from van.message import Flag, Message

Place = tuple[int, int, int]
"""Timestamp, recipient and piece: what an answer names its request by."""

_FADING = 0.9  # of what is remembered of slow answers, with each request


@dataclass(frozen=True, kw_only=True)
class Resend:
    """How patient a node is."""

    timeout: float = 1.0  # seconds before the first resend at most; the n-th wait is n times that
    shortest: float = 0.1  # seconds before the first resend at least
    longest: float = 30.0  # seconds that no such wait exceeds
    reminder: float = 30.0  # seconds between repeats of what the receiver holds, at most
    nbytes_per_second: float = 16 << 20  # of a slow network

    @property
    def tick(self) -> float:
        """Seconds between two looks."""
        return min(self.timeout / 4, self.shortest / 2)


@dataclass(slots=True)
class _Timing:
    sends: int
    due: float
    begun: float  # when it was first looked at
    is_pull: bool
    holds: int = 0  # how often its receiver has said that it has it


class Resending:
    """The times of one customer's messages."""

    def __init__(self, settings: Resend) -> None:
        self.settings = settings
        self._times: dict[Place, _Timing] = {}
        # Seconds, by the slowest answers lately: for what does not pull, and for pulls.
        self._usual = [settings.timeout] * 2
        self._made = 0

    def patience(self, is_pull: bool) -> float:
        """Seconds before a small message is sent again for the first time."""
        settings = self.settings
        usual = self._usual[is_pull] + settings.tick
        return min(max(usual, settings.shortest), settings.timeout)

    def _learn(self, timing: _Timing, now: float) -> None:
        """It was answered since the last look."""
        took = now - timing.begun
        if timing.sends == 1:
            took *= 2
        usual = max(took, self._usual[timing.is_pull] * _FADING)
        self._usual[timing.is_pull] = min(usual, self.settings.timeout)

    def due(
        self, waiting: Iterable[tuple[Place, Message]], now: float, made: int = 0
    ) -> list[Message]:
        """Those of the unanswered messages that are to be sent again at `now`.

        What is not among `waiting` any more is forgotten.

        Args:
            made: how many requests there have been; those that no look sees were answered soon.
        """
        fading = _FADING ** min(made - self._made, 100)
        self._made, self._usual = made, [usual * fading for usual in self._usual]
        known, self._times = self._times, {}
        found = []
        for place, message in waiting:
            timing = known.get(place)
            if timing is None:
                is_pull = bool(message.meta.flags & Flag.PULL)
                timing = _Timing(1, now + self._wait(1, message, is_pull), now, is_pull)
            elif timing.due <= now:
                timing.sends += 1
                timing.due = now + self._wait(timing.sends, message, timing.is_pull)
                found.append(message)
            self._times[place] = timing
        for place, timing in known.items():
            if place not in self._times:
                self._learn(timing, now)
        return found

    def hold(self, place: Place, now: float) -> None:
        """The receiver has it and will answer: remind it, ever more seldom."""
        known = self._times.get(place)
        holds = 0 if known is None else known.holds
        wait = min(self.settings.timeout * 2**holds, self.settings.reminder)
        self._put_off(place, 1, now, wait).holds = min(holds + 1, 16)

    def retry(self, place: Place, now: float) -> None:
        """The receiver could not take it yet: ask again soon, ever more slowly."""
        known = self._times.get(place)
        sends = 1 if known is None else known.sends
        wait = min(sends * self.settings.tick, self.settings.longest)
        self._put_off(place, sends, now, wait)

    def _put_off(self, place: Place, sends: int, now: float, wait: float) -> _Timing:
        timing = self._times.get(place)
        if timing is None:
            timing = self._times[place] = _Timing(sends, now + wait, now, False)
        else:
            timing.sends, timing.due = sends, now + wait
        return timing

    def hurry(self, now: float) -> None:
        """Others live now than before: whatever waits is due, and starts from the beginning."""
        for timing in self._times.values():
            timing.sends, timing.due = 1, now

    def _wait(self, sends: int, message: Message, is_pull: bool) -> float:
        patience = min(sends * self.patience(is_pull), self.settings.longest)
        return patience + message.nbytes / self.settings.nbytes_per_second
