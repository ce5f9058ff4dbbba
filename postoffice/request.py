"""One numbered request: who is asked, what is still to come, and what becomes of the answers.

A record without behaviour of its own: `postoffice.tracker` numbers and ends requests,
`postoffice.customer` sends them.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from postoffice.node import node_name
from postoffice.resending import Place
from van.message import Message

Finish = Callable[[list[Message]], Any]
"""Makes a request's result of its answers."""

Take = Callable[[Message], bool]
"""Takes an answer as it comes, errors too; False: it has asked again, the answer does not count."""

Recut = Callable[[Message], bool]
"""Asks others in the place of a message's recipient; False: it is not known yet whom."""


class Request:
    """What is known of a request that is not forgotten.

    Args:
        first: its name, the first of its timestamps.
        recipients, cuts, finish, callback, take, recut, is_quiet, after: see `Tracker.new_request`.

    Attributes:
        waiting_for: the place of each answer that is still to come, with the message that asks;
            None until that is sent.
        parts: timestamps in all.
        expected: nodes that are asked.
        answers: those that no `take` has taken.
    """

    __slots__ = (
        "after",
        "answers",
        "callback",
        "error",
        "expected",
        "finish",
        "first",
        "is_done",
        "is_quiet",
        "parts",
        "recut",
        "result",
        "take",
        "waiting_for",
    )

    def __init__(
        self,
        first: int,
        recipients: Sequence[int],
        cuts: Sequence[int] | None,
        finish: Finish | None,
        callback: Callable[[], None] | None,
        take: Take | None,
        recut: Recut | None,
        is_quiet: bool,
        after: Callable[[Message], None] | None,
    ) -> None:
        self.first, self.parts, self.expected = first, 1, len(recipients)
        self.waiting_for: dict[Place, Message | None]
        if self.expected == 1 and (cuts is None or cuts[0] == 0):
            self.waiting_for = {(first, recipients[0], 1): None}
        elif cuts is None:
            self.waiting_for = {(first, node, 1): None for node in recipients}
        else:
            pairs = zip(cuts, recipients, strict=True)
            self.waiting_for = {(first + cut, node, 1): None for cut, node in pairs}
            self.expected = len(set(recipients))
            self.parts = 1 + max(cuts, default=0)
        self.finish, self.callback, self.is_quiet = finish, callback, is_quiet
        self.take, self.recut, self.after = take, recut, after
        self.answers: list[Message] = []
        self.error: BaseException | None = None
        self.result: Any = None
        self.is_done = False

    def silent_nodes(self) -> list[int]:
        """The nodes that have not answered, or not all of it."""
        return sorted({node for _, node, _ in list(self.waiting_for)})

    def describe(self) -> str:
        """What it waits for."""
        return "an answer from " + ", ".join(map(node_name, self.silent_nodes()))
