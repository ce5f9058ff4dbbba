"""A network whose messages take the time that latency and bandwidth say."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from van.faults import FaultPlan, Faults
from van.loopback import DeadlockError
from van.message import Message, Meta
from van.virtual import VirtualNetwork, VirtualVan
from van.wires import Wires

MBIT = 1e6


def test_a_message_takes_latency_and_its_size_over_the_bandwidth() -> None:
    wires = Wires(latency=0.5, bandwidth=8000)

    first_bit = wires.leave("a", 1000, now=2.0)

    assert first_bit == 2.5
    assert wires.arrive("b", 1000, first_bit) == 3.5


def test_a_line_sends_one_message_after_the_other() -> None:
    wires = Wires(latency=0.5, bandwidth=8000)

    assert [wires.leave("a", 1000, now=0.0) for _ in range(3)] == [0.5, 1.5, 2.5]
    assert wires.leave("b", 1000, now=0.0) == 0.5


def test_a_line_takes_in_one_message_after_the_other_whoever_sent_it() -> None:
    wires = Wires(latency=0.5, bandwidth=8000)
    arrivals = [wires.leave(source, 1000, now=0.0) for source in "abc"]

    assert [wires.arrive("d", 1000, first_bit) for first_bit in arrivals] == [1.5, 2.5, 3.5]


@given(
    sizes=st.lists(st.integers(0, 10**6), min_size=1, max_size=20),
    latency=st.floats(0, 1),
    bandwidth=st.sampled_from([0.0, 1e6, 1e10]),
)
def test_messages_of_a_link_keep_their_order(
    sizes: list[int], latency: float, bandwidth: float
) -> None:
    wires = Wires(latency, bandwidth)
    left = [wires.leave("a", size, now=0.0) for size in sizes]

    arrived = [wires.arrive("b", size, when) for size, when in zip(sizes, left, strict=True)]

    assert left == sorted(left)
    assert arrived == sorted(arrived)
    assert wires.sent.total() == sum(sizes)


def pair(network: VirtualNetwork) -> tuple[VirtualVan, VirtualVan]:
    one, other = network.van(), network.van()
    one.bind("one")
    other.bind("other")
    one.connect(2, "other")
    other.connect(1, "one")
    return one, other


def test_the_clock_says_how_long_a_message_took() -> None:
    network = VirtualNetwork(Wires(0.25, 8 * MBIT))
    one, other = pair(network)
    got: list[tuple[float, int]] = []
    other.receiver = lambda message: got.append((network.now, message.arrays[0].size))

    one.send(Message(Meta(recipient=2), [np.zeros(1_000_000, np.uint8)]))
    other.wait(lambda: bool(got))

    ((when, size),) = got
    assert size == 1_000_000
    assert 1.25 < when < 1.26  # and the header


def test_programs_compute_beside_each_other_in_virtual_time() -> None:
    network = VirtualNetwork(Wires(0.0, 0.0))
    ends: dict[str, float] = {}

    def compute(name: str, seconds: float) -> None:
        for _ in range(3):
            network.sleep(seconds)
        ends[name] = network.now

    network.spawn("quick", lambda: compute("quick", 1.0))
    network.spawn("slow", lambda: compute("slow", 1000.0))
    network.run_all()

    assert ends == {"quick": 3.0, "slow": 3000.0}


def test_who_waits_is_asked_when_something_came_and_gives_up_at_its_time() -> None:
    network = VirtualNetwork(Wires(1.0, 0.0))
    one, other = pair(network)
    got: list[Message] = []
    story: list[object] = []
    other.receiver = got.append

    def ask() -> None:
        network.sleep(1.0)
        one.send(Message(Meta(recipient=2)))

    def wait() -> None:
        story.append(other.wait(lambda: bool(got), timeout=1.5))
        story.append(network.now)
        story.append(other.wait(lambda: bool(got), timeout=1.5))
        story.append(network.now)

    network.spawn("asks", ask)
    network.spawn("waits", wait)
    network.run_all()

    assert story == [False, 1.5, True, 2.0]


def test_timers_are_called_at_their_times_for_as_long_as_the_van_is_open() -> None:
    network = VirtualNetwork(Wires(0.0, 0.0))
    van = network.van()
    van.bind("a")
    ticks: list[tuple[str, float]] = []
    van.every(2.0, lambda: ticks.append(("two", network.now)))
    van.every(1.5, lambda: ticks.append(("one and a half", network.now)))

    network.spawn("a", lambda: network.sleep(4.0))
    network.run_all()
    van.close()

    times = [("one and a half", 1.5), ("two", 2.0), ("one and a half", 3.0)]
    assert [tick for tick in ticks if tick[1] < 4.0] == times


@pytest.mark.parametrize("has_timer", [False, True])
def test_a_wait_that_nothing_can_end_is_an_error_that_says_who_waits(has_timer: bool) -> None:
    network = VirtualNetwork(Wires(0.0, 0.0))
    van = network.van()
    van.bind("a")
    if has_timer:
        van.every(60.0, lambda: None)
    network.spawn("hopes", lambda: van.wait(lambda: False) and None)

    with pytest.raises(DeadlockError, match="waiting: hopes"):
        network.run_all()


def test_what_a_program_raises_ends_the_run() -> None:
    network = VirtualNetwork(Wires(0.0, 0.0))
    network.spawn("waits", lambda: network.sleep(9.0))
    network.spawn("fails", lambda: 1 // 0 and None)

    with pytest.raises(ZeroDivisionError):
        network.run_all()


def test_a_plan_loses_what_it_says() -> None:
    plan = FaultPlan(3, Faults(drop=0.3))
    network = VirtualNetwork(Wires(0.001, 0.0), plan=plan)
    one, other = pair(network)
    got: list[int] = []
    other.receiver = lambda message: got.append(message.meta.timestamp)

    for number in range(200):
        one.send(Message(Meta(recipient=2, timestamp=number)))
    other.wait(lambda: False, timeout=1.0)

    assert got == sorted(got)
    assert len(got) == 200 - plan.counts["dropped"]
    assert 30 < plan.counts["dropped"] < 90
