"""Silence, repeats, timers and what a death means, as plain objects."""

from __future__ import annotations

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from postoffice.errors import RegistrationError
from postoffice.failure import FailurePolicy, Verdict
from postoffice.gathering import Registration
from postoffice.liveness import Liveness
from postoffice.membership import Membership
from postoffice.node import SCHEDULER_ID, Node, Role, node_id
from postoffice.pulse import Pulse
from postoffice.repeats import Repeats
from postoffice.view import ClusterView
from van.message import Message, Meta
from van.timers import NEVER, Timers


def test_who_is_silent_for_too_long_is_named_with_the_time() -> None:
    liveness = Liveness(timeout=10.0, listens_every=1.0)
    for node in (8, 9):
        liveness.heard(node, now=0.0)
    for now in range(1, 10):
        liveness.heard(9, float(now))
        assert liveness.silent(float(now)) == {}

    assert liveness.silent(10.0) == {8: 10.0}
    liveness.forget(8)
    assert liveness.silent(10.5) == {}


def test_a_pause_of_the_listener_is_nobodys_silence() -> None:
    liveness = Liveness(timeout=10.0, listens_every=1.0)
    liveness.heard(8, now=0.0)
    liveness.silent(1.0)

    assert liveness.silent(500.0) == {}  # it was stopped meanwhile
    found = [liveness.silent(500.0 + second) for second in range(1, 11)]

    assert found[5] == {}
    assert found[-1].keys() == {8}


def test_without_a_timeout_nobody_is_dead() -> None:
    liveness = Liveness(timeout=0.0, listens_every=1.0)
    liveness.heard(8, now=0.0)

    assert not any(liveness.silent(float(now)) for now in range(100))


def test_a_message_is_said_again_until_it_is_answered() -> None:
    repeats, message = Repeats(every=1.0), Message(Meta())
    repeats.ask("goodbye", message, now=0.0)

    assert [repeats.due(now) for now in (0.5, 1.0, 1.5, 2.0)] == [[], [message], [], [message]]
    assert repeats.answered("goodbye")
    assert not repeats.answered("goodbye")
    assert not repeats.answered("never asked")
    assert repeats.due(9.0) == []


def test_a_pulse_gives_a_silent_scheduler_up_in_the_end() -> None:
    pulse = Pulse(interval=1.0, scheduler_timeout=5.0)
    pulse.heard(0.0)

    assert [pulse.problem(float(now)) is None for now in range(1, 7)] == [True] * 4 + [False] * 2
    assert "silent for 6 s" in pulse.describe(6.0)
    assert pulse.describe(1.0) == ""
    assert [pulse.wants_news(epoch) for epoch in (1, 1, 2)] == [True, False, True]


@given(st.lists(st.sampled_from([0.25, 1.0, 3.0]), min_size=1, max_size=4), st.integers(1, 60))
@settings(derandomize=True, deadline=None)
def test_timers_are_called_each_so_often_and_once_after_a_pause(
    every: list[float], steps: int
) -> None:
    timers, counts = Timers(), [0] * len(every)

    def count(number: int) -> None:
        counts[number] += 1

    for number, seconds in enumerate(every):
        timers.every(seconds, lambda n=number: count(n), now=0.0)
    for step in range(1, steps + 1):
        for call in timers.due(step * 0.25):
            call()
    for call in timers.due(steps * 0.25 + 100.0):
        call()

    assert counts == [int(steps * 0.25 / seconds) + 1 for seconds in every]
    timers.clear()
    assert timers.next_due == NEVER


@pytest.mark.parametrize(
    ("role", "is_covered", "verdict"),
    [
        (Role.WORKER, False, Verdict.GO_ON),
        (Role.SERVER, False, Verdict.AWAIT),
        (Role.SERVER, True, Verdict.GO_ON),
        (Role.DISPATCHER, False, Verdict.GO_ON),
    ],
)
def test_the_policy_says_what_a_death_means(role: Role, is_covered: bool, verdict: Verdict) -> None:
    policy = FailurePolicy(on_worker="continue", on_server="restart")

    assert policy.verdict(role, is_covered) is verdict
    lone = Verdict.GO_ON if role is Role.DISPATCHER else Verdict.STOP
    assert FailurePolicy().verdict(role, is_covered=False) is lone


def test_a_view_survives_packing_and_nonsense_does_not() -> None:
    node = Node(Role.SERVER, 0, "tcp://a:1", 7)
    view = ClusterView(3, {8: node}, {9: 5}, frozenset({8}), 2, b"map")

    assert ClusterView.unpack(view.pack()) == view
    assert view.dead == {9}
    assert view.is_fenced(9, 5)
    assert not view.is_fenced(9, 6)
    for key, wrong in (("epoch", -1), ("map", [1, "text"]), ("fenced", [[9, None]]), ("gone", 5)):
        with pytest.raises((KeyError, TypeError, ValueError)):
            ClusterView.unpack({**view.pack(), key: wrong})


# -- seats ------------------------------------------------------------------------------------


def two_servers() -> Membership:
    book = Membership({Role.SERVER: 2, Role.WORKER: 1}, Node(Role.SCHEDULER, 0, "tcp://s", 1))
    for number, (role, rank) in enumerate([(Role.SERVER, 0), (Role.SERVER, 1), (Role.WORKER, 0)]):
        book.register(Registration(role=role, rank=rank, address=f"tcp://{number}", nonce=number))
    return book


def test_no_message_makes_the_scheduler_leave_its_own_book() -> None:
    membership = two_servers()

    membership.goodbye(SCHEDULER_ID)
    membership.goodbye(SCHEDULER_ID, failure="so somebody says")

    assert not membership.gone
    assert membership.failure is None


def newcomer(rank: int | None) -> Registration:
    return Registration(role=Role.SERVER, rank=rank, address="tcp://new", nonce=77)


@pytest.mark.parametrize("rank", [1, None])
def test_a_seat_that_was_left_is_taken_again_only_where_the_cluster_may_grow(
    rank: int | None,
) -> None:
    book, seat = two_servers(), node_id(Role.SERVER, 1)
    former = book.nodes[seat]
    book.goodbye(seat)
    with pytest.raises(RegistrationError, match="comes too late"):
        book.register(newcomer(rank))
    book.changes.clear()

    book.may_grow = lambda role: role is Role.SERVER
    book.register(newcomer(rank))

    assert book.nodes[seat].address == "tcp://new"
    assert book.view().is_fenced(seat, former.incarnation)
    assert [change.kind for change in book.changes] == ["joined"], "nobody has died"
    assert seat not in book.gone
    assert seat not in book.deaths
    book.validate()


@pytest.mark.parametrize("is_covered", [True, False])
def test_a_living_server_is_replaced_only_where_others_have_its_rows(is_covered: bool) -> None:
    book, seat = two_servers(), node_id(Role.SERVER, 1)
    book.is_covered = lambda node: is_covered

    if is_covered:
        book.register(newcomer(1))
    else:
        with pytest.raises(RegistrationError, match="comes too late"):
            book.register(newcomer(1))

    assert (book.nodes[seat].address == "tcp://new") == is_covered
    book.validate()
