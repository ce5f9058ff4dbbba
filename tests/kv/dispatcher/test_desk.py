"""What a server makes of merged pushes that it should not take."""

from __future__ import annotations

from kv.delivery.desk import Desk
from kv.errors import UnknownBaseError
from kv.placement import SlotMap
from kv.table_protocol import TABLES_APP, Command
from van.message import Kind, Message, Meta, answer_to

WORKER, OTHER, DISPATCHER = 9, 11, 1 << 20
INSIDE = (OTHER, 1, TABLES_APP, 0, 7, 7, ())


def desk_and_answers() -> tuple[Desk, list[Message]]:
    sent: list[Message] = []
    desk = Desk(SlotMap.even(1), lambda: 8, lambda meta: [], lambda message: None, sent.append)
    desk.rank = 0
    return desk, sent


def merged(sender: int, timestamp: int = 0) -> Message:
    """A merged push with push 7 of another worker in it."""
    names = {"sender": sender, "incarnation": 1, "app": TABLES_APP, "timestamp": timestamp}
    return Message(Meta(**names, piece=1, cmd=Command.PUSH, constituents=(INSIDE,)))


def direct() -> Message:
    """Push 7 of that worker, sent by itself."""
    names = {"sender": OTHER, "incarnation": 1, "app": TABLES_APP, "timestamp": 7, "oldest": 7}
    return Message(Meta(**names, piece=2, cmd=Command.PUSH))


def test_a_worker_cannot_speak_for_others() -> None:
    desk, sent = desk_and_answers()

    assert desk.admit(merged(WORKER)) is None

    (answer,) = sent
    assert answer.meta.kind is Kind.ERROR
    assert desk.admit(direct()) is not None


def test_a_push_waits_while_it_is_worked_on_inside_a_merged_one() -> None:
    desk, sent = desk_and_answers()

    assert desk.admit(merged(DISPATCHER)) is not None
    assert desk.admit(direct()) is None

    assert [answer.meta.kind for answer in sent] == [Kind.BEHIND]


def test_a_push_that_was_counted_inside_a_merged_one_is_only_answered() -> None:
    desk, sent = desk_and_answers()
    request = merged(DISPATCHER)
    assert desk.admit(request) is not None
    desk.note_push(request)
    desk.settle(request, Message(Meta()))

    assert desk.admit(direct()) is None

    assert [answer.meta.kind for answer in sent] == [Kind.OK]


def test_what_is_inside_is_remembered_though_the_dispatcher_has_died_meanwhile() -> None:
    desk, sent = desk_and_answers()
    request = merged(DISPATCHER)
    assert desk.admit(request) is not None
    desk.windows.fence(DISPATCHER, 1)
    desk.note_push(request)
    desk.settle(request, Message(Meta()))

    assert desk.admit(direct()) is None

    assert [answer.meta.kind for answer in sent] == [Kind.OK]


def test_what_is_inside_a_merged_push_that_is_sent_anew_has_not_failed() -> None:
    desk, sent = desk_and_answers()
    request = merged(DISPATCHER)
    assert desk.admit(request) is not None

    error = (UnknownBaseError.__name__, "the update before is not known here", 8)
    desk.settle(request, Message(answer_to(request.meta, Kind.ERROR, error=error)))

    assert desk.admit(merged(DISPATCHER)) is not None
    assert sent == []
