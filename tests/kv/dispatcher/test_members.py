"""Which workers a dispatcher waits for."""

from __future__ import annotations

from kv.consistency.progress import Progress
from kv.dispatcher.members import Members
from van.message import Message, Meta


def members(is_again: bool = False) -> Members:
    """Of a dispatcher to which the rule gives workers 1 and 2 of 4."""
    found = Members(Progress(4))
    found.begin([1, 2], is_again)
    return found


def test_a_dispatcher_begins_with_those_that_the_rule_gives_it() -> None:
    some = members()

    assert some.active == {1, 2}
    assert some.is_whole(0)


def test_one_that_was_started_again_waits_for_who_has_come_and_knows_how_far_that_is() -> None:
    progress = Progress(4)
    some = Members(progress)
    some.begin([1, 2], is_again=True)
    assert some.active == set()
    assert progress.slowest() is None

    assert not some.come(2, 5, 7, rests=False)

    assert some.active == {2}
    assert (progress.slowest(), progress.positions[2]) == (5, 7)


def test_rounds_are_whole_from_the_step_in_which_the_last_of_its_own_has_come() -> None:
    some = members(is_again=True)
    some.come(0, 9, 0, rests=False)  # another's, from which rounds do not become whole or less so

    some.come(1, 3, 0, rests=False)
    assert not some.is_whole(5)
    some.come(2, 4, 0, rests=False)

    assert [some.is_whole(number) for number in (3, 4, 5)] == [False, True, True]


def test_who_has_died_is_not_missed() -> None:
    some = members(is_again=True)
    some.come(1, 0, 0, rests=False)

    some.lose(2)

    assert some.is_whole(0)


def test_nobody_waits_for_one_that_rests_but_it_may_go_on() -> None:
    progress = Progress(4)
    some = Members(progress)
    some.begin([1, 2], is_again=True)

    some.come(1, 3, 0, rests=True)

    assert (some.ranks, some.active) == ({1}, set())
    progress.check_active(1)


def test_it_is_known_who_was_elsewhere() -> None:
    some = members()

    assert some.come(3, 0, 0, rests=False)
    assert not some.come(1, 0, 0, rests=False)  # it was started again


def test_who_goes_is_answered_when_nothing_of_it_is_left() -> None:
    some, message = members(), Message(Meta())
    some.go(message, 1)

    assert some.ranks == {2}
    assert some.gone(lambda rank: rank == 1) == []
    assert some.gone(lambda rank: False) == [message]
    assert some.gone(lambda rank: False) == []
