from __future__ import annotations

from dataclasses import replace

import pytest

from kv.requests import Answer, Incoming, Kind, Work
from kv.requests.errors import BehindError, SlotBusyError
from tests.kv.requests.making import D0, S0, S1, W0, W1, Gate, array, inside, pull, push, view

HERE = view(S0, S0, S0, S1)
LATER = view(S0, S0, S1, S1, map_version=2)
FAILURE = ("TableError", "no such table")


def server(*, holds: bool = False, **settings) -> Incoming:
    return Incoming(S0, 1, HERE, Gate(holds=holds), **settings)


def apply(core: Incoming, request, error=None) -> Answer:
    """Take a request that is to be worked on at once, and finish the work."""
    work = core.receive(request)
    assert isinstance(work, Work)
    return core.finish(work.ticket, error)


def said(result) -> tuple[Kind, tuple[int, ...]]:
    assert isinstance(result, Answer)
    return result.kind, result.refused


def test_a_push_is_applied_to_its_slots_and_answered():
    core = server()

    work = core.receive(push(0, 0, 2))

    assert work.apply.tolist() == [0, 2]
    assert work.read.tolist() == []
    assert said(core.finish(work.ticket)) == (Kind.OK, ())


def test_a_repeated_push_is_answered_again_and_not_applied():
    core = server()
    apply(core, push(0, 0, 2))

    assert said(core.receive(push(0, 0, 2))) == (Kind.OK, ())


def test_a_push_cut_differently_is_applied_where_it_has_not_been():
    core = server()
    apply(core, push(0, 0))

    work = core.receive(push(0, 0, 1, piece=2))

    assert work.apply.tolist() == [1]


def test_a_repeat_that_comes_while_the_push_is_worked_on_is_told_to_wait():
    core = server()
    core.receive(push(0, 0))

    assert said(core.receive(push(0, 0))) == (Kind.HELD, ())


def test_a_push_without_an_owner_here_is_sent_to_the_newer_map():
    answer = server().receive(push(0, 3))

    assert said(answer) == (Kind.WRONG_OWNER, (3,))
    assert answer.map_version == 1


def test_slots_of_others_are_refused_and_the_rest_applied():
    core = server()

    work = core.receive(push(0, 1, 3))

    assert work.apply.tolist() == [1]
    assert said(core.finish(work.ticket)) == (Kind.OK, (3,))


def test_a_pull_is_read_again_for_every_repeat():
    core = server()

    for _ in range(2):
        work = core.receive(pull(0, 0, 1))
        assert said(core.receive(pull(0, 0, 1))) == (Kind.HELD, ())  # while it is being read

        assert work.read.tolist() == [0, 1]
        core.finish(work.ticket)


def test_a_push_pull_reads_also_what_was_applied_before():
    core = server()
    apply(core, push(0, 0, pull=True))

    work = core.receive(push(0, 0, 1, pull=True))

    assert work.apply.tolist() == [1]
    assert work.read.tolist() == [0, 1]


def test_a_held_request_is_answered_when_released_and_its_repeats_with_held():
    core = server(holds=True)

    assert core.receive(push(0, 0)) is None
    assert said(core.receive(push(0, 0))) == (Kind.HELD, ())
    [work] = core.release([core.gate.asked[0].ticket])

    assert work.apply.tolist() == [0]
    assert said(core.finish(work.ticket)) == (Kind.OK, ())
    assert said(core.receive(push(0, 0))) == (Kind.OK, ())


def test_a_round_is_released_in_the_order_the_mode_asks_for():
    core = server(holds=True)
    core.receive(push(0, 0, sender=W1))
    core.receive(push(0, 0, sender=W0))
    second, first = (work.ticket for work in core.gate.asked)

    works = core.release([first, second])

    assert [work.request.signature.sender for work in works] == [W0, W1]


def test_held_and_refused_slots_are_told_apart_at_once():
    assert said(server(holds=True).receive(push(0, 0, 3))) == (Kind.HELD, (3,))


def test_two_pieces_of_a_push_are_held_for_disjoint_slots():
    core = server(holds=True)
    core.receive(push(0, 0, 1))

    assert said(core.receive(push(0, 1, 2, piece=2))) == (Kind.HELD, (1,))
    assert said(core.receive(push(0, 0, piece=3))) == (Kind.HELD, ())

    assert [work.apply.tolist() for work in core.gate.asked] == [[0, 1], [2]]
    core.validate()


def test_a_push_that_failed_fails_again_and_is_not_tried_again():
    core = server()
    apply(core, push(0, 0), FAILURE)

    again = core.receive(push(0, 0))

    assert said(again) == (Kind.ERROR, ())
    assert again.error == (*FAILURE, S0)


def test_a_failed_pull_may_be_tried_again():
    core = server()
    assert apply(core, pull(0, 0), FAILURE).kind is Kind.ERROR

    assert apply(core, pull(0, 0)).kind is Kind.OK


def test_what_its_maker_has_the_answer_to_is_passed_over():
    core = server()
    apply(core, push(5, 0, oldest=5))

    assert core.receive(push(4, 0, oldest=4)) is None
    assert core.receive(pull(4, 0, oldest=4)) is None


def test_a_held_pull_is_dropped_when_its_maker_does_not_wait_any_more():
    core = server(holds=True)
    core.receive(pull(0, 0))

    core.receive(pull(1, 0, oldest=1))

    assert core.gate.gone == [1]
    assert len(core.entries) == 1


def test_a_former_life_is_refused_once_the_new_one_was_heard():
    core = server()
    apply(core, push(0, 0, life=2))

    assert said(core.receive(push(7, 0, life=1))) == (Kind.FENCED, ())


def test_what_a_former_life_left_held_is_dropped():
    core = server(holds=True)
    core.receive(push(0, 0, life=1))

    core.receive(push(0, 0, life=2))

    assert core.gate.gone == [1]
    assert core.release([1]) == []


def test_what_is_meant_for_another_life_of_the_server_is_passed_over():
    assert server().receive(push(0, 0, recipient_incarnation=2)) is None
    assert isinstance(server().receive(push(0, 0, recipient_incarnation=0)), Work)


def test_a_request_of_a_newer_epoch_waits_until_the_server_knows_it():
    core = server()

    assert said(core.receive(push(0, 0, epoch=2))) == (Kind.BEHIND, ())

    core.learn(view(S0, S0, S0, S1, epoch=2))
    assert isinstance(core.receive(push(0, 0, epoch=2)), Work)


def test_a_fenced_node_is_refused_and_what_it_left_held_is_dropped():
    core = server(holds=True)
    core.receive(push(0, 0, sender=D0))

    core.learn(view(S0, S0, S0, S1, epoch=2, d0=2, fenced={D0: 1}))

    assert core.gate.gone == [1]
    assert said(core.receive(push(1, 0, sender=D0))) == (Kind.FENCED, ())
    assert core.receive(push(0, 0, sender=D0, life=2)) is None  # held


def merged(*pushes, timestamp=0, slots=(0, 1)):
    return push(timestamp, *slots, sender=D0, constituents=tuple(map(inside, pushes)))


def test_pushes_inside_a_merged_one_are_recognised_when_they_come_alone():
    core = server()
    apply(core, merged(push(0, 0), push(0, 1, sender=W1)))

    assert said(core.receive(push(0, 0))) == (Kind.OK, ())
    assert said(core.receive(push(0, 1, sender=W1))) == (Kind.OK, ())


def test_a_push_that_comes_alone_waits_for_the_work_on_the_merged_one():
    core = server()
    core.receive(merged(push(0, 0)))

    assert said(core.receive(push(0, 0))) == (Kind.HELD, ())


def test_a_push_that_is_inside_a_failed_merge_has_failed():
    core = server()
    apply(core, merged(push(0, 0)), FAILURE)

    assert core.receive(push(0, 0)).error == (*FAILURE, S0)


def test_a_merged_push_with_one_inside_that_was_counted_is_not_applied():
    core = server()
    apply(core, push(0, 0))

    answer = core.receive(merged(push(0, 0), push(0, 1, sender=W1)))

    assert answer.kind is Kind.ERROR
    assert "9.1/0.0@0 inside 1048576.1/0.0@0 was applied without it" in answer.error.text


def test_a_merged_push_of_a_former_life_of_its_worker_still_counts_for_the_others():
    core = server()
    apply(core, push(0, 2, life=2))

    assert isinstance(core.receive(merged(push(0, 0, life=1), push(0, 1, sender=W1))), Work)


def test_a_slot_leaves_with_what_it_remembers():
    here, there = server(), Incoming(S1, 1, HERE, Gate())
    apply(here, push(0, 2))
    for core in (here, there):
        core.learn(LATER)

    state, answers = here.give(2)
    assert there.adopt(state)

    assert answers == []
    assert said(there.receive(push(0, 2, recipient=S1))) == (Kind.OK, ())
    assert said(here.receive(push(0, 2))) == (Kind.WRONG_OWNER, (2,))


def test_requests_held_for_a_slot_that_leaves_are_sent_after_it():
    core = server(holds=True)
    core.receive(push(0, 1, 2))
    core.receive(push(0, 2, sender=W1))
    core.learn(LATER)

    _, answers = core.give(2)

    assert [said(answer) for answer in answers] == [
        (Kind.HELD, (2,)),
        (Kind.WRONG_OWNER, (2,)),
    ]
    assert core.gate.gone == [2]
    [work] = core.release([1, 2])
    assert work.apply.tolist() == [1]
    assert said(core.finish(work.ticket)) == (Kind.OK, (2,))


def test_a_slot_stays_while_it_is_worked_on():
    core = server()
    work = core.receive(push(0, 2))
    core.learn(LATER)

    assert core.leaving == []
    with pytest.raises(SlotBusyError, match="slot 2 cannot leave"):
        core.give(2)

    core.finish(work.ticket)
    assert core.leaving == [2]


def test_a_slot_is_served_only_once_it_has_come():
    core = Incoming(S1, 1, HERE, Gate())
    core.learn(LATER)

    answer = core.receive(push(0, 2, recipient=S1, map_version=2))

    assert said(answer) == (Kind.WRONG_OWNER, (2,))
    assert answer.map_version == 2


def test_a_copy_of_an_old_move_is_not_taken():
    here, there = server(), Incoming(S1, 1, HERE, Gate())
    for core in (here, there):
        core.learn(LATER)
    state, _ = here.give(2)

    assert there.adopt(state)
    assert not there.adopt(state)
    assert not here.adopt(state)


def test_a_slot_of_a_newer_map_is_taken_only_when_that_is_known():
    here, there = server(), Incoming(S1, 1, HERE, Gate())
    here.learn(LATER)
    state, _ = here.give(2)

    with pytest.raises(BehindError, match="slot 2 moves under map 2, but only map 1 is known"):
        there.adopt(state)


def test_a_server_that_joins_later_has_no_slot_until_one_comes():
    core = Incoming(S0, 1, HERE, Gate(), is_founder=False)

    assert said(core.receive(push(0, 0))) == (Kind.WRONG_OWNER, (0,))


def test_a_server_starts_with_what_a_checkpoint_remembers():
    before = server()
    apply(before, push(0, 0))

    after = server(windows=before.windows)

    assert said(after.receive(push(0, 0))) == (Kind.OK, ())


def test_a_round_counts_its_arrivals_also_where_nothing_is_left_to_apply():
    core = server()
    assert apply(core, push(0, everywhere=True)).kind is Kind.OK
    apply(core, push(1, 0, everywhere=True))

    apply(core, push(1, 0, everywhere=True, piece=2))

    assert [work.apply.tolist() for work in core.gate.asked] == [[], [0], []]


@pytest.mark.parametrize(
    ("wrong", "text"),
    [
        ({"slots": array(1, 0)}, "must strictly rise"),
        ({"slots": array(1, 1)}, "must strictly rise"),
        ({"slots": array(-1, 0)}, "must lie in 0 … 3"),
        ({"slots": array(4)}, "must lie in 0 … 3"),
        ({"oldest": 6}, "is younger"),
        ({"push": False}, "neither pushes nor pulls"),
        ({"signature": push(5000).signature}, "runs 1024 or more ahead of unanswered 0"),
        ({"constituents": (inside(push(5000, sender=W1)),)}, "runs 1024 or more ahead"),
    ],
)
def test_a_request_that_makes_no_sense_is_an_error(wrong, text):
    answer = server().receive(replace(push(5, 0), **wrong))

    assert answer.kind is Kind.ERROR
    assert text in answer.error.text
