"""The desk of a server node: requests come through the network, a thread of its own works on them.

A save may take long and waits for disks; neither the van's thread nor those of the tables do.
"""

from __future__ import annotations

import logging
from collections import OrderedDict
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kv.checkpoint.desk import CHECKPOINT_APP, Command, Desk, Owned
from kv.engine import Engine
from kv.executor import Executor, Turns
from kv.placement import SlotMap
from kv.server import error_answer
from postoffice.customer import Customer
from postoffice.postoffice import Postoffice
from van.errors import PsliteError
from van.message import Kind, Message, answer_to

log = logging.getLogger(__name__)

_MOST_PLACES = 64  # that are noted
_REMEMBERED = 64  # answers, for requests that come once more
_LONG = (Command.SAVE, Command.LOAD, Command.CHECK, Command.TRY)


class CheckpointServer:
    """Serves checkpoints of one server's tables.

    Args:
        office: the node, not yet started.
        engine: its tables.
        is_threaded: work in a thread of its own; else in the call that brings the request, so that
            a network in lock step stays deterministic.
        owned: the slots that this server owns now, bool (1024,); None: an even share.
        on_place: called once with each URL under which checkpoints are kept, when it is first used.
    """

    def __init__(
        self,
        office: Postoffice,
        engine: Engine,
        *,
        is_threaded: bool = True,
        owned: Owned | None = None,
        on_place: Callable[[str], None] = lambda url: None,
    ) -> None:
        self.office = office
        self._on_place, self._places = on_place, set[str]()
        self._owned: Owned = owned or self._even_share
        self._desk: Desk | None = None
        self._engine = engine
        self._executor = Executor(int(is_threaded), self._fail, "pslite checkpoints")
        self._answers: OrderedDict[tuple[int, int, int], dict[str, Any] | None] = OrderedDict()
        office.before_goodbye.append(self._executor.close)
        Customer(CHECKPOINT_APP, 0, office, self._receive)

    @property
    def desk(self) -> Desk:
        """Made when the node knows its rank."""
        if self._desk is None:
            self._desk = Desk(self._engine, self.office.rank, self._owned)
        return self._desk

    def _even_share(self) -> NDArray[np.bool_]:
        slots = SlotMap.even(max(1, self.office.shape.servers))
        owned: NDArray[np.bool_] = slots.owner == self.office.rank
        return owned

    def _fail(self, error: BaseException) -> None:
        self.office.stop(f"the checkpoints' thread ended: {type(error).__name__}: {error}")

    def _receive(self, message: Message) -> None:
        """Work on a request; one that comes again is not worked on again."""
        meta = message.meta
        place = (meta.sender, meta.incarnation, meta.timestamp)
        if place in self._answers:
            answer = self._answers[place]
            if answer is not None:
                self._send(message, answer)
            else:  # it is worked on, which may take longer than who asks would wait
                self._reply(Message(answer_to(meta, Kind.HELD)))
            return
        self._answers[place] = None
        while len(self._answers) > _REMEMBERED:
            self._answers.popitem(last=False)
        if meta.cmd in _LONG:
            self._note_place(meta.body)
            self.office.reach(meta.sender)  # only this thread may make connections
            self._executor.submit(self._working(message, place), [CHECKPOINT_APP])
        else:
            self._answer(message, place)

    def _note_place(self, body: Any) -> None:
        url = body.get("url") if isinstance(body, dict) else None
        if isinstance(url, str) and url not in self._places and len(self._places) < _MOST_PLACES:
            self._places.add(url)
            self._on_place(url)

    def _working(self, message: Message, place: tuple[int, int, int]) -> Turns[None]:
        self._answer(message, place)
        return
        yield

    def _answer(self, message: Message, place: tuple[int, int, int]) -> None:
        answer = self.desk.answer(message.meta.cmd, message.meta.body or {})
        self._answers[place] = answer
        self._send(message, answer)

    def _send(self, message: Message, answer: dict[str, Any]) -> None:
        try:
            self._reply(Message(answer_to(message.meta, body=answer)))
        except ValueError as error:
            self._reply(error_answer(message.meta, error, self.office.node_id))

    def _reply(self, answer: Message) -> None:
        try:
            self.office.send(answer)
        except PsliteError as error:  # nobody can be told
            log.warning("%s cannot send %r: %s", self.office.name, answer, error)
