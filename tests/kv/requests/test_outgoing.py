from __future__ import annotations

from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv.requests import Failure, Kind, Outgoing, Request
from kv.requests.errors import FencedNodeError, WindowFullError
from tests.kv.requests.making import D0, FIXED, S0, S1, S2, W0, array, reply, view

HERE = view(S0, S1, S2, S0)
LATER = view(S0, S1, S1, S0, map_version=2)
D0_DEAD = view(S0, S1, S2, S0, epoch=2, d0=0, fenced={D0: 1})


def outgoing(**settings) -> Outgoing:
    return Outgoing(W0, 1, HERE, **settings)


def targets(requests: list[Request]) -> dict[int, list[int]]:
    return {request.recipient: request.slots.tolist() for request in requests}


def test_a_request_is_cut_by_the_owners_of_its_slots():
    _, sent = outgoing().request(array(0, 1, 2, 3), 0.0, push=True)

    assert targets(sent) == {S0: [0, 3], S1: [1], S2: [2]}


@FIXED
@given(
    owners=st.lists(st.sampled_from([S0, S1, S2]), min_size=6, max_size=6),
    slots=st.sets(st.integers(0, 5), min_size=1),
)
def test_pieces_cover_each_slot_once_at_its_owner(owners, slots):
    _, sent = Outgoing(W0, 1, view(*owners)).request(array(*sorted(slots)), 0.0, pull=True)

    assert {(s, r.recipient) for r in sent for s in r.slots} == {(s, owners[s]) for s in slots}
    assert sum(r.slots.size for r in sent) == len(slots)


def test_it_is_complete_once_when_every_piece_has_its_answer():
    core = outgoing()
    timestamp, sent = core.request(array(0, 1), 0.0, push=True)
    first, second = (reply(request) for request in sent)

    assert not core.answer(first, 0.1).done
    done = core.answer(second, 0.2)

    assert done.done
    assert done.settled.tolist() == [1]
    assert core.answer(second, 0.3) is None
    assert not core.is_pending(timestamp)


def test_an_unanswered_piece_goes_out_again_each_time_after_a_longer_wait():
    core = outgoing(timeout=1.0, longest=2.5)
    core.request(array(0), 0.0, push=True)

    times = [t / 10 for t in range(1, 100) if core.due(t / 10)]

    assert times == [1.0, 3.0, 5.5, 8.0]


def test_a_resend_differs_only_in_what_its_maker_has_learnt():
    core = outgoing()
    _, [early] = core.request(array(0), 0.0, push=True)
    _, [piece] = core.request(array(1), 0.0, push=True, cmd=5, priority=2, payload="values")
    core.answer(reply(early), 0.5)

    [again] = core.due(1.0)

    assert (again.signature, again.piece, again.cmd) == (piece.signature, piece.piece, 5)
    assert (again.payload, again.priority) == ("values", 2)
    assert (piece.oldest, again.oldest) == (0, 1)


def test_an_answered_piece_is_not_sent_again():
    core = outgoing()
    _, [to_s0, _] = core.request(array(0, 1), 0.0, push=True)
    core.answer(reply(to_s0), 0.1)

    assert targets(core.due(1.0)) == {S1: [1]}


def test_held_stops_resending_but_for_a_rare_reminder():
    core = outgoing(reminder=30.0)
    _, [piece] = core.request(array(0), 0.0, push=True)
    core.answer(reply(piece, Kind.HELD), 0.5)

    assert core.due(30.0) == []
    assert len(core.due(30.5)) == 1
    assert core.due(60.0) == []
    assert len(core.due(60.5)) == 1


def test_what_was_held_is_asked_again_in_a_new_epoch():
    core = outgoing()
    _, [piece] = core.request(array(0), 0.0, push=True)
    core.answer(reply(piece, Kind.HELD), 0.5)

    [progress] = core.learn(view(S0, S1, S2, S0, epoch=2, s0=2), 0.6)

    assert [(r.piece, r.recipient_incarnation) for r in progress.send] == [(1, 2)]
    assert len(core.due(1.6)) == 1


def test_slots_with_a_new_owner_go_there_when_the_map_is_learnt():
    core = outgoing()
    core.request(array(1, 2), 0.0, push=True)

    [progress] = core.learn(LATER, 0.5)

    assert targets(progress.send) == {S1: [2]}
    assert progress.send[0].piece == 3


def test_refused_slots_wait_for_the_map_that_moves_them():
    core = outgoing()
    _, [_, to_s2] = core.request(array(1, 2), 0.0, push=True)

    assert core.answer(reply(to_s2, Kind.WRONG_OWNER, 2, map_version=2), 0.5).send == ()
    [progress] = core.learn(LATER, 0.6)

    assert targets(progress.send) == {S1: [2]}


def test_refused_slots_whose_owner_is_not_ready_are_tried_again():
    core = outgoing()
    _, [piece] = core.request(array(2), 0.0, push=True)
    core.answer(reply(piece, Kind.WRONG_OWNER, 2), 0.5)

    assert core.due(1.4) == []
    assert targets(core.due(1.5)) == {S2: [2]}


def test_an_answer_speaks_for_its_piece_but_for_the_slots_it_refuses():
    core = outgoing()
    _, [piece] = core.request(array(0, 3), 0.0, pull=True)

    progress = core.answer(reply(piece, Kind.OK, 3), 0.1)

    assert progress.settled.tolist() == [0]
    assert not progress.done


def test_a_late_refusal_of_a_piece_does_not_touch_slots_that_are_elsewhere():
    core = outgoing()
    _, [_, to_s2] = core.request(array(1, 2), 0.0, push=True)
    core.learn(LATER, 0.5)

    assert core.answer(reply(to_s2, Kind.WRONG_OWNER, 2), 0.6) is None


def test_an_error_settles_its_piece_and_is_told_when_all_have_answered():
    core = outgoing()
    _, [to_s0, to_s1] = core.request(array(0, 1), 0.0, push=True)
    failure = Failure("TableError", "no such table", S0)

    assert not core.answer(reply(to_s0, Kind.ERROR, error=failure), 0.1).done
    done = core.answer(reply(to_s1), 0.2)

    assert done.done
    assert done.errors == (failure,)


def test_answers_to_a_former_life_are_not_taken_for_ones_own():
    core = Outgoing(W0, 2, view(S0, S1, w0=2))
    _, [piece] = core.request(array(0), 0.0, push=True)
    late = replace(reply(piece), request=piece.signature._replace(incarnation=1))

    assert core.answer(late, 0.1) is None
    assert core.is_pending(0)


def test_a_server_that_is_behind_is_asked_again_in_time():
    core = outgoing()
    _, [piece] = core.request(array(0), 0.0, push=True)
    core.answer(reply(piece, Kind.BEHIND), 0.1)

    assert len(core.due(1.0)) == 1


def test_the_oldest_unanswered_request_bounds_how_many_may_follow():
    core = outgoing(limit=2)
    _, [first] = core.request(array(0), 0.0, push=True)
    _, [second] = core.request(array(0), 0.0, push=True)
    core.answer(reply(second), 0.1)

    assert not core.has_room
    with pytest.raises(WindowFullError, match="request 2 would run 2 or more ahead of request 0"):
        core.request(array(0), 0.2, push=True)
    core.answer(reply(first), 0.3)
    assert core.has_room
    assert core.oldest == 2


def test_a_request_given_up_lets_the_others_go_on():
    core = outgoing()
    core.request(array(0), 0.0, push=True)
    core.request(array(1), 0.0, push=True)

    assert core.abandon(0)

    assert core.oldest == 1
    assert targets(core.due(1.0)) == {S1: [1]}


def test_a_request_without_slots_asks_nobody():
    core = outgoing()

    timestamp, sent = core.request(array(), 0.0, pull=True)

    assert sent == []
    assert not core.is_pending(timestamp)


def test_a_round_reaches_also_servers_without_slots_of_it():
    core = outgoing()
    _, sent = core.request(array(1), 0.0, push=True, everywhere=True)

    assert targets(sent) == {S1: [1], S0: [], S2: []}
    done = [core.answer(reply(request), 0.1).done for request in sent]
    assert done == [False, False, True]


def test_a_round_reaches_a_server_that_joins_meanwhile():
    core = Outgoing(W0, 1, view(S0, S0))
    core.request(array(0), 0.0, push=True, everywhere=True)

    [progress] = core.learn(view(S0, S1, map_version=2), 0.5)

    assert targets(progress.send) == {S1: []}


def test_a_round_does_not_wait_for_a_server_that_has_lost_its_slots():
    core = Outgoing(W0, 1, view(S0, S1))
    _, [to_s0, _] = core.request(array(0), 0.0, push=True, everywhere=True)
    core.answer(reply(to_s0), 0.1)

    [progress] = core.learn(view(S0, S0, map_version=2), 0.5)

    assert progress.done
    assert not progress.errors


def test_a_push_given_to_a_dispatcher_goes_there_whole():
    _, [piece] = outgoing().request(array(0, 1, 2), 0.0, push=True, via=(D0, 1))

    assert (piece.recipient, piece.recipient_incarnation) == (D0, 1)
    assert piece.slots.tolist() == [0, 1, 2]


def test_a_new_map_changes_nothing_for_a_push_at_a_dispatcher():
    core = outgoing()
    core.request(array(0, 1, 2), 0.0, push=True, via=(D0, 1))

    assert core.learn(LATER, 0.5) == []


def test_a_push_leaves_its_dispatcher_when_that_life_of_it_is_dead():
    core = outgoing()
    core.request(array(0, 1), 0.0, push=True, via=(D0, 1))

    [progress] = core.learn(D0_DEAD, 0.5)

    assert targets(progress.send) == {S0: [0], S1: [1]}
    assert all(request.epoch == 2 for request in progress.send)


def test_a_push_stays_direct_when_its_dispatcher_returns_in_another_life():
    core = outgoing()
    core.request(array(0), 0.0, push=True, via=(D0, 1))

    [progress] = core.learn(view(S0, S1, S2, S0, epoch=2, d0=2, fenced={D0: 1}), 0.5)

    assert targets(progress.send) == {S0: [0]}
    assert targets(core.due(1.5)) == {S0: [0]}


def test_a_dispatcher_known_to_be_dead_is_passed_by():
    core = outgoing()
    core.learn(D0_DEAD, 0.0)

    _, sent = core.request(array(0), 0.5, push=True, via=(D0, 1))

    assert targets(sent) == {S0: [0]}


def test_a_node_that_was_declared_dead_says_nothing_more():
    core = outgoing()
    _, [piece] = core.request(array(0), 0.0, push=True)

    assert core.answer(reply(piece, Kind.FENCED), 0.1) is None

    assert core.due(50.0) == []
    assert core.next_due is None
    with pytest.raises(FencedNodeError, match="node 9 in its life 1"):
        core.request(array(0), 0.2, push=True)


def test_old_views_are_not_gone_back_to():
    core = outgoing()
    core.learn(LATER, 0.0)

    core.learn(HERE, 0.1)

    assert core.view is LATER


def test_it_says_when_it_wants_to_be_asked_and_whom_it_waits_for():
    core = outgoing(timeout=2.0)
    assert core.next_due is None

    timestamp, _ = core.request(array(0, 1), 1.0, push=True)

    assert core.next_due == 3.0
    assert core.unanswered(timestamp) == [S0, S1]


@FIXED
@given(st.lists(st.integers(0, 3), unique=True, min_size=1).map(sorted), st.randoms())
def test_answers_may_come_in_any_order_and_repeat(slots, random):
    core = outgoing()
    _, sent = core.request(np.array(slots), 0.0, push=True)
    answers = [reply(request) for request in sent] * 2
    random.shuffle(answers)

    changes = [core.answer(answer, 0.1) for answer in answers]

    assert sum(change.done for change in changes if change) == 1
    assert sorted(s for change in changes if change for s in change.settled) == slots
