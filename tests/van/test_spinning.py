"""Looking before sleeping: as long as it helps and nobody else wants the core."""

import contextlib
import os
import signal
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from van.config import VanConfig
from van.cores import on_this_core, times_taken
from van.courier import ZmqVan
from van.errors import ConfigError
from van.poller import Poller
from van.spinning import Spinning

WINDOW = 1e-4
SAMPLE = 8 + 48  # waits of one kind that a comparison takes


def nobody_wants_it() -> tuple[int, int]:
    return 1, 0


class Waits:
    """Waits one after the other that take so long, of each kind; the work of `taken` is counted."""

    def __init__(
        self,
        looking: float,
        sleeping: float,
        helps: bool = True,
        taken: Callable[[], tuple[int, int]] = nobody_wants_it,
    ) -> None:
        self.looking, self.sleeping, self.helps = looking, sleeping, helps
        self.spinning, self.now, self.waits, self.looks = Spinning(WINDOW, taken), 0.0, 0, 0

    def once(self) -> bool:
        """One wait; whether it looked."""
        self.waits += 1
        began, looks = self.now, self.spinning.window(self.now) > 0
        self.looks += looks
        self.now += self.looking if looks else self.sleeping
        if looks:
            self.spinning.note_looked(began, self.now, self.helps)
        else:
            self.spinning.note_slept(self.now)
        return looks

    def until(self, now: float) -> float:
        """Wait until then; the share of waits that looked."""
        self.waits = self.looks = 0
        while self.now < now:
            self.once()
        return self.looks / self.waits

    def rests(self, count: int) -> list[float]:
        """So many times in which it does not look, in tenths of a second."""
        found = []
        for _ in range(count):
            while self.once():
                pass
            begun = self.now
            while not self.once():
                pass
            found.append(round(self.now - begun, 1))
        return found


def test_looks_that_make_it_faster_go_on_and_few_waits_sleep_to_compare() -> None:
    assert Waits(1e-4, 2e-4).until(60.0) > 0.995


def test_looks_that_make_it_slower_are_given_up() -> None:
    assert Waits(3e-4, 2e-4).until(20.0) < 0.05


def test_where_others_come_to_want_the_cores_looks_are_given_up() -> None:
    waits = Waits(1e-4, 2e-4)
    assert waits.until(5.0) > 0.9

    waits.looking = 8e-4

    assert waits.until(25.0) < 0.05


def test_one_comparison_is_enough_where_the_kernel_says_so_too() -> None:
    counts = iter(range(0, 10_000_000, 20))
    wanted = Waits(3e-4, 2e-4, taken=lambda: (1, next(counts)))
    other = Waits(3e-4, 2e-4)

    assert wanted.rests(1) == [0.0], "it compares first"
    assert other.rests(1) == [0.0]
    assert wanted.rests(4) == [0.4, 0.8, 1.6, 3.2]
    assert other.rests(2) == [0.0, 0.4], "it compares once more"


def test_what_the_kernel_counts_of_another_thread_says_nothing() -> None:
    counts = iter(range(0, 10_000_000, 20))
    waits = Waits(3e-4, 2e-4, taken=lambda: (next(counts), next(counts)))

    assert waits.rests(3) == [0.0, 0.0, 0.4]


def test_what_only_the_first_of_two_comparisons_says_is_not_believed() -> None:
    """The other side slept meanwhile, to compare."""
    waits = Waits(3e-4, 2e-4)
    for number in range(2 * SAMPLE):
        assert waits.once() == (number >= SAMPLE)
    waits.looking = 1e-4
    for number in range(2 * SAMPLE):
        assert waits.once() == (number >= SAMPLE), "it compares once more"

    assert all(waits.once() for _ in range(4000))


def test_a_hiccup_of_the_machine_ends_no_looking() -> None:
    waits = Waits(1e-4, 2e-4)

    looks = 0
    for number in range(20_000):
        waits.looking = 4e-3 if number % 1000 == 10 else 1e-4
        looks += waits.once()

    assert looks > 18_000


def test_what_takes_longer_than_it_did_is_compared_at_once() -> None:
    waits = Waits(1e-4, 2e-4)
    waits.until(20.0)
    while not waits.once():
        pass

    waits.looking, changed = 3e-4, waits.now
    while waits.once():
        pass

    assert waits.now - changed < 0.1


def test_looks_in_vain_are_a_small_part_of_the_time() -> None:
    waits = Waits(1e-3, 1e-3, helps=False)

    looked = waits.until(20.0) * WINDOW / 1e-3

    assert 0 < looked < 0.01


def test_looks_in_waits_that_are_much_longer_go_on() -> None:
    assert Waits(0.03, 0.03, helps=False).until(60.0) > 0.9


def test_after_looks_in_vain_it_is_tried_again_soon() -> None:
    waits = Waits(1e-3, 1e-3, helps=False)

    assert waits.rests(6) == [0.1, 0.1, 0.2, 0.4, 0.4, 0.4]


def test_after_a_calm_time_the_first_rest_is_short_again() -> None:
    waits = Waits(1e-3, 1e-3, helps=False)
    waits.rests(5)
    waits.looking, waits.helps = 2e-4, True
    waits.until(waits.now + 5.0)

    waits.looking, waits.helps = 1e-3, False

    assert waits.rests(2) == [0.1, 0.1], "a comparison, and a first rest"


def looks_until_it_sleeps(waits: Waits) -> int:
    while not waits.once():
        pass
    count = 1
    while waits.once():
        count += 1
    return count


def test_after_a_rest_few_looks_in_vain_are_enough() -> None:
    waits = Waits(1e-3, 1e-3, helps=False)

    first, *later = [looks_until_it_sleeps(waits) for _ in range(3)]

    assert first >= 100
    assert later == [20, 20]


def test_a_comparison_ends_early_where_looking_is_hopeless() -> None:
    assert looks_until_it_sleeps(Waits(4e-3, 1e-4)) < 15
    assert looks_until_it_sleeps(Waits(1.5e-4, 1e-4)) == SAMPLE


def test_a_comparison_ends_early_where_others_want_the_core() -> None:
    counts = iter(range(0, 10_000_000, 20))

    assert looks_until_it_sleeps(Waits(1.5e-4, 1e-4, taken=lambda: (1, next(counts)))) == 8 + 24


def test_a_hiccup_among_the_sleeps_makes_no_look_seem_good() -> None:
    waits = Waits(1.6e-4, 1e-4)

    for number in range(SAMPLE):
        waits.sleeping = 4.9e-3 if number == 40 else 1e-4
        assert not waits.once()
    for _ in range(SAMPLE):
        assert waits.once()

    assert not waits.once(), "it compares once more"


def test_comparisons_lost_now_and_then_are_not_added_up() -> None:
    waits = Waits(1e-4, 2e-4)

    for _ in range(4):
        waits.looking = 3e-4  # the other side compares, too
        assert looks_until_it_sleeps(waits) == SAMPLE
        waits.looking, began = 1e-4, waits.now
        while not waits.once():
            pass
        assert waits.now - began < 0.1, "that was no rest"
        assert looks_until_it_sleeps(waits) > 1000


def test_sleeps_of_those_who_were_idle_are_compared_with_nothing() -> None:
    waits = Waits(1e-4, 6e-3)
    for _ in range(2):
        assert looks_until_it_sleeps(waits) == SAMPLE

    waits.sleeping, began = 2e-4, waits.now
    while not waits.once():
        pass

    assert waits.now - began < 0.1, "that was no rest"
    assert all(waits.once() for _ in range(1000))


def test_a_window_of_nothing_never_looks() -> None:
    spinning = Spinning(0.0, nobody_wants_it)

    assert not any(spinning.window(now) for now in (0.0, 1.0, 1e9))


def test_after_a_wait_without_anything_nobody_looks_until_something_comes() -> None:
    waits = Waits(1e-4, 2e-4)
    while not waits.once():
        pass
    assert waits.once()

    waits.spinning.note_idle()

    assert not waits.once()
    assert waits.once(), "something has come"


def test_sleeps_after_a_wait_without_anything_are_no_part_of_a_comparison() -> None:
    waits = Waits(1e-4, 2e-4)

    for _ in range(SAMPLE):
        waits.spinning.note_idle()
        assert not waits.once()

    assert [waits.once() for _ in range(SAMPLE + 1)] == [False] * SAMPLE + [True]


def test_who_looks_for_long_offers_the_core_to_others(monkeypatch: pytest.MonkeyPatch) -> None:
    """The one it waits for may have been woken on that core, and would wait for the look to end."""
    offers: list[float] = []
    monkeypatch.setattr(os, "sched_yield", lambda: offers.append(time.monotonic()))
    poller = Poller()

    began = time.monotonic()
    is_early = poller.wait(5e-3, looking=4e-3)

    assert is_early is None, "nothing came"
    assert len(offers) > 10
    assert offers[0] - began > 20e-6, "it comes soon, or not so soon"
    offers.clear()
    poller.wake()
    assert poller.wait(5.0, looking=4e-3)
    assert not offers
    poller.close()


def test_a_wait_that_sleeps_says_whether_something_came() -> None:
    poller = Poller()

    assert poller.wait(2e-3) is None
    assert poller.wait(2e-3, looking=1e-4, staying=1e-3) is None
    poller.wake()
    assert poller.wait(5.0) is False
    poller.close()


def test_a_node_that_only_its_timers_wake_does_not_look(monkeypatch: pytest.MonkeyPatch) -> None:
    looks: list[float] = []
    wait = Poller.wait

    def noting(self: Poller, timeout: float, looking: float = 0.0, staying: float = 0.0) -> Any:
        looks.append(looking)
        return wait(self, timeout, looking, staying)

    monkeypatch.setattr(Poller, "wait", noting)
    van = ZmqVan(VanConfig(transport="tcp"), background=False)
    van.bind("tcp://127.0.0.1:0")
    van.connect(8, "tcp://127.0.0.1:9")
    van._ends._spinning._sleeps = 0  # it looks from the start on
    van.every(5e-3, lambda: None)

    van.wait(lambda: False, 0.2)

    van.close(0)
    assert len(looks) > 10
    assert sum(look > 0 for look in looks) < 5


def test_within_a_thread_stays_on_its_core_and_then_may_use_all_again() -> None:
    before = os.sched_getaffinity(0)

    within = on_this_core(lambda: os.sched_getaffinity(0))

    assert len(within) == 1
    assert within <= before
    assert os.sched_getaffinity(0) == before


class Interrupted(KeyboardInterrupt):
    """What a signal handler raises."""


def alarm_in(seconds: float) -> None:
    signal.setitimer(signal.ITIMER_REAL, seconds)


def test_no_interrupt_leaves_a_thread_on_one_core() -> None:
    is_armed, count, before = False, 0, os.sched_getaffinity(0)

    def strike(*_: object) -> None:
        nonlocal is_armed, count
        if is_armed:
            is_armed, count = False, count + 1
            raise Interrupted

    former = signal.signal(signal.SIGALRM, strike)
    try:
        for number in range(30_000):
            with contextlib.suppress(Interrupted):
                is_armed = True
                on_this_core(lambda n=number: alarm_in(1e-6 * (1 + n % 40)))  # type: ignore[misc]
                is_armed = False
            assert os.sched_getaffinity(0) == before
    finally:
        is_armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, former)
    assert count > 100


@pytest.fixture
def all_cores() -> Iterator[set[int]]:
    """Those of this thread, which has them again afterwards."""
    cores = os.sched_getaffinity(0)
    yield cores
    os.sched_setaffinity(0, cores)


def test_cores_that_somebody_chooses_meanwhile_stay_chosen(all_cores: set[int]) -> None:
    if len(all_cores) < 2:
        pytest.skip("there is no other core to choose")

    def choose() -> set[int]:
        others = all_cores - os.sched_getaffinity(0)
        os.sched_setaffinity(0, others)
        return others

    assert on_this_core(choose) == os.sched_getaffinity(0)


@pytest.mark.parametrize("name", ["sched_getaffinity", "sched_setaffinity"])
def test_where_a_sandbox_forbids_it_the_kernel_decides(
    name: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    def forbid(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr(os, name, forbid)

    assert on_this_core(lambda: 7) == 7
    assert VanConfig().spin > 0
    ZmqVan(background=False).close()


def test_on_a_core_that_is_not_known_it_goes_on(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("van.cores._this_core", lambda: -1)
    before = os.sched_getaffinity(0)

    assert on_this_core(lambda: os.sched_getaffinity(0)) == before
    assert os.sched_getaffinity(0) == before


def test_what_the_kernel_does_not_tell_is_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    def forbid(*_: object) -> None:
        raise PermissionError(1, "Operation not permitted")

    monkeypatch.setattr("resource.getrusage", forbid)

    assert times_taken()[1] == 0


def test_how_often_the_core_was_taken_is_known_by_thread_and_never_falls() -> None:
    thread, before = times_taken()

    assert times_taken()[0] == thread
    assert times_taken()[1] >= before >= 0


@pytest.mark.parametrize("spin", [-1e-6, 0.011, float("nan")])
def test_looking_for_longer_than_any_sleep_costs_is_refused(spin: float) -> None:
    with pytest.raises(ConfigError, match=r"spin: expected 0s to 10ms"):
        VanConfig(spin=spin)
