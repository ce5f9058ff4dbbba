"""One end of a conversation: messages go out, and again where nobody answers, and answers come in.

    request      one request
    tracker      all of them: numbered, waited for, forgotten
    resending    when a message goes again
    rerouting    who is asked in another's place
    customer     the above, over a node

A message is kept until it is answered, and sent again when that takes too long; an answer may also
say that it is held, or that others are to be asked.

Source: ps-lite, include/ps/internal/customer.h. Here a request ends with the error that a
handler raised on the other side, and a finished one is forgotten.
"""

from __future__ import annotations

import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from postoffice.errors import DeadNodeError, PostofficeError
from postoffice.node import node_name
from postoffice.request import Request
from postoffice.rerouting import Rerouting
from postoffice.resending import Place, Resend, Resending
from postoffice.tracker import Tracker
from postoffice.view import ClusterView
from van.errors import PsliteError, UnreachablePeerError, VanError
from van.message import Flag, Kind, Message

if TYPE_CHECKING:
    from postoffice.postoffice import Postoffice

log = logging.getLogger(__name__)

_OK, _ERROR = Kind.OK, Kind.ERROR


class Customer(Tracker):
    """Sends requests under (app, customer) and collects the answers.

    Args:
        app: which application on the other side; equal on both sides.
        customer: which conversation of this node with that application.
        postoffice: the node.
        handle_request: takes requests that arrive; None where this end only asks.
        make_error: makes the exception of an error answer from node name, type and text.

    Attributes:
        resending: when messages go again; the node sets it.
        astray: see `Tracker`.
    """

    def __init__(
        self,
        app: int,
        customer: int,
        postoffice: Postoffice,
        handle_request: Callable[[Message], None] | None = None,
        make_error: Callable[[str, str, str], PsliteError] | None = None,
    ) -> None:
        super().__init__(app, postoffice)
        self.customer, self.handle_request = customer, handle_request
        self._make_error = make_error or _remote_error
        self.resending = Resending(Resend())
        self._rerouting = Rerouting(self)
        self._lives_over = self._rerouting.lives_over  # at hand, since each message asks for it
        postoffice.add_customer(self)

    # -- a request and its answers ------------------------------------------------------------

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
            if self._lives_over and self._rerouting.is_over(meta.recipient):
                self._rerouting.ask_others(request, place)  # it ended while this was made
                return
        try:
            self.postoffice.send(message)
        except DeadNodeError:
            if request is None or not self._rerouting.is_awaited(meta.recipient):
                raise
            # It died while the request was made: ask who has taken over, or wait for somebody.
            place = meta.timestamp, meta.recipient, meta.piece or 1
            self._rerouting.ask_others(request, place)
        except UnreachablePeerError:
            if request is None or meta.recipient in self.postoffice.nodes:
                raise  # else the map was quicker than the news of who has come: it is sent again

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
        if self.astray and self._rerouting.is_overtaking(request, place):
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
        self.settle(request, place)

    def _take_delay(self, request: Request, place: Place, kind: Kind) -> None:
        """An answer that settles nothing: it is held, or others or later is better."""
        now = self.postoffice.van.now()
        if kind == Kind.HELD:
            self.resending.hold(place, now)
        elif kind != Kind.WRONG_OWNER or not self._rerouting.ask_others(request, place):
            self.resending.retry(place, now)
            message = request.waiting_for.get(place)
            if message is not None and message.meta.flags & Flag.PUSH:
                self.astray[place] = True

    # -- what has no answer yet ---------------------------------------------------------------

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
        self._rerouting.fail_dead(now)
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
        place = meta.timestamp, meta.recipient, meta.piece or 1
        return self._rerouting.ask_others(request, place)

    def hurry(self, now: float) -> None:
        """Others live now than before: whatever has no answer is due."""
        self.resending.hurry(now)

    # -- who is there -------------------------------------------------------------------------

    def see(self, old: ClusterView, new: ClusterView, patience: Callable[[int], float]) -> None:
        """Others live, or own something, than before; by the thread that drives the van.

        What was asked of a node that is dead is asked of whom else has it, as soon as that is
        known, or of its next life.

        Args:
            patience: seconds to wait for either, of a node id; after that its requests fail.
        """
        now = self.postoffice.van.now()
        self._rerouting.see(old, new, patience, now)
        self.hurry(now)
        self._rerouting.fail_dead(now)

    def ask_life(self, node: int, incarnation: int) -> None:
        """From here on that life of a dispatcher is asked; of former ones nothing is under way."""
        self._rerouting.ask_life(node, incarnation)

    def excuse(self, node: int) -> None:
        """Expect nothing more of a node: it has left, and had what it needed."""
        self._rerouting.excuse(node)


def _remote_error(node: str, kind: str, text: str) -> PsliteError:
    return PsliteError(f"{node}: {kind}: {text}")
