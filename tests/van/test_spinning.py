"""Looking before sleeping: as long as it helps and nobody else wants the core."""

import os

import pytest

from van.config import VanConfig
from van.cores import on_this_core
from van.errors import ConfigError
from van.spinning import Spinning

WINDOW = 1e-4


def tried(window: float) -> Spinning:
    """One that knows how long it takes without looking: 2e-4 s."""
    spinning = Spinning(window)
    for number in range(1, 50):
        assert not spinning.window(2e-4 * number)
        spinning.note_slept(2e-4 * number)
    return spinning


def looked_share(spinning: Spinning, looking: float, sleeping: float, seconds: float) -> float:
    """The share of waits that look, where one after the other takes so long of each kind."""
    now, waits, looks = 0.0, 0, 0
    while now < seconds:
        waits += 1
        if spinning.window(now):
            looks += 1
            now += looking
            spinning.note_looked(now, True)
        else:
            now += sleeping
            spinning.note_slept(now)
    return looks / waits


def test_looks_that_make_it_faster_go_on() -> None:
    assert looked_share(Spinning(WINDOW), 1e-4, 2e-4, 20.0) > 0.95


def test_looks_that_make_it_slower_are_given_up() -> None:
    assert looked_share(Spinning(WINDOW), 3e-4, 2e-4, 20.0) < 0.02


def test_where_others_come_to_want_the_cores_looks_are_given_up() -> None:
    spinning = Spinning(WINDOW)

    assert looked_share(spinning, 1e-4, 2e-4, 5.0) > 0.9
    now = 5.0
    while spinning.window(now) or now < 5.1:
        now += 1e-3
        if spinning.window(now):
            spinning.note_looked(now, True)
        else:
            spinning.note_slept(now - 8e-4)
    assert now < 6.5


def test_looks_in_vain_are_a_small_part_of_the_time() -> None:
    spinning, now, looked = Spinning(WINDOW), 0.0, 0.0

    while now < 20.0:
        looking = spinning.window(now)
        now += 1e-3
        looked += looking
        if looking:
            spinning.note_looked(now, False)
        else:
            spinning.note_slept(now)

    assert 0 < looked < 0.01 * now


def test_a_window_of_nothing_never_looks() -> None:
    assert not any(Spinning(0.0).window(now) for now in (0.0, 1.0, 1e9))


def test_after_a_rest_it_is_tried_again_and_rests_grow_until_all_is_well() -> None:
    spinning, now, ends = tried(10 * WINDOW), 1.0, []

    def try_in_vain() -> None:
        nonlocal now
        while spinning.window(now):
            now += 0.03
            spinning.note_looked(now, False)

    for _ in range(7):
        try_in_vain()
        begun = now
        while not spinning.window(now):
            now += 1e-2
        ends.append(round(now - begun, 1))
    now += 5.0
    try_in_vain()

    assert ends == [0.1, 0.2, 0.4, 0.8, 1.6, 3.2, 3.2]
    assert spinning.window(now + 0.11)


def test_within_a_thread_stays_on_its_core_and_then_may_use_all_again() -> None:
    before = os.sched_getaffinity(0)

    with on_this_core():
        within = os.sched_getaffinity(0)

    assert len(within) == 1
    assert within <= before
    assert os.sched_getaffinity(0) == before


@pytest.mark.parametrize("spin", [-1e-6, 0.011, float("nan")])
def test_looking_for_longer_than_any_sleep_costs_is_refused(spin: float) -> None:
    with pytest.raises(ConfigError, match=r"spin: expected 0s to 10ms"):
        VanConfig(spin=spin)
