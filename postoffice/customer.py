"""Requests of one customer: numbered, answered by several nodes, waited for.

Source: ps-lite, include/ps/internal/customer.h. Here a request ends with the error that a
handler raised on the other side, and a finished one is forgotten.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from postoffice.errors import PostofficeError, RequestTimeoutError
from postoffice.node import node_name
from van.errors import PsliteError
from van.message import Message

if TYPE_CHECKING:
    from postoffice.postoffice import Postoffice

_REMEMBERED = 1024  # requests whose number of answers is still known when they are done

Finish = Callable[[list[Message]], Any]
"""Makes a request's result of its answers."""


@dataclass(slots=True)
class _Request:
    waiting_for: set[int]
    expected: int
    finish: Finish | None
    callback: Callable[[], None] | None
    answers: list[Message] = field(default_factory=list)
    error: BaseException | None = None
    result: Any = None
    is_done: bool = False

    def describe(self) -> str:
        """What it waits for."""
        return "an answer from " + ", ".join(node_name(node) for node in sorted(self.waiting_for))


class Customer:
    """One end of a conversation: sends requests under (app, customer) and collects the answers.

    Args:
        app: which application on the other side; equal on both sides.
        customer: which conversation of this node with that application.
        postoffice: the node.
        handle_request: takes requests that arrive; None where this end only asks.
        make_error: makes the exception of an error answer from node name, type and text.
    """

    def __init__(
        self,
        app: int,
        customer: int,
        postoffice: Postoffice,
        handle_request: Callable[[Message], None] | None = None,
        make_error: Callable[[str, str, str], PsliteError] | None = None,
    ) -> None:
        self.app, self.customer = app, customer
        self.postoffice = postoffice
        self.handle_request = handle_request
        self._make_error = make_error or _remote_error
        self._lock = threading.Lock()
        self._next = 0
        self._requests: dict[int, _Request] = {}
        self._answered: dict[int, int] = {}  # of the last requests that are done and forgotten
        postoffice.add_customer(self)

    def new_request(
        self,
        recipients: Sequence[int],
        finish: Finish | None = None,
        callback: Callable[[], None] | None = None,
    ) -> int:
        """Number a request to `recipients`; it is done when each of them has answered.

        Args:
            finish: called with all answers, in the order of node ids; what it returns is the
                request's result.
            callback: called when the request is done without error.
        """
        request = _Request(set(recipients), len(recipients), finish, callback)
        with self._lock:
            timestamp = self._next
            self._next += 1
            self._requests[timestamp] = request
        if not recipients:
            self._complete(timestamp, request)
        return timestamp

    @contextlib.contextmanager
    def sending(self, timestamp: int) -> Iterator[None]:
        """Around the sending of a request: if it fails, nobody will answer, and it is forgotten."""
        try:
            yield
        except BaseException:
            with self._lock:
                self._requests.pop(timestamp, None)
            raise

    @property
    def oldest(self) -> int:
        """The oldest unanswered timestamp: receivers may forget what is below it."""
        with self._lock:
            open_ones = [ts for ts, request in self._requests.items() if not request.is_done]
            return min(open_ones, default=self._next)

    def num_response(self, timestamp: int) -> int:
        """How many nodes have answered; remembered for the last requests that are done."""
        request = self._requests.get(timestamp)
        if request is None:
            return self._answered.get(timestamp, 0)
        return request.expected - len(request.waiting_for)

    def is_done(self, timestamp: int) -> bool:
        """Whether `wait` would return, or raise, at once."""
        request = self._requests.get(timestamp)
        return request is None or request.is_done

    def take_answer(self, message: Message) -> None:
        """Note an answer; repeats and answers to forgotten requests change nothing."""
        timestamp, sender = message.meta.timestamp, message.meta.sender
        request = self._requests.get(timestamp)
        if request is None or sender not in request.waiting_for:
            return
        request.waiting_for.discard(sender)
        request.answers.append(message)
        if message.meta.error is not None and request.error is None:
            kind, text, node = message.meta.error
            request.error = self._make_error(node_name(node or sender), kind, text)
        if not request.waiting_for:
            self._complete(timestamp, request)

    def _complete(self, timestamp: int, request: _Request) -> None:
        if request.error is None:
            try:
                if request.finish is not None:
                    request.answers.sort(key=lambda answer: answer.meta.sender)
                    request.result = request.finish(request.answers)
                if request.callback is not None:
                    request.callback()
            except BaseException as error:  # raised where the request is waited for
                request.error = error
        request.answers.clear()
        request.is_done = True
        if request.error is None and request.finish is None:
            self._forget(timestamp, request)

    def _forget(self, timestamp: int, request: _Request) -> None:
        with self._lock:
            self._requests.pop(timestamp, None)
            self._answered[timestamp] = request.expected
            if len(self._answered) > _REMEMBERED:
                del self._answered[next(iter(self._answered))]

    def wait(self, timestamp: int, timeout: float | None = None) -> Any:
        """The result of a request when it is done; a request waited for is then forgotten.

        Args:
            timestamp: what `new_request` returned.
            timeout: seconds.
        Raises:
            PostofficeError: this customer made no such request.
            RequestTimeoutError: not done in time; the request stays and may be waited for again.
            PsliteError: what a handler raised on another node.
            ClusterStoppedError: the cluster ended.
        """
        request = self._requests.get(timestamp)
        if request is None:
            if type(timestamp) is not int or not 0 <= timestamp < self._next:
                raise PostofficeError(f"{self.postoffice.name} made no request {timestamp!r}")
            return None
        if not self.postoffice.wait(lambda: request.is_done, timeout, request.describe):
            names = ", ".join(node_name(node) for node in sorted(request.waiting_for))
            raise RequestTimeoutError(
                f"request {timestamp} of app {self.app} has no answer from {names} "
                f"after {timeout} s"
            )
        self._forget(timestamp, request)
        if request.error is not None:
            raise request.error
        return request.result

    def wait_all(self, timeout: float | None = None) -> None:
        """Wait for every request that is open; the first error is raised, after all are done."""
        error: BaseException | None = None
        for timestamp in sorted(self._requests):
            try:
                self.wait(timestamp, timeout)
            except PsliteError as problem:
                error = error or problem
        if error is not None:
            raise error

    def raise_failed(self) -> None:
        """Raise the error of a request that failed and was not waited for, if there is one."""
        for timestamp, request in list(self._requests.items()):
            if request.is_done and request.error is not None:
                self._requests.pop(timestamp, None)
                raise request.error

    @property
    def pending(self) -> int:
        """Requests not yet answered."""
        return sum(not request.is_done for request in list(self._requests.values()))


def _remote_error(node: str, kind: str, text: str) -> PsliteError:
    return PsliteError(f"{node}: {kind}: {text}")
