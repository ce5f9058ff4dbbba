"""Answers as they go out: errors in their form, and what to do when one cannot be sent."""

from __future__ import annotations

import logging
from collections.abc import Callable

from kv.errors import VersionMismatchError
from kv.server import error_answer
from kv.table_messages import Tables, clocks_of, error_of
from postoffice.postoffice import Postoffice
from van.errors import CodecError, PsliteError
from van.message import Message, Meta

log = logging.getLogger(__name__)


class Answers:
    """Sends answers; any thread.

    Args:
        office: the node that sends them.
        tables_of: the tables of a request.
    """

    def __init__(self, office: Postoffice, tables_of: Callable[[Meta], Tables]) -> None:
        self._office, self._tables_of = office, tables_of

    def send(self, answer: Message, message: Message | None = None) -> None:
        """Send the answer to a request; if it is too large for the van, that is the answer."""
        try:
            try:
                self._office.send(answer)
            except CodecError as error:  # too large for the van
                if message is None:
                    raise
                self._office.send(error_answer(message.meta, error, self._office.node_id))
        except PsliteError as error:  # nobody can be told, and nobody else should suffer
            log.warning("%s cannot send %r: %s", self._office.name, answer, error)

    def error(self, message: Message, error: Exception) -> Message:
        """The answer to a request that has failed."""
        log.debug("request failed: %r", message, exc_info=error)
        answer = error_answer(message.meta, error_of(message.meta, error), self._office.node_id)
        if isinstance(error, VersionMismatchError):  # so that the worker can renew its base
            answer.meta.clocks = clocks_of(self._tables_of(message.meta), self._office.rank)
        return answer
