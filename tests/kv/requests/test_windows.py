from __future__ import annotations

import msgpack
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv.requests import Failure, Signature, Windows
from kv.requests.errors import WindowFullError
from tests.kv.requests.making import FIXED, array

SLOTS = 4
FAILURE = Failure("TableError", "no such table", 8)
slots = st.lists(st.integers(0, SLOTS - 1), unique=True).map(sorted).map(lambda s: array(*s))
events = st.tuples(
    st.sampled_from([9, 11]),  # sender
    st.integers(1, 3),  # incarnation
    st.integers(0, 5),  # timestamp
    st.integers(0, 5),  # how much older the oldest unanswered request is
    slots,
)


def signature(timestamp: int = 0, sender: int = 9, life: int = 1) -> Signature:
    return Signature(sender, life, 0, 0, timestamp)


class Plain:
    """The same as sets: every (signature, slot) ever applied, and nothing forgotten."""

    def __init__(self) -> None:
        self.applied: set[tuple[Signature, int]] = set()
        self.lives: dict[int, int] = {}
        self.oldest: dict[tuple, int] = {}

    def fresh(self, name: Signature, slots: np.ndarray) -> list[bool]:
        former = name.incarnation < self.lives.get(name.sender, 0)
        past = name.timestamp < self.oldest.get(name.stream, 0)
        return [not (former or past or (name, slot) in self.applied) for slot in slots.tolist()]

    def record(self, name: Signature, slots: np.ndarray, oldest: int) -> None:
        self.lives[name.sender] = max(self.lives.get(name.sender, 0), name.incarnation)
        self.oldest[name.stream] = max(self.oldest.get(name.stream, 0), oldest)
        self.applied |= {(name, slot) for slot in slots.tolist()}


@FIXED
@given(history=st.lists(events, max_size=30))
def test_windows_agree_with_plain_sets(history):
    windows, plain = Windows(SLOTS), Plain()
    for sender, life, timestamp, behind, touched in history:
        name, oldest = signature(timestamp, sender, life), max(timestamp - behind, 0)

        assert windows.fresh(name, touched).tolist() == plain.fresh(name, touched)

        windows.record(name, touched, oldest)
        plain.record(name, touched, oldest)
        windows.validate()


@FIXED
@given(history=st.lists(events, max_size=30), slot=st.integers(0, SLOTS - 1))
def test_a_slot_takes_what_is_known_of_it_along(history, slot):
    here, there = Windows(SLOTS), Windows(SLOTS)
    for sender, life, timestamp, behind, touched in history:
        here.record(signature(timestamp, sender, life), touched, max(timestamp - behind, 0))

    there.adopt(slot, msgpack.unpackb(msgpack.packb(here.export(slot))))

    there.validate()
    for sender, life, timestamp, *_ in history:
        name = signature(timestamp, sender, life)
        assert there.fresh(name, array(slot)) == here.fresh(name, array(slot))


@FIXED
@given(history=st.lists(events, max_size=30))
def test_memory_holds_only_what_is_unanswered(history):
    windows = Windows(SLOTS)
    for sender, life, timestamp, behind, touched in history:
        windows.record(signature(timestamp, sender, life), touched, max(timestamp - behind, 0))
    for sender in (9, 11):
        windows.meet(signature(1000, sender, life=3), 1000)

    assert len(windows) == 0


def test_a_push_counts_again_only_in_slots_that_have_not_had_it():
    windows = Windows(SLOTS)
    windows.record(signature(), array(0, 2), oldest=0)

    assert windows.fresh(signature(), array(0, 1, 2, 3)).tolist() == [False, True, False, True]


def test_a_restarted_sender_begins_again_at_0():
    windows = Windows(SLOTS)
    windows.record(signature(0, life=1), array(0), oldest=0)
    windows.record(signature(7, life=1), array(0), oldest=7)

    assert windows.fresh(signature(0, life=2), array(0)).all()


def test_a_former_life_is_not_heard_once_the_new_one_was():
    windows = Windows(SLOTS)
    windows.record(signature(0, life=2), array(0), oldest=0)

    assert windows.is_former(signature(5, life=1))
    assert not windows.fresh(signature(5, life=1), array(0)).any()


def test_a_fence_shuts_out_a_life_and_those_before_it_but_not_the_next():
    windows = Windows(SLOTS)

    windows.fence(9, 2)

    assert [windows.is_former(signature(life=life)) for life in (1, 2, 3)] == [True, True, False]


def test_a_fence_travels_with_a_slot():
    here, there = Windows(SLOTS), Windows(SLOTS)
    here.fence(9, 1)

    there.adopt(0, here.export(0))

    assert there.is_former(signature(life=1))


def test_adopting_replaces_what_was_known_from_an_earlier_stay():
    restored, windows = Windows(SLOTS), Windows(SLOTS)
    windows.record(signature(0), array(0, 1), oldest=0)

    windows.adopt(0, restored.export(0))

    assert windows.fresh(signature(0), array(0, 1)).tolist() == [True, False]


def test_watermarks_never_go_down():
    old, windows = Windows(SLOTS), Windows(SLOTS)
    old.record(signature(2), array(0), oldest=0)
    windows.meet(signature(5), 5)

    windows.adopt(0, old.export(0))

    assert windows.is_past(signature(4))
    assert len(windows) == 0


def test_why_a_push_failed_is_remembered_until_its_answer_has_arrived():
    windows = Windows(SLOTS)
    windows.record(signature(3), array(0), 3, failure=FAILURE)

    assert windows.failure(signature(3), array(0, 1)) == FAILURE
    assert windows.failure(signature(3), array(1)) is None
    windows.meet(signature(4), 4)
    assert windows.failure(signature(3), array(0)) is None


def test_why_a_push_failed_travels_with_its_slot():
    here, there = Windows(SLOTS), Windows(SLOTS)
    here.record(signature(3), array(0), 3, failure=FAILURE)

    there.adopt(0, msgpack.unpackb(msgpack.packb(here.export(0))))

    assert there.failure(signature(3), array(0)) == FAILURE


def test_a_sender_that_runs_too_far_ahead_is_an_error():
    windows = Windows(SLOTS, limit=10)
    windows.record(signature(9), array(0), oldest=0)

    with pytest.raises(WindowFullError, match="request 10 would run 10 or more ahead of request 0"):
        windows.record(signature(10), array(0), oldest=0)


def test_customers_of_one_node_do_not_meet():
    windows = Windows(SLOTS)
    windows.record(Signature(9, 1, 0, customer=0, timestamp=0), array(0), oldest=0)

    assert windows.fresh(Signature(9, 1, 0, customer=1, timestamp=0), array(0)).all()
    assert windows.fresh(Signature(9, 1, 1, customer=0, timestamp=0), array(0)).all()
