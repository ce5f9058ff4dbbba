"""A simulated network: when messages are through, and vans that heed it over real transports."""

from __future__ import annotations

import time
from collections.abc import Iterator, Sequence
from itertools import count

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from van.config import VanConfig
from van.courier import ZmqVan, new_context
from van.intake import Intake
from van.linked import LinkedVan
from van.message import Control, Message, Meta
from van.wires import Even, Lines, Link, Wires

LIMIT = 60.0
KILO = 8000.0  # bits a second: a kilobyte
CONFIG = VanConfig()
NAMES = {8: "server 0", 9: "worker 0", 11: "worker 1"}


class Uneven:
    """A narrow link between two nodes, and one node with a slow line."""

    def line(self, node: str) -> float:
        return KILO if node == "slow" else 4 * KILO

    def link(self, source: str, target: str) -> Link:
        return Link(bandwidth=2 * KILO, latency=0.5) if {source, target} == {"a", "b"} else Link()


# -- when -----------------------------------------------------------------------------------------


def test_the_narrowest_of_line_link_and_line_says_how_long_a_message_takes() -> None:
    wires = Wires(lines=Uneven())

    first_bit = wires.leave("a", 4000, 0.0, "b")

    assert (first_bit, wires.lands("a", 4000, first_bit, "b")) == (0.5, 2.5)
    assert wires.arrive("b", 4000, first_bit, "a") == 2.5
    assert wires.arrive("c", 4000, wires.leave("slow", 4000, 0.0, "c"), "slow") == 4.0


def test_a_narrow_link_is_free_when_all_before_has_crossed_it() -> None:
    wires = Wires(lines=Uneven())

    assert [wires.leave("a", 4000, 0.0, "b") for _ in range(3)] == [0.5, 2.5, 4.5]
    assert wires.leave("a", 4000, 0.0, "c") == 3.0  # only the line is shared


def test_what_is_urgent_passes_and_takes_its_time_of_the_line() -> None:
    wires = Wires(bandwidth=KILO)
    wires.leave("a", 5000, 0.0)

    assert wires.leave("a", 1000, 1.0, urgent=True) == 1.0
    assert wires.leave("a", 1000, 1.0, urgent=True) == 2.0
    assert wires.leave("a", 1000, 1.0) == 7.0


def test_small_messages_hold_a_large_one_up_only_by_their_own_time() -> None:
    intake = Intake(0.001)

    for number in range(500):  # more than are remembered one by one
        assert intake.arrive(1, number * 0.01, number * 0.01 + 0.001) <= number * 0.01 + 0.002

    assert intake.arrive(5000, 0.0, 5.0) == pytest.approx(5.5, abs=0.02)


def test_who_comes_from_several_at_once_waits_for_the_line() -> None:
    intake = Intake(0.001)

    assert [intake.arrive(1000, 1.0, 2.0) for _ in range(3)] == [2.0, 3.0, 4.0]
    assert intake.arrive(1000, 9.0, 10.0) == 10.0


@given(
    arrivals=st.lists(
        st.tuples(st.floats(0, 50), st.integers(0, 3000), st.sampled_from([1.0, 2.0])),
        max_size=40,
    )
)
def test_a_node_sees_what_the_lines_say(arrivals: list[tuple[float, int, float]]) -> None:
    wires, intake = Wires(bandwidth=KILO), Intake(0.001)
    last = 0.0
    for first_bit, nbytes, slowness in sorted(arrivals):
        last_bit = first_bit + nbytes * 0.001 * slowness
        if last_bit < last:
            continue  # a node would see it before the one that is ahead of it
        last = last_bit

        expected = max(wires.arrive("me", nbytes, first_bit), last_bit)

        assert intake.arrive(nbytes, first_bit, last_bit) == pytest.approx(expected)


@given(
    arrivals=st.lists(
        st.tuples(st.floats(0, 50), st.integers(1, 3000), st.integers(0, 3)), max_size=60
    )
)
def test_senders_keep_their_order_and_the_line_its_bandwidth(
    arrivals: list[tuple[float, int, int]],
) -> None:
    intake, free, done = Intake(0.001), [0.0] * 4, [0.0] * 4
    sent = []
    for when, nbytes, source in sorted(arrivals):
        first_bit = max(when, free[source])
        free[source] = first_bit + nbytes * 0.001
        sent.append((free[source], first_bit, nbytes, source))

    for last_bit, first_bit, nbytes, source in sorted(sent):
        through = intake.arrive(nbytes, first_bit, last_bit)
        assert through >= max(last_bit, done[source] - 1e-9)
        done[source] = through

    if sent:
        begun, total = min(one[1] for one in sent), sum(one[2] for one in sent)
        assert max(done) >= begun + total * 0.001 - 1e-6


# -- vans -----------------------------------------------------------------------------------------


class Lossy(Even):
    def link(self, source: str, target: str) -> Link:
        return Link(loss=0.3)


class World:
    """Vans that know each other by `inproc://`, or by what the settings say."""

    def __init__(self) -> None:
        self._context, self._vans, self._numbers = new_context(), list[LinkedVan](), count()

    def vans(
        self,
        lines: Lines,
        config: VanConfig = CONFIG,
        way: str = "inproc",
        nodes: Sequence[int] = (9, 8),
    ) -> list[LinkedVan]:
        """Of these nodes, connected to each other."""
        made = []
        for node in nodes:
            context = self._context if way == "inproc" else None
            van = ZmqVan(config, context=context, background=False)
            made.append(LinkedVan(van, lines, NAMES[node], NAMES.get, config, seed=4))
            place = f"inproc://linked-{next(self._numbers)}" if context else "tcp://127.0.0.1:0"
            made[-1].bind(place)
        for van in made:
            for node, other in zip(nodes, made, strict=True):
                if other is not van:
                    van.connect(node, other.address)
        self._vans += made
        return made

    def close(self) -> None:
        for van in self._vans:
            van.close(0)
        self._context.term()


@pytest.fixture
def world() -> Iterator[World]:
    made = World()
    yield made
    made.close()


def message(number: int, nbytes: int = 0, **fields: object) -> Message:
    meta = Meta(sender=9, recipient=8, timestamp=number, **fields)  # type: ignore[arg-type]
    return Message(meta, [np.full(nbytes, number, np.uint8)] if nbytes else [])


@pytest.mark.parametrize("way", ["inproc", "tcp", "local"])
def test_whatever_moves_them_messages_take_latency_and_size_over_bandwidth(
    way: str, world: World
) -> None:
    config = VanConfig(transport="auto" if way == "inproc" else way)  # type: ignore[arg-type]
    sender, taker = world.vans(Even(latency=0.05, bandwidth=8e6), config, way)
    got: list[tuple[float, int]] = []
    taker.receiver = lambda each: got.append((time.monotonic(), each.meta.timestamp))

    assert not sender.shares_memory(8)
    begun = time.monotonic()
    for number in range(4):
        sender.send(message(number, 100_000))
    assert time.monotonic() - begun < 0.35, "sending does not wait"
    taker.wait(lambda: len(got) == 4, LIMIT)

    assert [number for _, number in got] == [0, 1, 2, 3]
    for when, number in got:
        assert when - begun >= 0.05 + 0.1 * (number + 1)


def test_a_node_s_own_line_holds_up_what_several_send_it(world: World) -> None:
    taker, *senders = world.vans(Even(latency=0.0, bandwidth=8e6), nodes=(8, 9, 11))
    got: list[float] = []
    taker.receiver = lambda each: got.append(time.monotonic())
    begun = time.monotonic()
    for node, sender in zip((9, 11), senders, strict=True):
        sent = message(1, 200_000)
        sent.meta.sender = node
        sender.send(sent)
    taker.wait(lambda: len(got) == 2, LIMIT)

    assert got[0] - begun >= 0.2
    assert got[1] - begun >= 0.4


def test_a_heartbeat_does_not_wait_behind_data(world: World) -> None:
    sender, taker = world.vans(Even(latency=0.01, bandwidth=8e5))
    got: list[int] = []
    taker.receiver = lambda each: got.append(each.meta.timestamp)

    for number in range(3):
        sender.send(message(number, 50_000))
    sender.send(message(9, control=Control.HEARTBEAT))
    taker.wait(lambda: len(got) == 4, LIMIT)

    assert got == [9, 0, 1, 2]


def test_what_still_waits_is_not_sent_again(world: World) -> None:
    sender, taker = world.vans(Even(latency=0.3, bandwidth=0.0))
    got: list[int] = []
    taker.receiver = lambda each: got.append(each.meta.timestamp)

    for number in (1, 1, 2, 1):
        sender.send(message(number))
    taker.wait(lambda: len(got) == 2, LIMIT)
    sender.send(message(1))
    taker.wait(lambda: len(got) == 3, LIMIT)

    assert got == [1, 2, 1]
    assert sender.counts["still under way"] == 2


def test_the_seed_says_what_is_lost(world: World) -> None:
    lost = []
    for _ in range(2):
        sender, taker = world.vans(Lossy(latency=0.0, bandwidth=0.0))
        got: list[int] = []
        taker.receiver = lambda each, got=got: got.append(each.meta.timestamp)  # type: ignore[misc]
        for number in range(200):
            sender.send(message(number))
        left = 200 - sender.plan.counts["dropped"]
        taker.wait(lambda got=got, left=left: len(got) == left, LIMIT)  # type: ignore[misc]
        lost.append(set(range(200)) - set(got))

    assert lost[0] == lost[1]
    assert 30 < len(lost[0]) < 90


def test_what_waits_counts_as_backlog_and_leaves_before_the_van_closes(
    world: World,
) -> None:
    sender, taker = world.vans(Even(latency=0.2, bandwidth=0.0), VanConfig(backlog=3))
    got: list[int] = []
    taker.receiver = lambda each: got.append(each.meta.timestamp)

    rooms = []
    for number in range(4):
        rooms.append(sender.has_room(8))
        sender.send(message(number))
    sender.disconnect(8)  # what was sent before goes first
    sender.close()
    taker.wait(lambda: len(got) == 4, LIMIT)

    assert rooms == [True, True, True, False]
    assert got == [0, 1, 2, 3]
