"""A worker's way to its tables: through its dispatcher and, once that life is over, to the servers.

A push that a dispatcher was given goes to the servers only when its life is fenced, and what went
direct is never given to a dispatcher (docs/requests.md, rule 5). So a way that has closed stays
closed: the worker asks the servers itself from then on, until another dispatcher has come and
nothing of this worker is under way.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from kv.dispatcher.assignment import dispatcher_of
from kv.placement import SlotMap
from postoffice.customer import Finish
from postoffice.node import Role, node_id, role_and_rank
from postoffice.postoffice import Postoffice
from postoffice.view import ClusterView
from van.message import Message, Meta

THROUGH = SlotMap.even(1)
"""The map that requests to a dispatcher are cut by: it answers for all slots."""

DIRECT = 2  # the piece of a request without rows that goes to servers in a dispatcher's place


class Way:
    """Whether and how a worker goes through a dispatcher.

    Args:
        office: the worker's node, perhaps not started.

    Attributes:
        is_open: its requests go to its dispatcher.
        is_back: it is closed, and the dispatcher has another life: it may be opened again where
            nothing is under way.
    """

    def __init__(self, office: Postoffice) -> None:
        self._office = office
        self._is_used = self.is_open = office.shape.dispatchers > 0
        self.is_back = False

    @property
    def node(self) -> int:
        """The id of this worker's dispatcher; once the node has started."""
        shape = self._office.shape
        rank = dispatcher_of(self._office.rank, shape.workers, shape.dispatchers)
        return node_id(Role.DISPATCHER, rank)

    def see(self, old: ClusterView, new: ClusterView) -> None:
        """Close when the dispatcher has died, is another one than before, or has gone."""
        if not self._is_used:
            return
        before, now = old.nodes.get(self.node), new.nodes.get(self.node)
        is_former = before is not None and now is not None and before.incarnation != now.incarnation
        is_there = now is not None and now.id not in new.gone
        if not is_there or is_former:
            self.is_open = False
        self.is_back = is_there and not self.is_open

    def open_again(self) -> None:
        """From here on requests go to the dispatcher's next life; nothing is under way."""
        self.is_open, self.is_back = self.is_back, False


def is_dispatcher(node: int) -> bool:
    """Whether that is a dispatcher's id."""
    return role_and_rank(node)[0] is Role.DISPATCHER


def addressed(body: Any, server: int) -> dict[str, Any]:
    """The body of a request that a dispatcher is to pass on to one server."""
    return {**(body or {}), "to": server}


def told_directly(
    message: Message, servers: Sequence[int], body_for: Callable[[Any, int], Any]
) -> list[Message]:
    """Requests to servers in the place of one without arrays that a dispatcher was given.

    Args:
        message: as the dispatcher got it.
        servers: ids of those who live.
        body_for: makes the body for a server.
    """
    meta, body = message.meta, dict(message.meta.body or {})
    target = body.pop("to", None)
    body.pop("after", None)  # named what the dispatcher had to wait for
    made = []
    for server in servers if target is None else [target]:
        header: Meta = replace(meta, recipient=server, piece=DIRECT, body=body_for(body, server))
        made.append(Message(header))
    return made


def folded(answers: Sequence[Message]) -> tuple[dict[str, Any], list[Any]]:
    """Answers of servers as the body and the arrays of one answer; `unfolded` takes it apart."""
    said = [[answer.meta.sender, answer.meta.body, len(answer.arrays)] for answer in answers]
    return {"answers": said}, [array for answer in answers for array in answer.arrays]


def unfolded(answers: Sequence[Message]) -> list[Message]:
    """The servers' answers, those in a dispatcher's answer one by one, by node."""
    found = []
    for answer in answers:
        body = answer.meta.body
        if not is_dispatcher(answer.meta.sender) or not body or "answers" not in body:
            found.append(answer)
            continue
        arrays = iter(answer.arrays)
        for server, inner, count in body["answers"]:
            header = replace(answer.meta, sender=server, body=inner)
            found.append(Message(header, [next(arrays) for _ in range(count)]))
    return sorted(found, key=lambda answer: answer.meta.sender)


def unfolding(finish: Finish | None) -> Finish | None:
    """`finish`, which gets the servers' answers one by one."""
    return None if finish is None else lambda answers: finish(unfolded(answers))
