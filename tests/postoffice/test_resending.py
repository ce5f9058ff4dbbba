"""When an unanswered message goes again, and what answers that settle nothing mean."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from postoffice.customer import Customer
from postoffice.errors import DeadNodeError
from postoffice.node import Node, Role
from postoffice.resending import Resend, Resending
from postoffice.tracker import WINDOW
from postoffice.view import ClusterView
from van.errors import PsliteError
from van.message import Flag, Kind, Message, Meta, answer_to

PLACE = (0, 8, 1)


def small() -> Message:
    return Message(Meta(recipient=8, piece=1))


def sent_at(resending: Resending, message: Message, times: list[float]) -> list[float]:
    return [now for now in times if resending.due([(PLACE, message)], now)]


def quarters(stop: float) -> list[float]:
    return [n / 4 for n in range(int(stop * 4))]


def test_each_wait_is_longer_than_the_one_before_up_to_the_longest() -> None:
    resending = Resending(Resend(timeout=1.0, longest=3.0))

    assert sent_at(resending, small(), quarters(16)) == [1.0, 3.0, 6.0, 9.0, 12.0, 15.0]


def answered_after(resending: Resending, took: float, times: int, message: Message) -> None:
    """So many messages that were answered so soon."""
    for n in range(times):
        resending.due([((n, 8, 1), message)], n)
        resending.due([], n + took)


def test_the_first_wait_follows_how_long_answers_took() -> None:
    resending = Resending(Resend(timeout=1.0, shortest=0.1))
    assert resending.patience(is_pull=False) == 1.0

    answered_after(resending, 0.002, 40, small())
    assert resending.patience(is_pull=False) == 0.1
    assert sent_at(resending, small(), [0.0, 0.09, 0.11, 0.3, 0.32]) == [0.11, 0.32]
    resending.due([], 0.4)  # nobody knows which of the three was answered
    assert resending.patience(is_pull=False) == pytest.approx(0.45)

    answered_after(resending, 0.3, 1, small())
    assert resending.patience(is_pull=False) == pytest.approx(0.65)
    answered_after(resending, 5.0, 1, small())
    assert resending.patience(is_pull=False) == 1.0


def test_requests_that_no_look_sees_were_answered_soon() -> None:
    resending = Resending(Resend(timeout=1.0, shortest=0.1))
    answered_after(resending, 5.0, 1, small())

    resending.due([], 6.0, made=10)
    later = resending.patience(is_pull=False)
    resending.due([], 6.1, made=50)

    assert 0.1 < later < 0.5
    assert resending.patience(is_pull=False) == 0.1


def test_pulls_that_a_mode_holds_do_not_slow_down_the_resending_of_pushes() -> None:
    resending = Resending(Resend(timeout=1.0, shortest=0.1))
    answered_after(resending, 0.002, 40, small())

    answered_after(resending, 0.9, 3, Message(Meta(flags=Flag.PULL, recipient=8)))

    assert resending.patience(is_pull=True) == 1.0
    assert resending.patience(is_pull=False) == 0.1


def test_what_was_held_and_answered_late_counts_from_its_beginning() -> None:
    resending = Resending(Resend(timeout=9.0, shortest=0.1))
    answered_after(resending, 0.002, 60, small())

    resending.due([(PLACE, small())], 0.0)
    resending.hold(PLACE, 0.2)
    resending.due([], 2.0)

    assert resending.patience(is_pull=False) == pytest.approx(4.05)


def test_a_large_message_gets_the_time_to_cross_the_network() -> None:
    resending = Resending(Resend(timeout=1.0, nbytes_per_second=1000))
    message = Message(Meta(recipient=8), [np.zeros(2000, np.uint8)])

    assert sent_at(resending, message, quarters(8)) == [3.0, 7.0]


def test_what_is_held_is_asked_for_ever_more_seldom() -> None:
    resending = Resending(Resend(timeout=1.0, reminder=30.0))
    message, now, waits = small(), 0.0, []
    resending.due([(PLACE, message)], now)

    for _ in range(8):
        resending.hold(PLACE, now)
        begun = now
        while not resending.due([(PLACE, message)], now):
            now += 0.25
        waits.append(now - begun)

    assert waits == [1.0, 2.0, 4.0, 8.0, 16.0, 30.0, 30.0, 30.0]


def test_a_reminder_that_nobody_answers_is_repeated_as_any_message() -> None:
    resending = Resending(Resend(timeout=1.0, reminder=30.0))
    resending.due([(PLACE, small())], 0.0)

    resending.hold(PLACE, 0.5)

    assert sent_at(resending, small(), quarters(12)) == [1.5, 3.5, 6.5, 10.5]


def test_after_a_change_of_members_what_waits_is_due_at_once() -> None:
    resending = Resending(Resend())
    resending.due([(PLACE, small())], 0.0)
    resending.hold(PLACE, 0.0)

    resending.hurry(2.0)

    assert sent_at(resending, small(), [2.0]) == [2.0]


class FakeVan:
    now_is = 0.0

    def now(self) -> float:
        return self.now_is


class FakeOffice:
    """Keeps what is sent; `nodes` of which live."""

    def __init__(self) -> None:
        self.van, self.name = FakeVan(), "worker 0"
        self.sent: list[Message] = []
        self.dead: set[int] = set()
        self.counts: Any = {"sent again": 0}
        self.waits: list[Any] = []
        self.view = ClusterView()

    def add_customer(self, customer: Customer) -> None:
        customer.resending = Resending(Resend(timeout=1.0))

    def send(self, message: Message) -> None:
        if message.meta.recipient in self.dead:
            raise DeadNodeError(message.meta.recipient, "server 0")
        self.sent.append(message)

    def wait(self, done: Any, timeout: float | None = None, what: Any = None) -> bool:
        self.waits.append(what)
        return bool(done())


@pytest.fixture
def office() -> FakeOffice:
    return FakeOffice()


@pytest.fixture
def customer(office: FakeOffice) -> Customer:
    return Customer(1, 0, office)  # type: ignore[arg-type]


def ask(customer: Customer, *nodes: int, **more: Any) -> int:
    timestamp = customer.new_request(nodes, **more)
    for node in nodes:
        customer.send(Message(Meta(recipient=node, timestamp=timestamp, piece=1)))
    return timestamp


def answer(
    customer: Customer, node: int, timestamp: int, kind: Kind = Kind.OK, **more: Any
) -> None:
    meta = answer_to(Meta(sender=9, timestamp=timestamp, piece=1), kind, **more)
    meta.sender = node
    customer.take_answer(Message(meta))


def turn(customer: Customer, office: FakeOffice, now: float) -> list[int]:
    """Who is sent to again at `now`."""
    office.sent.clear()
    office.van.now_is = now
    customer.send_again(now)
    return [message.meta.recipient for message in office.sent]


def test_only_who_has_not_answered_is_asked_again(customer: Customer, office: FakeOffice) -> None:
    timestamp = ask(customer, 8, 10)

    assert turn(customer, office, 0.0) == []
    answer(customer, 8, timestamp)
    assert turn(customer, office, 1.0) == [10]
    answer(customer, 10, timestamp)
    assert turn(customer, office, 9.0) == []
    assert customer.is_done(timestamp)


def test_an_answer_that_it_is_held_settles_nothing(customer: Customer, office: FakeOffice) -> None:
    timestamp = ask(customer, 8)

    turn(customer, office, 0.0)
    answer(customer, 8, timestamp, Kind.HELD)

    assert not customer.is_done(timestamp)
    assert turn(customer, office, 0.9) == []
    assert turn(customer, office, 30.0) == [8]
    answer(customer, 8, timestamp)
    assert customer.is_done(timestamp)


def test_who_is_behind_is_asked_again_soon(customer: Customer, office: FakeOffice) -> None:
    timestamp = ask(customer, 8)

    turn(customer, office, 0.0)
    answer(customer, 8, timestamp, Kind.BEHIND)

    assert turn(customer, office, 0.25) == [8]


def test_others_are_asked_where_the_owner_has_changed(
    customer: Customer, office: FakeOffice
) -> None:
    def recut(message: Message) -> bool:
        header = Meta(recipient=10, timestamp=message.meta.timestamp, piece=2)
        customer.send(Message(header))
        return True

    timestamp = ask(customer, 8, recut=recut)
    answer(customer, 8, timestamp, Kind.WRONG_OWNER)

    assert not customer.is_done(timestamp)
    meta = answer_to(Meta(sender=9, timestamp=timestamp, piece=2))
    meta.sender = 10
    customer.take_answer(Message(meta))
    assert customer.is_done(timestamp)


def view(*nodes: int, epoch: int = 1, life: int = 1, dead: int | None = None) -> ClusterView:
    made = {node: Node(Role.SERVER, (node - 8) // 2, f"s{node}", life) for node in nodes}
    return ClusterView(epoch, made, {} if dead is None else {dead: 1})


def test_requests_to_a_dead_node_fail_when_nobody_takes_over_in_time(
    customer: Customer, office: FakeOffice
) -> None:
    timestamp = ask(customer, 8, 10)
    office.dead.add(8)

    customer.see(view(8, 10), view(10, epoch=2, dead=8), lambda node: 5.0)
    answer(customer, 10, timestamp)
    turn(customer, office, 4.0)
    assert not customer.is_done(timestamp)
    later = ask(customer, 8)  # may still be taken over
    turn(customer, office, 5.0)

    for number in (timestamp, later):
        with pytest.raises(DeadNodeError, match=r"server 0 is dead.*replicas = 1"):
            customer.wait(number)
    with pytest.raises(DeadNodeError):
        ask(customer, 8)


def test_requests_to_a_dead_node_go_to_its_next_life(
    customer: Customer, office: FakeOffice
) -> None:
    timestamp = ask(customer, 8)
    turn(customer, office, 0.0)
    office.dead.add(8)
    customer.see(view(8), view(epoch=2, dead=8), lambda node: 5.0)
    turn(customer, office, 1.0)

    office.dead.clear()
    customer.see(view(epoch=2, dead=8), view(8, epoch=3, life=2, dead=8), lambda node: 5.0)

    assert turn(customer, office, 1.25) == [8]
    turn(customer, office, 60.0)
    answer(customer, 8, timestamp)
    customer.wait(timestamp)


def test_where_nobody_can_take_over_a_request_fails_at_once(
    customer: Customer, office: FakeOffice
) -> None:
    timestamp = ask(customer, 8)

    customer.see(view(8), view(epoch=2, dead=8), lambda node: 0.0)

    with pytest.raises(PsliteError, match="server 0 is dead"):
        customer.wait(timestamp)


def test_nothing_more_is_expected_of_who_has_left(customer: Customer) -> None:
    timestamp = ask(customer, 8)

    customer.excuse(8)

    customer.wait(timestamp)


def test_who_runs_too_far_ahead_waits(customer: Customer, office: FakeOffice) -> None:
    first = ask(customer, 8)
    for _ in range(WINDOW - 1):
        answer(customer, 8, ask(customer, 8))
    assert not office.waits

    ask(customer, 8)

    assert office.waits[0]() == "an answer from server 0"
    answer(customer, 8, first)
    office.waits.clear()
    ask(customer, 8)
    assert not office.waits
