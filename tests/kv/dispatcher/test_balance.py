"""When a dispatcher is relieved, and when that is taken back: marks and hysteresis alone."""

from __future__ import annotations

import math
import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv.dispatcher.balance import MOST, Decision, Hysteresis, Reading
from kv.dispatcher.balance_config import BalanceConfig
from kv.dispatcher.balance_desk import BalanceDesk, Said
from van.errors import ConfigError

CONFIG = BalanceConfig(overflow=True, queue_high=100, queue_low=20)


class Relieved:
    """Somebody who is relieved in one step and takes that back in one."""

    def __init__(self, config: BalanceConfig = CONFIG) -> None:
        self.hysteresis, self.is_relieved = Hysteresis(config), False
        self.decided: list[float] = []
        self._config = config

    def look(self, now: float, queue: float) -> None:
        config = self._config
        self.hysteresis.look(now, [Reading("queue", queue, config.queue_low, config.queue_high)])
        if not self.is_relieved and self.hysteresis.is_relief_due(now):
            self.hysteresis.relieved(now)
        elif self.is_relieved and self.hysteresis.is_return_due(now):
            self.hysteresis.returned(now)
        else:
            return
        self.is_relieved = not self.is_relieved
        self.decided.append(now)


def looks(seconds: float) -> list[float]:
    return [
        number * CONFIG.check_interval for number in range(int(seconds / CONFIG.check_interval))
    ]


def test_a_load_above_the_high_mark_is_relieved_once_and_taken_back_when_it_is_calm() -> None:
    one = Relieved()

    for now in looks(100):
        one.look(now, 150 if now < 30 else 0)

    assert one.decided == [CONFIG.patience, 30 + CONFIG.calm]


def test_a_load_between_the_marks_changes_nothing() -> None:
    for begins in (0, 150):
        one = Relieved()
        for now in looks(1000):
            one.look(now, begins if now < 5 else 60)

        assert len(one.decided) == (begins > 0)


@pytest.mark.parametrize("mark", ["queue_low", "queue_high"])
@given(seed=st.integers(0, 2**32 - 1))
def test_a_load_that_swings_around_a_mark_decides_at_most_once(mark: str, seed: int) -> None:
    chance, one = random.Random(seed), Relieved()
    middle = getattr(CONFIG, mark)

    for now in looks(300):
        one.look(now, middle + chance.choice([-1, 1]) * chance.uniform(0, 10))

    assert len(one.decided) <= 1


@given(period=st.floats(1, 200), seed=st.integers(0, 2**32 - 1))
def test_a_load_that_swings_past_both_marks_decides_seldom(period: float, seed: int) -> None:
    chance, one = random.Random(seed), Relieved()
    seconds = 3600.0

    for now in looks(seconds):
        one.look(now, max(0.0, 75 + 75 * math.sin(2 * math.pi * now / period) + chance.gauss(0, 5)))

    gaps = [later - earlier for earlier, later in zip(one.decided, one.decided[1:], strict=False)]
    assert all(gap >= CONFIG.hold for gap in gaps)
    assert len(one.decided) <= 2 + 2 * seconds / CONFIG.calm


def test_a_load_that_comes_back_with_what_was_taken_back_is_left_alone_for_longer_and_longer() -> (
    None
):
    one = Relieved()

    for now in looks(3600):
        one.look(now, 0 if one.is_relieved else 150)

    waits = [b - a for a, b in zip(one.decided[::2], one.decided[1::2], strict=False)]
    assert waits[:6] == [
        CONFIG.calm * factor + CONFIG.check_interval for factor in (1, 2, 4, 8, 16, 16)
    ]
    assert len(one.decided) <= 2 * (5 + 3600 / (MOST * CONFIG.calm))


def said(**facts: float | tuple[tuple[int, float], ...]) -> Said:
    calm = {"queue": 0, "latency": 0.0, "high_for": -1.0, "low_for": 100.0, "calm": 10.0}
    return Said(**{**calm, "factor": 1, "spilled": (), **facts})  # type: ignore[arg-type]


def busy(*spilled: int, seconds: float = 60.0) -> Said:
    return said(
        queue=150, high_for=9.0, low_for=-1.0, spilled=tuple((rank, seconds) for rank in spilled)
    )


def test_workers_that_stay_away_get_the_dispatcher_with_the_most_room_and_come_home() -> None:
    desk = BalanceDesk(CONFIG, [0, 0, 1, 1, 2])

    first = desk.decide(0.0, {0: busy(0, 1), 1: said(queue=3), 2: said(queue=1)})
    assert first is not None
    assert (first.what, first.workers, first.to) == ("move", (0, 1), 2)
    assert desk.ways == {0: 2, 1: 2}

    calm = {0: said(), 1: said(), 2: said()}
    assert desk.decide(1.0, calm) is None  # hold
    found = [desk.decide(now, calm) for now in (10.0, 20.0, 30.0)]
    assert [one and (one.what, one.workers) for one in found] == [
        ("home", (0,)),
        ("home", (1,)),
        None,
    ]
    assert desk.ways == {}


def test_nobody_is_moved_early_nor_to_who_has_no_room() -> None:
    desk = BalanceDesk(CONFIG, [0, 0, 1, 1])

    assert desk.decide(0.0, {0: busy(0, seconds=1.0), 1: said()}) is None
    assert desk.decide(10.0, {0: busy(0), 1: busy(2)}) is None
    assert desk.decide(20.0, {0: busy(0), 1: said(factor=2)}) is None
    assert desk.decide(30.0, {0: busy(0)}) is None
    assert desk.decide(40.0, {0: said(spilled=((0, 60.0),)), 1: said()}) is None  # calm by now
    again = desk.decide(50.0, {0: said(spilled=((0, 60.0),), factor=2), 1: said()})
    assert again is not None
    assert again.what == "move"


def test_who_went_through_a_dispatcher_that_has_died_is_at_home_again() -> None:
    desk = BalanceDesk(CONFIG, [0, 0, 1, 1])
    desk.decide(0.0, {0: busy(0, 1), 1: said()})

    assert desk.died(1)
    assert desk.ways == {}
    assert not desk.died(1)


def test_a_decision_travels_and_says_its_cause() -> None:
    decision = Decision(3, "spill", "queue", 812.0, 500.0, "dispatcher 0", "dispatcher 0", (2, 5))

    assert Decision.unpack(decision.pack()) == decision
    assert str(decision) == "workers 2, 5 to go past dispatcher 0: queue 812, mark 500 (epoch 0)"


@pytest.mark.parametrize(
    ("wrong", "says"),
    [
        ({"queue_low": 500}, "queue_low: expected below queue_high = 500"),
        ({"calm": 0.0}, "calm: expected 100us or more"),
        ({"patience": -1.0}, "patience: expected 0 or more"),
        ({"when_busy": ("sparse",)}, "link_rate: when_busy needs it"),
    ],
)
def test_marks_that_make_no_sense_are_refused(wrong: dict[str, object], says: str) -> None:
    with pytest.raises(ConfigError, match=says):
        BalanceConfig(**wrong)  # type: ignore[arg-type]
