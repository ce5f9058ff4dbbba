"""Answers of a dispatcher: each is kept for copies of its request, unless it settles nothing."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable

from kv.delivery.repeats import NOT_DONE, Repeats
from kv.dispatcher.refusing import FAILED, Error
from kv.server import error_answer
from postoffice.postoffice import Postoffice
from van.errors import CodecError, PsliteError
from van.message import Kind, Message, Meta, answer_to

log = logging.getLogger(__name__)


class Answers:
    """Answers requests. Any thread.

    Args:
        office: the dispatcher's node.
        lock: the dispatcher's.
        repeats: which requests have been answered, and how.
        before: called with each request that is answered, the lock held.
    """

    def __init__(
        self,
        office: Postoffice,
        lock: threading.RLock,
        repeats: Repeats,
        before: Callable[[Meta], None],
    ) -> None:
        self._office, self._lock = office, lock
        self._repeats, self._before = repeats, before

    def done(self, message: Message, error: BaseException | None, said: Error | None) -> None:
        """Answer without more words, or pass an error on."""
        if error is not None:
            self.fail(message, error, said)
        else:
            self.answer(message, Message(answer_to(message.meta)))

    def fail(self, message: Message, error: BaseException, said: Error | None) -> None:
        """Pass an error on as the server has put it."""
        if said is not None:
            body = {FAILED: said.failed} if said.failed else None
            header = answer_to(message.meta, Kind.ERROR, error=tuple(said[:3]), body=body)
            self.answer(message, Message(header))
        else:
            self.refuse(message, error)

    def refuse(self, message: Message, error: BaseException) -> None:
        """Answer with an error of this node."""
        log.debug("request failed: %r", message, exc_info=error)
        self.answer(message, error_answer(message.meta, error, self._office.node_id))

    def answer(self, message: Message, answer: Message) -> None:
        """Answer a request."""
        meta: Meta = message.meta
        with self._lock:
            self._before(meta)
            error = answer.meta.error
            if error is not None and error[0] in NOT_DONE:
                stream = self._repeats.windows.find(meta)
                if stream is not None:
                    stream.in_hand.discard((meta.timestamp, meta.piece))
            else:
                self._repeats.settle(meta, answer)
        try:
            try:
                self._office.send(answer)
            except CodecError as problem:  # too large for the van
                self._office.send(error_answer(meta, problem, self._office.node_id))
        except PsliteError as problem:  # nobody can be told, and nobody else should suffer
            log.warning("%s cannot send %r: %s", self._office.name, answer, problem)
