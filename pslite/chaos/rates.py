"""How long the workers' step rate suffered, from what they said of their work.

A worker says with each heartbeat how many steps it has taken and how many requests it has made; a
program that ends no steps is measured by its requests. A worker started again counts from 0.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

ENOUGH = 0.8  # of the rate before: who has that again has recovered
WINDOW = 2.0  # seconds over which a rate is taken: two heartbeats
STRIDE = 0.25  # seconds between two windows
Sample = tuple[float, Mapping[str, Sequence[int]]]
"""A time, and (steps, requests) of each worker."""


@dataclass(frozen=True)
class Progress:
    """Work of all workers together by time, never going down; in steps or requests."""

    unit: str
    times: tuple[float, ...]
    done: tuple[float, ...]

    def at(self, time: float) -> float:
        """The work done until `time`, in between as if it had gone evenly."""
        times, done = self.times, self.done
        for i in range(1, len(times)):
            if time <= times[i]:
                share = (time - times[i - 1]) / (times[i] - times[i - 1])
                return done[i - 1] + max(0.0, share) * (done[i] - done[i - 1])
        return done[-1] if done else 0.0

    def rate(self, start: float, stop: float) -> float | None:
        """Work a second between two times; None where there is none between."""
        if stop <= start or len(self.times) < 2:
            return None
        return (self.at(stop) - self.at(start)) / (stop - start)


def progress_of(samples: Sequence[Sample]) -> Progress:
    """Add up what the workers said, in the order of time."""
    index = 0 if any(count[0] > 1 for _, work in samples for count in work.values()) else 1
    former: dict[str, int] = {}
    total = 0
    times: list[float] = []
    done: list[float] = []
    for time, work in samples:
        for worker, counts in work.items():
            count = counts[index]
            before = former.get(worker, 0)
            total += count - before if count >= before else count
            former[worker] = count
        if not times or time > times[-1]:
            times.append(time)
            done.append(float(total))
        else:
            done[-1] = float(total)
    return Progress("steps" if index == 0 else "requests", tuple(times), tuple(done))


@dataclass(frozen=True)
class Dent:
    """What a fault did to the rate, in steps or requests a second.

    Attributes:
        before: ahead of the first fault; None where too little was seen.
        lowest: in the worst `WINDOW` after this one.
        after: from its recovery on, or where there was none from the fault on.
        suffered: seconds from the fault until the rate was back; None if it never was.
    """

    before: float | None
    lowest: float | None = None
    after: float | None = None
    suffered: float | None = None


def dents(progress: Progress, faults: Sequence[float], end: float) -> list[Dent]:
    """What each of some faults did, by their times, which rise.

    Each is followed until the next one, or until `end`, when the first worker has done its part.
    """
    if not faults:
        return []
    before = progress.rate(_began(progress), min(faults[0], end))
    stops = [*faults[1:], end]
    return [_dent(progress, before, *stretch) for stretch in zip(faults, stops, strict=True)]


def _dent(progress: Progress, before: float | None, start: float, stop: float) -> Dent:
    starts = [start + STRIDE * i for i in range(max(0, int((stop - WINDOW - start) / STRIDE) + 1))]
    rates = [progress.rate(at, at + WINDOW) or 0.0 for at in starts]
    if not before or not rates:
        return Dent(before)
    enough = ENOUGH * before
    slow = next((i for i, rate in enumerate(rates) if rate < enough), None)
    if slow is None:
        return Dent(before, min(rates), progress.rate(start, stop), 0.0)
    # One good window may be chance: from there on it must be so on the whole, too.
    back = next(
        (
            i
            for i, rate in enumerate(rates)
            if i > slow and rate >= enough and (progress.rate(starts[i], stop) or 0.0) >= enough
        ),
        None,
    )
    if back is None:
        return Dent(before, min(rates), progress.rate(start, stop))
    return Dent(before, min(rates), progress.rate(starts[back], stop), starts[back] - start)


def _began(progress: Progress) -> float:
    """When work was first seen to be under way."""
    rising = (t for t, done in zip(progress.times, progress.done, strict=True) if done > 0)
    return next(rising, 0.0)
