"""The log between two servers, over a network that loses, repeats and reorders."""

from __future__ import annotations

import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kv.replication.log import LogReceiver, LogSender, Receivers


def test_what_is_appended_is_sent_once_and_again_only_when_time_is_up() -> None:
    log: LogSender[str] = LogSender(timeout=1.0)
    log.append("a")
    log.append("b")

    assert log.take(now=0.0) == [(1, "a"), (2, "b")]
    assert log.take(now=0.5) == []
    assert log.due(now=0.9) == []
    assert log.due(now=1.0) == [(1, "a"), (2, "b")]
    assert log.due(now=1.1) == []
    assert log.due(now=3.0) == [(1, "a"), (2, "b")]


def test_an_acknowledgement_speaks_for_all_before_it() -> None:
    log: LogSender[int] = LogSender()
    for n in range(5):
        log.append(n, nbytes=10)
    log.take(0.0)

    assert log.acknowledge(3, now=0.1)
    assert not log.acknowledge(2, now=0.2)

    assert (log.acknowledged, log.nbytes) == (3, 20)
    assert log.due(now=1.1) == [(4, 3), (5, 4)]


def test_no_more_goes_out_than_the_window_holds() -> None:
    log: LogSender[int] = LogSender(window=2)
    for n in range(4):
        log.append(n)

    assert [n for n, _ in log.take(0.0)] == [1, 2]
    assert not log.has_room
    log.acknowledge(1, 0.0)
    assert [n for n, _ in log.take(0.0)] == [3]


def test_bytes_under_way_are_bounded_too_but_a_large_record_passes() -> None:
    log: LogSender[int] = LogSender(window_nbytes=100)
    log.append(1, nbytes=1000)
    log.append(2, nbytes=1)

    assert [n for n, _ in log.take(0.0)] == [1]
    log.acknowledge(1, 0.0)
    assert [n for n, _ in log.take(0.0)] == [2]


def test_a_former_life_is_refused_and_a_new_one_begins_at_one() -> None:
    logs: Receivers[str] = Receivers()
    old = logs.of(8, 100)
    assert old is not None
    old.take(1, "old")

    new = logs.of(8, 101)

    assert new is not None
    assert new.take(1, "new") == [(1, "new")]
    assert logs.of(8, 100) is None


def test_a_fenced_life_is_refused_though_no_other_was_heard() -> None:
    logs: Receivers[str] = Receivers()

    logs.fence(8, 100)

    assert logs.of(8, 100) is None
    assert logs.of(8, 101) is not None


def test_what_is_applied_is_what_was_given_out() -> None:
    log: LogReceiver[str] = LogReceiver()
    log.take(2, "b")

    assert log.take(1, "a") == [(1, "a"), (2, "b")]
    log.note_applied(2)

    assert log.take(2, "b") == []
    with pytest.raises(AssertionError):
        log.note_applied(3)


class LogMachine(RuleBasedStateMachine):
    """A sender and a receiver; what is between them may be lost, repeated and overtaken."""

    def __init__(self) -> None:
        super().__init__()
        self.now = 0.0
        self.sender: LogSender[int] = LogSender(timeout=1.0, window=5, window_nbytes=50)
        self.receiver: LogReceiver[int] = LogReceiver(window=5)
        self.to_receiver: list[tuple[int, int]] = []
        self.to_sender: list[int] = []
        self.given_out: list[int] = []
        self.appended = 0

    @rule(nbytes=st.integers(0, 30))
    def append(self, nbytes: int) -> None:
        self.appended += 1
        assert self.sender.append(self.appended, nbytes) == self.appended

    @rule()
    def send(self) -> None:
        self.to_receiver += self.sender.take(self.now)

    @rule(seconds=st.floats(0.1, 5))
    def wait(self, seconds: float) -> None:
        self.now += seconds
        self.to_receiver += self.sender.due(self.now)

    @precondition(lambda self: self.to_receiver)
    @rule(data=st.data(), is_kept=st.booleans())
    def deliver(self, data: st.DataObject, is_kept: bool) -> None:
        place = data.draw(st.integers(0, len(self.to_receiver) - 1))
        number, record = self.to_receiver[place] if is_kept else self.to_receiver.pop(place)
        for n, out in self.receiver.take(number, record):
            self.given_out.append(out)
            self.receiver.note_applied(n)
        self.to_sender.append(self.receiver.applied)

    @precondition(lambda self: self.to_receiver)
    @rule(data=st.data())
    def lose(self, data: st.DataObject) -> None:
        del self.to_receiver[data.draw(st.integers(0, len(self.to_receiver) - 1))]

    @precondition(lambda self: self.to_sender)
    @rule(data=st.data(), is_kept=st.booleans())
    def acknowledge(self, data: st.DataObject, is_kept: bool) -> None:
        place = data.draw(st.integers(0, len(self.to_sender) - 1))
        number = self.to_sender[place] if is_kept else self.to_sender.pop(place)
        self.sender.acknowledge(number, self.now)

    @invariant()
    def nothing_is_missing_twice_or_out_of_order(self) -> None:
        assert self.given_out == list(range(1, len(self.given_out) + 1))
        assert self.sender.acknowledged <= len(self.given_out)
        self.sender.validate()
        self.receiver.validate()

    def teardown(self) -> None:
        """On a network that is well again all arrives."""
        for _ in range(4 * self.appended + 4):
            self.now += 60.0
            self.to_receiver += self.sender.take(self.now) + self.sender.due(self.now)
            while self.to_receiver:
                number, record = self.to_receiver.pop()
                for n, out in self.receiver.take(number, record):
                    self.given_out.append(out)
                    self.receiver.note_applied(n)
            self.sender.acknowledge(self.receiver.applied, self.now)
        assert len(self.given_out) == self.appended
        assert self.sender.acknowledged == self.appended
        assert self.sender.nbytes == 0


LogMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=50)
TestLogMachine = LogMachine.TestCase
