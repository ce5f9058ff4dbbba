"""A worker's way to its tables: through its dispatcher and, once that life is over, to the servers.

A push that a dispatcher was given goes to the servers only when its life is fenced, and what went
direct is never given to a dispatcher (docs/requests.md, rule 5). So nobody goes back to a
dispatcher of which a life has ended: the worker asks the servers itself from then on, unless the
scheduler gives it another dispatcher.
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

    Which one the rule says, or the view where the scheduler has moved the worker. A dispatcher that
    has too much to do may ask its workers to go past it for a while. What is `wanted` may change at
    any moment; what is used changes when `kv.dispatcher.changing` takes the worker there, or its
    dispatcher dies.

    Args:
        office: the worker's node, perhaps not started.

    Attributes:
        is_open: its requests go to its dispatcher.
    """

    def __init__(self, office: Postoffice) -> None:
        self._office = office
        self.is_open = office.shape.dispatchers > 0
        self._used: int | None = None  # None: as the rule says
        self._over: set[int] = set()  # dispatchers of which a life has ended: nobody goes there
        self._asked: dict[int, tuple[int, bool]] = {}  # by dispatcher: number, and whether to spill

    @property
    def node(self) -> int:
        """The id of the dispatcher that this worker uses, or did; once the node has started."""
        rank = self._home if self._used is None else self._used
        return node_id(Role.DISPATCHER, rank)

    @property
    def _home(self) -> int:
        shape = self._office.shape
        return dispatcher_of(self._office.rank, shape.workers, shape.dispatchers)

    @property
    def wanted(self) -> int | None:
        """The id of the dispatcher to be used from now on; None: the servers themselves."""
        office = self._office
        node = node_id(Role.DISPATCHER, office.view.ways.get(office.node_id, self._home))
        if not self.is_there(node):
            return None
        _, spills = self._asked.get(node, (0, False))
        return None if spills else node

    @property
    def is_changing(self) -> bool:
        """Whether another way is wanted than is used."""
        return self.wanted != (self.node if self.is_open else None)

    def is_there(self, dispatcher: int) -> bool:
        """Whether a dispatcher lives, in its first life that was seen here, and has not left."""
        office = self._office
        is_known = dispatcher in office.nodes and dispatcher not in office.view.gone
        return is_known and dispatcher not in self._over

    def see(self, old: ClusterView, new: ClusterView) -> None:
        """Close when the dispatcher has died, is another one than before, or has gone."""
        if not self._office.shape.dispatchers:
            return
        for before in old.nodes.values():
            now = new.nodes.get(before.id)
            if before.role is Role.DISPATCHER and (
                now is None or now.incarnation != before.incarnation
            ):
                self._over.add(before.id)
        if self.is_open and (
            self.node in self._over or self.node in new.gone or self.node not in new.nodes
        ):
            self.is_open = False

    def ask(self, dispatcher: int, number: int, spills: bool) -> None:
        """A dispatcher asks this worker to go past it, or to come back; the last word counts.

        Args:
            dispatcher: who asks, in its only life that counts.
            number: of the wish, which grows.
        """
        if number > self._asked.get(dispatcher, (0, False))[0]:
            self._asked[dispatcher] = number, spills

    def use(self, dispatcher: int | None) -> None:
        """Requests go there from now on; None: to the servers."""
        self.is_open = dispatcher is not None
        if dispatcher is not None:
            self._used = role_and_rank(dispatcher)[1]


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
