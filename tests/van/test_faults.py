"""Seeded faults: what a plan decides, and vans that obey it."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from van.courier import ZmqVan, new_context
from van.errors import ConfigError
from van.faults import ANY, Cut, FaultPlan, Faults, FaultyVan, both_ways
from van.loopback import LoopbackNetwork
from van.message import Control, Message, Meta

LIMIT = 30.0


def meta(source: int = 9, target: int = 8, **fields: Any) -> Meta:
    return Meta(sender=source, recipient=target, **fields)


def fates(plan: FaultPlan, count: int, **link: int) -> list[list[float]]:
    return [plan.fate(meta(**link), now=0.0) for _ in range(count)]


def test_a_plan_without_faults_changes_nothing() -> None:
    plan = FaultPlan()

    assert fates(plan, 100) == [[0.0]] * 100


def test_each_fault_comes_as_often_as_the_plan_says() -> None:
    plan = FaultPlan(3, Faults.all(0.2))

    fates(plan, 10_000)

    for name, share in (("dropped", 0.2), ("delayed", 0.16), ("duplicated", 0.16)):
        assert plan.counts[name] == pytest.approx(10_000 * share, rel=0.1), name
    assert plan.counts["reordered"] == pytest.approx(10_000 * 0.8 * 0.8 * 0.2, rel=0.1)


def test_what_becomes_of_a_link_depends_on_its_own_messages_only() -> None:
    alone, among_others = (FaultPlan(5, Faults.all(0.3)) for _ in range(2))

    expected = fates(alone, 50)
    found = []
    for _ in range(50):
        among_others.fate(meta(11, 8), 0.0)
        found.append(among_others.fate(meta(), 0.0))

    assert found == expected
    assert fates(FaultPlan(6, Faults.all(0.3)), 50) != expected


def test_links_and_directions_have_their_own_faults() -> None:
    always = Faults(drop=1.0)
    plan = FaultPlan(1, links={(9, 8): always, (11, ANY): always, (11, 8): Faults()})

    assert plan.fate(meta(9, 8), 0.0) == []
    assert plan.fate(meta(8, 9), 0.0) == [0.0]
    assert plan.fate(meta(11, 10), 0.0) == []
    assert plan.fate(meta(11, 8), 0.0) == [0.0]


def test_a_cut_lasts_from_its_start_to_its_stop() -> None:
    plan = FaultPlan(cuts=[Cut(9, 8, start=1.0, stop=2.0)])
    plan.start(now=10.0)

    passed = [bool(plan.fate(meta(), now)) for now in (10.5, 11.0, 11.9, 12.0)]

    assert passed == [True, False, False, True]


def test_links_are_cut_and_healed_while_it_runs() -> None:
    plan = FaultPlan(cuts=both_ways(8, 9))

    plan.heal(8, 9)
    assert plan.fate(meta(8, 9), 0.0) == [0.0]
    assert plan.fate(meta(9, 8), 0.0) == []

    plan.cut(8, ANY)
    assert plan.fate(meta(8, 9), 0.0) == []


def test_messages_that_a_plan_does_not_concern_pass() -> None:
    plan = FaultPlan(1, Faults(drop=1.0), hits=lambda header: not header.control)

    assert plan.fate(meta(), 0.0) == []
    assert plan.fate(meta(control=Control.BARRIER), 0.0) == [0.0]


@pytest.mark.parametrize("wrong", [{"drop": 1.5}, {"delay": -0.1}, {"delay_up_to": -1.0}])
def test_a_probability_out_of_range_is_refused(wrong: dict[str, float]) -> None:
    with pytest.raises(ConfigError, match="expected"):
        Faults(**wrong)


def sent_over_loopback(plan: FaultPlan | None, count: int) -> list[int]:
    network = LoopbackNetwork(seed=2, plan=plan)
    got: list[int] = []
    sender, taker = network.van(), network.van()
    sender.bind("a"), taker.bind("b")
    sender.connect(8, "b")
    taker.receiver = lambda message: got.append(message.meta.timestamp)

    def send() -> None:
        for number in range(count):
            sender.send(Message(meta(timestamp=number)))
        sender.wait(lambda: False, timeout=60.0)

    network.spawn("sender", send)
    network.run_all()
    return got


def test_the_loopback_network_loses_repeats_and_reorders_by_its_plan() -> None:
    plan = FaultPlan(4, Faults.all(0.2))

    got = sent_over_loopback(plan, 200)

    assert len(set(got)) == 200 - plan.counts["dropped"]
    assert len(got) - len(set(got)) == plan.counts["duplicated"] > 0
    assert got != sorted(got)
    assert sent_over_loopback(FaultPlan(4, Faults.all(0.2)), 200) == got
    assert sent_over_loopback(None, 200) == list(range(200))


@pytest.fixture
def vans() -> Iterator[tuple[ZmqVan, ZmqVan]]:
    context = new_context()
    pair = ZmqVan(context=context, background=False), ZmqVan(context=context, background=False)
    pair[0].bind("inproc://a"), pair[1].bind("inproc://b")
    yield pair
    for van in pair:
        van.close()
    context.term()


@pytest.mark.parametrize("at_receiver", [False, True])
def test_a_faulty_van_delivers_what_its_plan_leaves(
    vans: tuple[ZmqVan, ZmqVan], at_receiver: bool
) -> None:
    plan = FaultPlan(4, Faults(drop=0.3, duplicate=0.3, delay=0.3, delay_up_to=0.01))
    faulty = FaultyVan(vans[1 if at_receiver else 0], plan, receives=at_receiver)
    sender, taker = (vans[0], faulty) if at_receiver else (faulty, vans[1])
    got: list[int] = []
    taker.receiver = lambda message: got.append(message.meta.timestamp)
    sender.connect(8, "inproc://b")
    expected = FaultPlan(4, Faults(drop=0.3, duplicate=0.3, delay=0.3, delay_up_to=0.01))
    copies = sum(len(expected.fate(meta(), 0.0)) for _ in range(100))

    for number in range(100):
        sender.send(Message(meta(timestamp=number)))

    for _ in range(3000):
        sender.wait(lambda: False, 0.001)
        if taker.wait(lambda: len(got) >= copies, 0.01):
            break
    assert len(got) == copies
    assert plan.counts == expected.counts
    faulty.close()


def test_a_delayed_message_is_the_one_that_was_sent(vans: tuple[ZmqVan, ZmqVan]) -> None:
    sender = FaultyVan(vans[0], FaultPlan(1, Faults(delay=1.0, delay_up_to=0.01)))
    got: list[int] = []
    vans[1].receiver = lambda message: got.append(message.meta.oldest)
    sender.connect(8, "inproc://b")
    message = Message(meta(oldest=5))

    sender.send(message)
    message.meta.oldest = 7  # as a resend would

    assert vans[1].wait(lambda: bool(got), LIMIT)
    assert got == [5]
    sender.close()
