from __future__ import annotations

import pytest

from kv.requests import Failure, Kind, Merging, Outgoing, Work
from kv.requests.errors import WindowFullError
from tests.kv.requests.making import D0, S0, S1, W0, W1, inside, pull, push, reply, view

HERE = view(S0, S1)
FAILURE = Failure("TableError", "no such table", S1)


def dispatcher(**settings) -> Merging:
    return Merging(Outgoing(D0, 1, HERE, **settings))


def to_dispatcher(timestamp: int, *slots: int, **fields):
    return push(timestamp, *slots, **({"recipient": D0} | fields))


A, B = to_dispatcher(0, 0), to_dispatcher(0, 0, 1, sender=W1)


def flushed(core: Merging):
    for request in (A, B):
        assert isinstance(core.receive(request), Work)
    return core.flush(0.0)[1].send


def test_pushes_go_on_as_one_that_lists_them():
    sent = flushed(dispatcher())

    assert [(r.recipient, r.slots.tolist()) for r in sent] == [(S0, [0]), (S1, [1])]
    assert all(r.constituents == (inside(A), inside(B)) for r in sent)
    assert {r.signature.sender for r in sent} == {D0}


def test_workers_hear_when_all_servers_have_answered():
    core = dispatcher()
    to_s0, to_s1 = flushed(core)

    assert core.answer(reply(to_s0), 0.1).answers == ()
    merged = core.answer(reply(to_s1), 0.2)

    assert merged.done == (0,)
    assert [(a.kind, a.request) for a in merged.answers] == [
        (Kind.OK, A.signature),
        (Kind.OK, B.signature),
    ]


def test_a_push_is_merged_once_however_often_it_comes():
    core = dispatcher()
    core.receive(A)

    assert core.receive(A).kind is Kind.HELD
    _, merged = core.flush(0.0)
    assert core.receive(A).kind is Kind.HELD
    [to_s0] = merged.send
    core.answer(reply(to_s0), 0.1)

    assert core.receive(A).kind is Kind.OK
    assert core.pushes == []


def test_a_push_fails_with_its_merge_and_its_repeats_hear_so():
    core = dispatcher()
    to_s0, to_s1 = flushed(core)
    core.answer(reply(to_s0), 0.1)

    merged = core.answer(reply(to_s1, Kind.ERROR, error=FAILURE), 0.2)

    assert [answer.error for answer in merged.answers] == [FAILURE, FAILURE]
    assert core.receive(A).error == FAILURE


def test_the_next_merge_fills_while_one_is_under_way():
    core = dispatcher()
    flushed(core)
    later = to_dispatcher(1, 1)

    core.receive(later)

    assert [push.signature for push in core.pushes] == [later.signature]
    core.validate()


def test_the_values_of_a_merged_push_are_let_go():
    core = dispatcher()

    work = core.receive(to_dispatcher(0, 0, payload="values"))

    assert work.request.payload == "values"
    assert [push.payload for push in core.pushes] == [None]


def test_slots_that_move_are_followed():
    core = dispatcher()
    flushed(core)

    merged = core.learn(view(S1, S1, map_version=2), 0.5)

    assert [(r.recipient, r.slots.tolist()) for r in merged.send] == [(S1, [0])]
    assert merged.send[0].constituents == (inside(A), inside(B))


def test_unanswered_pieces_are_sent_again():
    core = dispatcher()
    flushed(core)

    assert [r.recipient for r in core.due(1.0)] == [S0, S1]


def test_a_dispatcher_that_was_declared_dead_says_nothing_more():
    core = dispatcher()
    to_s0, to_s1 = flushed(core)
    core.answer(reply(to_s0), 0.1)

    merged = core.answer(reply(to_s1, Kind.FENCED), 0.2)

    assert merged.answers == ()
    assert merged.send == ()
    assert core.receive(A) is None
    assert core.due(100.0) == []


@pytest.mark.parametrize("life", [0, 2])
def test_what_is_not_meant_for_this_very_life_is_passed_over(life):
    core = dispatcher()

    assert core.receive(to_dispatcher(0, 0, recipient_incarnation=life)) is None
    assert core.pushes == []


def test_a_former_life_of_a_worker_is_refused():
    core = dispatcher()
    core.receive(to_dispatcher(0, 0, life=2))

    assert core.receive(to_dispatcher(3, 0, life=1)).kind is Kind.FENCED


def test_what_a_worker_has_the_answer_to_is_passed_over():
    core = dispatcher()
    core.receive(to_dispatcher(5, 0, oldest=5))

    assert core.receive(to_dispatcher(4, 0, oldest=4)) is None


@pytest.mark.parametrize(
    "request_",
    [
        pull(0, 0, recipient=D0),
        to_dispatcher(0, 0, pull=True),
        to_dispatcher(0, 0, constituents=(inside(A),)),
    ],
)
def test_only_plain_pushes_are_merged(request_):
    answer = dispatcher().receive(request_)

    assert answer.kind is Kind.ERROR
    assert "a dispatcher merges pushes of workers, nothing else" in answer.error.text


def test_a_merge_of_pushes_that_touch_nothing_is_done_at_once():
    core = dispatcher()
    core.receive(to_dispatcher(0))

    timestamp, merged = core.flush(0.0)

    assert merged.done == (timestamp,)
    assert [answer.kind for answer in merged.answers] == [Kind.OK]


def test_a_round_goes_everywhere_if_one_push_inside_does():
    core = dispatcher()
    core.receive(to_dispatcher(0, 0))
    core.receive(to_dispatcher(0, sender=W1, everywhere=True))

    _, merged = core.flush(0.0)

    assert [r.recipient for r in merged.send] == [S0, S1]


def test_flushing_nothing_is_an_error():
    with pytest.raises(ValueError, match="no push has come"):
        dispatcher().flush(0.0)


def test_a_merge_stays_open_when_too_many_are_under_way():
    core = dispatcher(limit=1)
    flushed(core)
    core.receive(to_dispatcher(1, 0, sender=W0, oldest=1))

    with pytest.raises(WindowFullError):
        core.flush(0.0)
    assert len(core.pushes) == 1
    core.validate()
