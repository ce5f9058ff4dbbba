"""How long a wait lasts that finds nothing: looks and sleeps together as long as it may."""

from __future__ import annotations

import pytest

import van.poller
from van.poller import Poller

LOOK = 1e-5  # seconds


class EmptyPolls:
    """Stands for epoll where nothing happens, and for the clock, which sleeps move."""

    def __init__(self) -> None:
        self.now, self.slept = 100.0, 0.0

    def monotonic(self) -> float:
        return self.now

    def poll(self, timeout: float, most: int) -> list[tuple[int, int]]:
        self.now += timeout or LOOK
        self.slept += timeout
        return []


@pytest.mark.parametrize("staying", [0.0, 5e-3])
@pytest.mark.parametrize(
    ("timeout", "looking", "slept"),
    [(0.05, 5e-4, 0.0495), (0.05, 0.0, 0.05), (2e-4, 5e-4, 0.0), (0.0, 0.0, 0.0)],
)
def test_looking_is_a_part_of_the_time_to_wait(
    monkeypatch: pytest.MonkeyPatch, timeout: float, looking: float, slept: float, staying: float
) -> None:
    poller, polls = Poller(), EmptyPolls()
    poller.close()
    poller._epoll = polls  # type: ignore[assignment]  (all that a wait asks of it)
    monkeypatch.setattr(van.poller, "time", polls)

    assert not poller.wait(timeout, looking, staying if looking else 0.0)

    assert polls.slept == pytest.approx(slept)
    assert polls.now - 100.0 <= timeout + 2 * LOOK
