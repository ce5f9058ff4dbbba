"""Looking before sleeping: as long as it helps and nobody else wants the core."""

import os

import pytest

from van.config import VanConfig
from van.cores import step_aside, times_put_off
from van.errors import ConfigError
from van.spinning import Spinning

WINDOW = 1e-4
TRIP = 8e-5  # seconds of a short wait


def test_looks_that_find_something_go_on_for_ever():
    spinning = Spinning(WINDOW)
    steps = []

    for number in range(10_000):
        assert spinning.window(TRIP * number) == WINDOW
        steps.append(spinning.note(TRIP * (number + 1), TRIP, True, lambda: 3))

    assert not any(steps)


def test_looks_in_vain_are_a_small_part_of_the_time():
    spinning, now, looked = Spinning(WINDOW), 0.0, 0.0

    while now < 20.0:
        looking = spinning.window(now)
        now += 1e-3
        looked += looking
        if looking:
            spinning.note(now, 1e-3, False, lambda: 0)

    assert 0 < looked < 0.01 * now


def test_a_window_of_nothing_never_looks():
    assert not any(Spinning(0.0).window(now) for now in (0.0, 1.0, 1e9))


def test_who_is_put_off_its_core_again_and_again_steps_aside_and_then_rests():
    spinning, now = Spinning(WINDOW), 0.0
    found = []

    for number in range(400):
        now += 1e-3
        if spinning.window(now):
            found.append(spinning.note(now, TRIP, True, lambda n=number: n))

    assert found.index(True) == 8
    assert len(found) < 100


def test_who_is_put_off_now_and_then_goes_on():
    spinning = Spinning(WINDOW)

    for number in range(1000):
        assert spinning.window(0.05 * number) == WINDOW
        assert not spinning.note(0.05 * number, TRIP, True, lambda n=number: n)


def test_what_comes_as_soon_as_one_sleeps_is_a_reason_to_step_aside():
    spinning = Spinning(WINDOW)

    assert spinning.note(1.0, 2 * WINDOW, False, lambda: 0)
    assert not spinning.note(1.001, 2 * WINDOW, False, lambda: 0)


def test_after_a_rest_it_is_tried_again_and_rests_grow_until_all_is_well():
    spinning, now, ends = Spinning(WINDOW), 0.0, []

    for _ in range(5):
        while spinning.window(now):
            spinning.note(now, 1.0, False, lambda: 0)
        begun = now
        while not spinning.window(now):
            now += 1e-2
        ends.append(round(now - begun, 1))
    now += 5.0
    while spinning.window(now):
        spinning.note(now, 1.0, False, lambda: 0)

    assert ends == [0.1, 0.2, 0.4, 0.8, 1.6]
    assert spinning.window(now + 0.11)


def test_stepping_aside_leaves_the_cores_that_may_be_used_as_they_were():
    before = os.sched_getaffinity(0)

    step_aside()

    assert os.sched_getaffinity(0) == before
    assert times_put_off() >= 0


@pytest.mark.parametrize("spin", [-1e-6, 0.011, float("nan")])
def test_looking_for_longer_than_any_sleep_costs_is_refused(spin: float) -> None:
    with pytest.raises(ConfigError, match=r"spin: expected 0s to 10ms"):
        VanConfig(spin=spin)
