"""The requests of one customer: numbered, open until all answers have come, waited for, forgotten.

A request is one message to each of some nodes, or several that are cut finer than by node: those
carry consecutive timestamps, the first of which is the request's name. A request ends with what its
answers make, or with an error, which is raised where it is waited for; a finished one is forgotten.

How messages go out and answers come in is left to `postoffice.customer`.

Source: ps-lite, the tracker of include/ps/internal/customer.h. Here a request may fail, and there
is a bound to how many can be open.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from postoffice.errors import PostofficeError, RequestTimeoutError
from postoffice.node import node_name
from postoffice.request import Finish, Recut, Request, Take
from postoffice.resending import Place
from van.errors import PsliteError
from van.message import Message

if TYPE_CHECKING:
    from postoffice.postoffice import Postoffice

_REMEMBERED = 1024  # requests whose number of answers is still known when they are done
WINDOW = 1024  # timestamps that may lie between the oldest unanswered request and a new one


class Tracker:
    """Numbers requests and knows which of them are open.

    Args:
        app: which application is asked.
        postoffice: the node; it waits.

    Attributes:
        astray: places of writes that go another way than what comes after them: True where they
            were refused for now, or may be lost.
    """

    def __init__(self, app: int, postoffice: Postoffice) -> None:
        self.app, self.postoffice = app, postoffice
        self.astray: dict[Place, bool] = {}
        self._lock = threading.Lock()
        self._next = 0
        self._requests: dict[int, Request] = {}  # by their first timestamps, until forgotten
        self._open: dict[int, Request] = {}  # by each timestamp, until done; oldest first
        self._answered: dict[int, int] = {}  # of the last requests that are done and forgotten

    # -- made and forgotten -------------------------------------------------------------------

    def new_request(
        self,
        recipients: Sequence[int],
        finish: Finish | None = None,
        callback: Callable[[], None] | None = None,
        *,
        take: Take | None = None,
        recut: Recut | None = None,
        cuts: Sequence[int] | None = None,
        is_quiet: bool = False,
        after: Callable[[Message], None] | None = None,
        made: list[int] | None = None,
    ) -> int:
        """Number a request to `recipients`; it is done when each of them has answered.

        Args:
            recipients: node ids; with `cuts` those of each message, a node once or several times.
            finish: called with all answers, in the order of node ids; what it returns is the
                request's result.
            callback: called when the request is done without error.
            take: called with each answer as it comes; `finish` then gets none.
            recut: called with a message whose recipient is dead or not the owner any more.
            cuts: for each message how far its timestamp lies behind the first; None: all have one.
            is_quiet: neither `wait_all` nor `raise_failed` cares for it.
            after: called with the answers that come after the request has failed, which `take` does
                not get.
            made: gets the timestamp before anything else happens, for who forgets the request if
                it is not sent, whatever comes in between.
        Returns:
            The (first) timestamp.
        Raises:
            ClusterStoppedError: the cluster ended while too many requests had no answer.
        """
        with self._lock:
            first = self._next
            if made is not None:
                made.append(first)
            request = Request(
                first, recipients, cuts, finish, callback, take, recut, is_quiet, after
            )
            self._next = first + request.parts
            self._requests[first] = self._open[first] = request
            for timestamp in range(first + 1, self._next):
                self._open[timestamp] = request
            oldest = next(iter(self._open))
        if self._next - oldest > WINDOW:
            self._wait_for_room(request)
        if not request.waiting_for:
            self._complete(request)
        return first

    def _wait_for_room(self, request: Request) -> None:
        """Wait before a request is sent: what receivers remember of unanswered ones has a bound."""
        last = request.first + request.parts

        def name() -> str:
            oldest = self._open.get(self.oldest)
            return "room for more requests" if oldest is None else oldest.describe()

        with self.sending(request.first):
            self.postoffice.wait(lambda: last - self.oldest <= WINDOW, what=name)

    @contextlib.contextmanager
    def sending(self, *timestamps: int) -> Iterator[list[int]]:
        """Around the sending of requests: if it fails, nobody will answer, and they are forgotten.

        So are those that are made within and put into the list that this yields.
        """
        made = list(timestamps)
        try:
            yield made
        except BaseException:
            for timestamp in made:
                self.forget(timestamp)
            raise

    def forget(self, timestamp: int) -> None:
        """Drop a request: its answers change nothing, and nobody can wait for it."""
        with self._lock:
            request = self._requests.pop(timestamp, None)
            if request is not None:
                self._close(request)

    def _close(self, request: Request) -> None:
        """No answer to it counts any more. The lock is held."""
        self._open.pop(request.first, None)
        if request.parts > 1:
            for timestamp in range(request.first + 1, request.first + request.parts):
                self._open.pop(timestamp, None)
        if self.astray:
            for place in request.waiting_for:
                self.astray.pop(place, None)

    # -- what is known of them ----------------------------------------------------------------

    @property
    def requests(self) -> int:
        """How many requests this customer has made."""
        return self._next

    @property
    def oldest(self) -> int:
        """The oldest unanswered timestamp: receivers may forget what is below it."""
        with self._lock:
            for timestamp in self._open:
                return timestamp
            return self._next

    @property
    def pending(self) -> int:
        """Requests not yet answered."""
        return sum(not request.is_done for request in list(self._requests.values()))

    def num_response(self, timestamp: int) -> int:
        """How many nodes have answered; remembered for the last requests that are done."""
        request = self._requests.get(timestamp)
        if request is None:
            return self._answered.get(timestamp, 0)
        return request.expected - len(request.silent_nodes())

    def is_open(self, timestamp: int) -> bool:
        """Whether an answer to this very timestamp, which a piece may have, is to come."""
        return timestamp in self._open

    def is_done(self, timestamp: int) -> bool:
        """Whether `wait` would return, or raise, at once."""
        request = self._requests.get(timestamp)
        return request is None or request.is_done

    def open_request(self, timestamp: int) -> Request | None:
        """The request that an answer to this very timestamp would be to."""
        return self._open.get(timestamp)

    def open_requests(self) -> list[Request]:
        """Those that have not all of their answers, oldest first. Any thread."""
        with self._lock:
            return list(dict.fromkeys(self._open.values()))

    def unanswered(self) -> list[tuple[Place, Message]]:
        """The messages that are sent and not answered, oldest request first. Any thread."""
        if not self._open:
            return []
        with self._lock:
            requests = dict.fromkeys(self._open.values())
        return [
            (place, message)
            for request in requests
            for place, message in list(request.waiting_for.items())
            if message is not None
        ]

    # -- ended --------------------------------------------------------------------------------

    def settle(self, request: Request, place: Place) -> None:
        """Nothing more is expected in that place."""
        request.waiting_for.pop(place, None)
        if self.astray:
            self.astray.pop(place, None)
        if not request.waiting_for:
            self._complete(request)

    def _complete(self, request: Request) -> None:
        """Note that nothing more is to come. May come again, where this was interrupted."""
        if request.error is None:
            try:
                if request.finish is not None:
                    request.answers.sort(key=lambda answer: answer.meta.sender)
                    request.result = request.finish(request.answers)
                if request.callback is not None:
                    request.callback()
            except BaseException as error:  # raised where the request is waited for
                request.error = error
        with self._lock:
            request.is_done = True
            self._close(request)
            if request.error is None and request.finish is None and not request.is_quiet:
                self._note_end(request)
        request.answers.clear()

    def _note_end(self, request: Request) -> None:
        """Forget a request that is done, but for how many answered. The lock is held."""
        self._requests.pop(request.first, None)
        self._answered[request.first] = request.expected
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
        is_number = type(timestamp) is int
        request = self._requests.get(timestamp) if is_number else None
        if request is None:
            if not is_number or not 0 <= timestamp < self._next:
                raise PostofficeError(f"{self.postoffice.name} made no request {timestamp!r}")
            return None
        if not request.is_done and not self.postoffice.wait(
            lambda: request.is_done, timeout, request.describe
        ):
            names = ", ".join(map(node_name, request.silent_nodes()))
            raise RequestTimeoutError(
                f"request {timestamp} of app {self.app} has no answer from {names} "
                f"after {timeout} s"
            )
        if timestamp in self._requests:  # most were forgotten when they were done
            with self._lock:
                self._note_end(request)
        if request.error is not None:
            raise request.error
        return request.result

    def wait_all(self, timeout: float | None = None) -> None:
        """Wait for every request that is open; the first error is raised, after all are done."""
        error: BaseException | None = None
        for timestamp, request in sorted(self._requests.items()):
            if request.is_quiet:
                continue
            try:
                self.wait(timestamp, timeout)
            except PsliteError as problem:
                error = error or problem
        if error is not None:
            raise error

    def raise_failed(self) -> None:
        """Raise the error of a request that failed and was not waited for, if there is one."""
        for timestamp, request in list(self._requests.items()):
            if request.is_done and request.error is not None and not request.is_quiet:
                self._requests.pop(timestamp, None)
                raise request.error
