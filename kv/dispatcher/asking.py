"""A dispatcher's end of its conversations with servers: nobody waits, who cares is called."""

from __future__ import annotations

import logging
from collections.abc import Callable, Sequence
from typing import Any

from postoffice.customer import Customer
from postoffice.postoffice import Postoffice
from postoffice.request import Recut, Request, Take
from van.errors import PsliteError, UnreachablePeerError
from van.message import Message

log = logging.getLogger(__name__)

Ended = Callable[[BaseException | None], None]
"""Called once when a request is over, with what went wrong."""


class Upstream(Customer):
    """Sends requests to servers.

    Args:
        app, customer, office, make_error, handle_request: see `Customer`.
    """

    def __init__(
        self,
        app: int,
        customer: int,
        office: Postoffice,
        make_error: Callable[[str, str, str], PsliteError],
        handle_request: Callable[[Message], None] | None = None,
    ) -> None:
        self._ended: dict[int, Ended] = {}
        super().__init__(app, customer, office, handle_request, make_error)

    def ask(
        self,
        recipients: Sequence[int],
        send: Callable[[int, int], None],
        ended: Ended,
        *,
        take: Take | None = None,
        recut: Recut | None = None,
        finish: Callable[[list[Message]], Any] | None = None,
        after: Callable[[Message], None] | None = None,
    ) -> int | None:
        """Make a request of one message to each of some nodes; its timestamp, if there are any.

        Args:
            send: sends the messages, given timestamp and the oldest one without an answer.
            ended: called when all have answered, or it has failed.
            take, recut, finish, after: see `Customer.new_request`.
        """
        if not recipients:
            ended(None)
            return None
        first = self.new_request(recipients, finish, take=take, recut=recut, after=after)
        self._ended[first] = ended
        try:
            send(first, self.oldest)
        except BaseException as error:
            if self._ended.pop(first, None) is not None:
                self.forget(first)
                ended(error)
        return first

    def send(self, message: Message) -> None:
        """As `Customer.send`; where too much waits for a server, later."""
        try:
            super().send(message)
        except UnreachablePeerError as error:
            log.debug("%r is sent later: %s", message, error)

    def _complete(self, request: Request) -> None:
        super()._complete(request)
        ended = self._ended.pop(request.first, None)
        if ended is not None:
            self.forget(request.first)  # nobody waits for it
            ended(request.error)
