"""A worker's way to its tables: through its dispatcher and, once that life is over, to the servers.

A push that a dispatcher was given goes to the servers only when its life is fenced, and what went
direct is never given to a dispatcher (docs/requests.md, rule 5). So a way closes where the life of
its dispatcher ends, at once, and opens only between two requests: to the next life of the same
dispatcher as to another one (`kv.dispatcher.changing`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

from kv.dispatcher.assignment import dispatcher_of
from kv.placement import SlotMap
from postoffice.node import Role, node_id, role_and_rank
from postoffice.postoffice import Postoffice
from postoffice.request import Finish
from postoffice.view import ClusterView
from van.message import Message, Meta

THROUGH = SlotMap.even(1)
"""The map that requests to a dispatcher are cut by: it answers for all slots."""

DIRECT = 2  # the piece of a request without rows that goes to servers in a dispatcher's place

Life = tuple[int, int]
"""Id and incarnation of a node."""


class Way:
    """Whether and how a worker goes through a dispatcher.

    Which one the rule says, or the view where the scheduler has moved the worker. A dispatcher that
    has too much to do may ask its workers to go past it for a while. What is `wanted` may change at
    any moment; what is used changes when `kv.dispatcher.changing` takes the worker there, or its
    dispatcher dies. A dispatcher that is there from the start waits for its workers from the start,
    so that they need not say that they come; where it or the worker was started again, they do.

    Args:
        office: the worker's node, perhaps not started.

    Attributes:
        is_possible: there are dispatchers in this job.
        is_open: its requests go to a dispatcher.
        used: to which life; None: to none, or the node has not started.
    """

    def __init__(self, office: Postoffice) -> None:
        self._office = office
        self.is_open = self.is_possible = office.shape.dispatchers > 0
        self.used: Life | None = None
        self._last: int | None = None  # id of the dispatcher that was used last
        self._asked: dict[Life, tuple[int, bool]] = {}  # number of the wish, and whether to spill

    @property
    def node(self) -> int:
        """The id of the dispatcher that this worker uses, or did; once the node has started."""
        return self._home if self._last is None else self._last

    @property
    def _home(self) -> int:
        """The id of the dispatcher that the rule gives it."""
        shape = self._office.shape
        rank = dispatcher_of(self._office.rank, shape.workers, shape.dispatchers)
        return node_id(Role.DISPATCHER, rank)

    @property
    def wanted(self) -> Life | None:
        """The dispatcher to be used from now on; None: the servers themselves."""
        if not self.is_possible:
            return None
        office = self._office
        rank = office.view.ways.get(office.node_id)
        life = self._life_of(self._home if rank is None else node_id(Role.DISPATCHER, rank))
        if life is None:
            return None
        _, spills = self._asked.get(life, (0, False))
        return None if spills else life

    @property
    def is_changing(self) -> bool:
        """Whether another way is wanted than is used."""
        return self.wanted != (self.used if self.is_open else None)

    def _life_of(self, dispatcher: int) -> Life | None:
        """The present life of a dispatcher, unless it has left."""
        office = self._office
        node = None if dispatcher in office.view.gone else office.nodes.get(dispatcher)
        return None if node is None else (node.id, node.incarnation)

    def is_there(self, life: Life) -> bool:
        """Whether that life of a dispatcher goes on."""
        return self._life_of(life[0]) == life

    def others(self) -> list[Life]:
        """The dispatchers that are there, but for the one that is wanted."""
        office = self._office
        lives = map(self._life_of, office.members(Role.DISPATCHER))
        return [life for life in lives if life is not None and life != self.wanted]

    def see(self, old: ClusterView, new: ClusterView) -> None:
        """Close when the life that is used has ended, or has left; called with each view."""
        if not self.is_possible:
            return
        if not old.nodes:
            is_first = not {self._office.node_id, self._home} & new.fenced.keys()
            self.use(self._life_of(self._home) if is_first else None)
        elif self.used is not None and not self.is_there(self.used):
            self.use(None)

    def ask(self, dispatcher: Life, number: int, spills: bool) -> None:
        """A dispatcher asks this worker to go past it, or to come back; the last word counts.

        Args:
            dispatcher: who asks.
            number: of the wish, which grows.
        """
        if number > self._asked.get(dispatcher, (0, False))[0]:
            self._asked[dispatcher] = number, spills

    def use(self, dispatcher: Life | None) -> None:
        """Requests go there from now on, if it has not died meanwhile; None: to the servers."""
        self.used, self.is_open = dispatcher, dispatcher is not None
        if dispatcher is not None:
            self._last = dispatcher[0]
            if not self.is_there(dispatcher):  # the view may have changed just before
                self.used, self.is_open = None, False


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
