"""A worker that comes to a dispatcher brings its tables, however many."""

from __future__ import annotations

import threading
from collections.abc import Callable
from types import SimpleNamespace
from typing import Any

import pytest

from kv.dispatcher.joining import Joining
from kv.errors import KVError
from kv.spec import TableSpec
from van.message import Message, Meta

MANY = 2000  # tables; each a call within the other's would be more than Python bears

Defined = Callable[[BaseException | None], None]


class Desk:
    """A dispatcher's parts, as far as somebody who joins has to do with them."""

    def __init__(self, define: Callable[[TableSpec, Defined], None]) -> None:
        self.lock = threading.RLock()
        self.answers: list[Message] = []
        self.refusals: list[BaseException] = []
        parts: dict[str, Any] = {
            "office": SimpleNamespace(van=SimpleNamespace(now=lambda: 0.0)),
            "members": SimpleNamespace(come=lambda *given: False),
            "pulls": SimpleNamespace(pushed_at={}),
            "merging": None,
            "ends": None,
            "balancer": None,
            "answers": SimpleNamespace(
                answer=lambda message, answer: self.answers.append(answer),
                refuse=lambda message, error: self.refusals.append(error),
            ),
        }
        self.joining = Joining(lock=self.lock, define=define, **parts)

    def join(self, tables: int) -> None:
        specs = [TableSpec.sparse(f"t{n}", 2).resolved("async", 1) for n in range(tables)]
        body = {"tables": [spec.to_dict() for spec in specs], "step": 0, "position": -1}
        meta = Meta(sender=9, incarnation=1, body=body | {"rests": False})
        with self.lock:
            self.joining.join(Message(meta))


@pytest.mark.parametrize("tables", [0, 1, MANY])
def test_tables_that_are_known_at_once_are_taken_one_after_the_other(tables: int) -> None:
    known: list[str] = []

    def define(spec: TableSpec, defined: Defined) -> None:
        known.append(spec.name)
        defined(None)

    desk = Desk(define)
    desk.join(tables)

    assert known == [f"t{n}" for n in range(tables)]
    assert len(desk.answers) == 1
    assert desk.refusals == []


def test_it_is_answered_when_the_last_table_is_known_that_takes_its_time() -> None:
    waiting: list[Defined] = []
    desk = Desk(lambda spec, defined: waiting.append(defined))
    desk.join(3)

    for number in range(3):
        assert len(waiting) == number + 1
        assert desk.answers == []
        waiting[number](None)

    assert len(desk.answers) == 1


@pytest.mark.parametrize("is_at_once", [True, False])
def test_a_table_that_cannot_be_made_refuses_it_and_no_other_is_made(is_at_once: bool) -> None:
    asked: list[Defined] = []

    def define(spec: TableSpec, defined: Defined) -> None:
        asked.append(defined)
        if is_at_once:
            defined(KVError("no"))

    desk = Desk(define)
    desk.join(3)
    if not is_at_once:
        asked[0](KVError("no"))

    assert len(asked) == 1
    assert [str(error) for error in desk.refusals] == ["no"]
    assert desk.answers == []
