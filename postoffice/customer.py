"""Requests of one customer: numbered, answered by several nodes, waited for.

A request is one message to each of some nodes, or several that are cut finer than by node: those
carry consecutive timestamps, the first of which is the request's name.

A message is kept until it is answered, and sent again when that takes too long
(`postoffice.resending`); an answer may also say that it is held, or that others are to be asked.

Source: ps-lite, include/ps/internal/customer.h. Here a request ends with the error that a
handler raised on the other side, and a finished one is forgotten.
"""

from __future__ import annotations

import contextlib
import logging
import threading
from collections.abc import Callable, Iterator, Sequence
from typing import TYPE_CHECKING, Any

from postoffice.errors import DeadNodeError, PostofficeError, RequestTimeoutError
from postoffice.node import Role, node_name
from postoffice.resending import Place, Resend, Resending
from postoffice.view import ClusterView
from van.errors import PsliteError, UnreachablePeerError, VanError
from van.message import Flag, Kind, Message

if TYPE_CHECKING:
    from postoffice.postoffice import Postoffice

log = logging.getLogger(__name__)

_REMEMBERED = 1024  # requests whose number of answers is still known when they are done
WINDOW = 1024  # timestamps that may lie between the oldest unanswered request and a new one
_HINT = (
    "nobody has taken over what it had: [cluster] replicas = 1 keeps a copy of each server, "
    "on_server_failure = restart waits for one that is started again"
)
_OK, _ERROR = Kind.OK, Kind.ERROR

Finish = Callable[[list[Message]], Any]
"""Makes a request's result of its answers."""


Take = Callable[[Message], bool]
"""Takes an answer as it comes, errors too; False: it has asked again, the answer does not count."""

Recut = Callable[[Message], bool]
"""Asks others in the place of a message's recipient; False: it is not known yet whom."""


class _Request:
    """What is known of a request that is not forgotten.

    `waiting_for` holds the place of each answer that is still to come, with the message that asks.
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
        finish: Finish | None,
        callback: Callable[[], None] | None,
        take: Take | None,
        recut: Recut | None,
        is_quiet: bool,
        after: Callable[[Message], None] | None,
    ) -> None:
        self.after = after
        self.waiting_for: dict[Place, Message | None] = {}
        self.first, self.parts, self.expected = 0, 1, 0
        self.finish, self.callback, self.is_quiet = finish, callback, is_quiet
        self.take, self.recut = take, recut
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
        self._requests: dict[int, _Request] = {}  # by their first timestamps, until forgotten
        self._open: dict[int, _Request] = {}  # by each timestamp, until done; oldest first
        self._answered: dict[int, int] = {}  # of the last requests that are done and forgotten
        self.resending = Resending(Resend())
        self._dead: dict[int, float] = {}  # nodes that others may take over from, until when
        # Of dispatchers the last life that has ended, and the one that is asked: never the next by
        # mistake. None of them is ever removed, so neither thread needs the other's leave.
        self._lives_over: dict[int, int] = {}
        self._lives_asked: dict[int, int] = {}
        # Writes that go another way than what comes after them: True where they were refused for
        # now, or may be lost.
        self.astray: dict[Place, bool] = {}
        postoffice.add_customer(self)

    @property
    def requests(self) -> int:
        """How many requests this customer has made."""
        return self._next

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
        request = _Request(finish, callback, take, recut, is_quiet, after)
        with self._lock:
            request.first = first = self._next
            if made is not None:
                made.append(first)
            if len(recipients) == 1 and (cuts is None or cuts[0] == 0):
                request.waiting_for = {(first, recipients[0], 1): None}
                request.expected = 1
            elif cuts is None:
                request.waiting_for = {(first, node, 1): None for node in recipients}
                request.expected = len(recipients)
            else:
                request.waiting_for = {
                    (first + cut, node, 1): None for cut, node in zip(cuts, recipients, strict=True)
                }
                request.expected = len(set(recipients))
                request.parts = 1 + max(cuts, default=0)
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

    def _wait_for_room(self, request: _Request) -> None:
        """Wait before a request is sent: what receivers remember of unanswered ones has a bound."""
        last = request.first + request.parts

        def name() -> str:
            oldest = self._open.get(self.oldest)
            return "room for more requests" if oldest is None else oldest.describe()

        with self.sending(request.first):
            self.postoffice.wait(lambda: last - self.oldest <= WINDOW, what=name)

    def send(self, message: Message) -> None:
        """Send a message of a request; it goes again until it is answered.

        A second one in the place of the first, the same in timestamp, recipient and piece, is what
        goes from then on. Its arrays must not change before the answer.

        Raises:
            UnreachablePeerError, ClusterStoppedError: see `Postoffice.send`.
        """
        meta = message.meta
        request = self._open.get(meta.timestamp)
        if request is not None:
            place = meta.timestamp, meta.recipient, meta.piece or 1
            request.waiting_for[place] = message
            if self._lives_over and self._is_over(meta.recipient):  # it ended while this was made
                self._ask_others(request, place)
                return
        try:
            self.postoffice.send(message)
        except DeadNodeError:
            if request is None or meta.recipient not in self._dead:
                raise
            # It died while the request was made: ask who has taken over, or wait for somebody.
            self._ask_others(request, (meta.timestamp, meta.recipient, meta.piece or 1))
        except UnreachablePeerError:
            if request is None or meta.recipient in self.postoffice.nodes:
                raise  # else the map was quicker than the news of who has come: it is sent again

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

    def _close(self, request: _Request) -> None:
        self._open.pop(request.first, None)
        if request.parts > 1:
            for timestamp in range(request.first + 1, request.first + request.parts):
                self._open.pop(timestamp, None)
        if self.astray:
            for place in request.waiting_for:
                self.astray.pop(place, None)

    @property
    def oldest(self) -> int:
        """The oldest unanswered timestamp: receivers may forget what is below it."""
        with self._lock:
            for timestamp in self._open:
                return timestamp
            return self._next

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

    def take_answer(self, message: Message) -> None:
        """Note an answer; repeats and answers to forgotten requests change nothing."""
        meta = message.meta
        request = self._open.get(meta.timestamp)
        place = (meta.timestamp, meta.sender, meta.piece or 1)
        if request is None or place not in request.waiting_for:
            return
        if meta.kind != _OK and meta.kind != _ERROR and meta.error is None:
            self._take_delay(request, place, meta.kind)
            return
        if self.astray and self._is_overtaking(request, place):
            self.resending.retry(place, self.postoffice.van.now())
            return
        if request.take is None:
            request.answers.append(message)
        elif request.error is None:
            try:
                if not request.take(message):
                    return
            except Exception as error:  # raised where the request is waited for
                request.error = error
        elif request.after is not None:
            request.after(message)
        if meta.error is not None and request.error is None:
            kind, text, node = meta.error
            request.error = self._make_error(node_name(node or meta.sender), kind, text)
        self._settle(request, place)

    def _settle(self, request: _Request, place: Place) -> None:
        """Nothing more is expected in that place."""
        request.waiting_for.pop(place, None)
        if self.astray:
            self.astray.pop(place, None)
        if not request.waiting_for:
            self._complete(request)

    # -- what has no answer yet ---------------------------------------------------------------

    def _take_delay(self, request: _Request, place: Place, kind: Kind) -> None:
        """An answer that settles nothing: it is held, or others or later is better."""
        now = self.postoffice.van.now()
        if kind == Kind.HELD:
            self.resending.hold(place, now)
        elif kind != Kind.WRONG_OWNER or not self._ask_others(request, place):
            self.resending.retry(place, now)
            message = request.waiting_for.get(place)
            if message is not None and message.meta.flags & Flag.PUSH:
                self.astray[place] = True

    def _is_overtaking(self, request: _Request, place: Place) -> bool:
        """Whether a pull was answered that a push before it may come after: it is asked again.

        Nodes on one link keep their order. So that is where the push was refused, or was sent to
        others by a map that the pull was not cut by.
        """
        message = request.waiting_for.get(place)
        if message is None or not message.meta.flags & Flag.PULL:
            return False
        for other, is_refused in list(self.astray.items()):
            if other[0] < request.first and (
                is_refused or self._version_of(other) != message.meta.map_version
            ):
                return True
        return False

    def _version_of(self, place: Place) -> int:
        """By which map a message without an answer was cut."""
        request = self._open.get(place[0])
        message = None if request is None else request.waiting_for.get(place)
        return -1 if message is None else message.meta.map_version

    def _ask_others(self, request: _Request, place: Place) -> bool:
        """Ask others in the place of who was asked; False where nobody is known."""
        message = request.waiting_for.get(place)
        if message is None or request.recut is None:
            return False
        try:
            if not request.recut(message):
                return False
        except Exception as error:  # raised where the request is waited for
            request.error = request.error or error
        if message.meta.flags & Flag.PUSH:
            self.astray |= {other: False for other in request.waiting_for if other[2] > 1}
        self._settle(request, place)
        return True

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

    def due(self, now: float) -> list[Message]:
        """What is to be sent again at `now`."""
        due = self.resending.due(self.unanswered(), now, self._next)
        if due:
            oldest = self.oldest
            for message in due:
                message.meta.oldest = max(message.meta.oldest, oldest)
        return due

    def send_again(self, now: float) -> None:
        """Send what is due; by the thread that drives the van, from time to time."""
        if self._dead:
            self._fail_dead(now)
        self._complete_late()
        for message in self.due(now):
            self.postoffice.counts["sent again"] += 1
            if self._has_left(message):  # while the request was made; others have what it had
                continue
            try:
                self.postoffice.send(message)
            except (PostofficeError, VanError) as error:  # no room, or nobody there: later
                log.debug("%r is not sent again now: %s", message, error)

    def _complete_late(self) -> None:
        """Complete what has all its answers: taking the last one was interrupted by a signal."""
        for request in dict.fromkeys(list(self._open.values())):
            if request.expected and not request.waiting_for:
                self._complete(request)

    def _has_left(self, message: Message) -> bool:
        """Whether a message's recipient has left, and others were asked in its place."""
        meta = message.meta
        request = self._open.get(meta.timestamp)
        if request is None or meta.recipient not in self.postoffice.view.gone:
            return False
        return self._ask_others(request, (meta.timestamp, meta.recipient, meta.piece or 1))

    def hurry(self, now: float) -> None:
        """Others live now than before: whatever has no answer is due."""
        self.resending.hurry(now)

    def see(self, old: ClusterView, new: ClusterView, patience: Callable[[int], float]) -> None:
        """Others live, or own something, than before; by the thread that drives the van.

        What was asked of a node that is dead is asked of whom else has it, as soon as that is
        known, or of its next life.

        Args:
            patience: seconds to wait for either, of a node id; after that its requests fail.
        """
        now = self.postoffice.van.now()
        self._note_lost(old, new)
        for node in new.dead - old.dead:
            self._dead[node] = now + patience(node)
        for node in [node for node in self._dead if node in new.nodes]:
            del self._dead[node]
        for node in _ended_dispatchers(old, new):  # what it was given goes to the servers
            self._lives_over[node] = old.nodes[node].incarnation
            self._leave(node)
        if new.map_version > old.map_version:
            for node in self._dead:
                self._leave(node)
            for place in sorted(self.astray):  # before anything younger is cut anew
                if place in self.astray and place[0] in self._open:
                    self._ask_others(self._open[place[0]], place)
        for node in new.gone - old.gone:  # what it had others have, and it hears no more
            self.excuse(node)
        self.hurry(now)
        self._fail_dead(now)

    def ask_life(self, node: int, incarnation: int) -> None:
        """From here on that life of a dispatcher is asked; of former ones nothing is under way."""
        self._lives_asked[node] = incarnation

    def _is_over(self, node: int) -> bool:
        """Whether the life of a dispatcher that is asked has ended, though it may have another."""
        return self._lives_over.get(node, -1) >= self._lives_asked.get(node, 0)

    def _note_lost(self, old: ClusterView, new: ClusterView) -> None:
        """What a former life of a node was sent may be lost; what is sent after that is not."""
        lost = {n.id for n in old.nodes.values() if new.is_fenced(n.id, n.incarnation)}
        for place, message in self.unanswered() if lost else ():
            if place[1] in lost and message.meta.flags & Flag.PUSH:
                self.astray[place] = True

    def _fail_dead(self, now: float) -> None:
        """Nobody has taken over in time."""
        for node in [node for node, end in self._dead.items() if end <= now]:
            del self._dead[node]
            self._leave(node, DeadNodeError(node, node_name(node), _HINT))

    def excuse(self, node: int) -> None:
        """Expect nothing more of a node: it has left, and had what it needed."""
        self._leave(node, None, is_excused=True)

    def _leave(self, node: int, error: PsliteError | None = None, is_excused: bool = False) -> None:
        """Ask others what was asked of `node`, or end that with `error`."""
        with self._lock:
            requests = dict.fromkeys(self._open.values())
        for request in requests:
            for place in [place for place in list(request.waiting_for) if place[1] == node]:
                if not self._ask_others(request, place):
                    request.error = request.error or error
                    if is_excused or error is not None:
                        self._settle(request, place)

    def _complete(self, request: _Request) -> None:
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

    def _note_end(self, request: _Request) -> None:
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
        request = self._requests.get(timestamp)
        if request is None:
            if type(timestamp) is not int or not 0 <= timestamp < self._next:
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

    @property
    def pending(self) -> int:
        """Requests not yet answered."""
        return sum(not request.is_done for request in list(self._requests.values()))


def _ended_dispatchers(old: ClusterView, new: ClusterView) -> list[int]:
    """Those whose life is over, also where another has begun, which must not get their requests."""
    return [
        node.id
        for node in old.nodes.values()
        if node.role is Role.DISPATCHER
        and (node.id not in new.nodes or new.nodes[node.id].incarnation != node.incarnation)
    ]


def _remote_error(node: str, kind: str, text: str) -> PsliteError:
    return PsliteError(f"{node}: {kind}: {text}")
