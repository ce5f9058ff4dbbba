"""A worker's pushes that servers refuse because their gradients are too stale.

Each message of a push is refused or taken by itself, so only what was refused goes again, after a
while, under the same timestamp: its gradients as they are, its base renewed to the clock that came
with the refusal, which is what another pull would have brought. The request stays open meanwhile,
and so the end of the worker's step waits for it.
"""

from __future__ import annotations

import random
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace

from kv.errors import VersionMismatchError
from kv.retrying import Retry
from postoffice.customer import Customer
from postoffice.resending import Place
from van.errors import PsliteError
from van.message import Message, Meta
from van.van import Van

Take = Callable[[Message], bool]
_REFUSED = VersionMismatchError.__name__
_OFTEN = 4  # looks at what waits during the shortest wait


class Refused:
    """Messages that were refused for now, until it is time to send them again. Any thread.

    Args:
        retry: how often and when.
        seed: of the chance in the waits.
    """

    def __init__(self, retry: Retry, seed: int = 0) -> None:
        self._retry, self._chance = retry, random.Random(seed)
        self._lock = threading.Lock()
        self._left: dict[Place, Iterator[tuple[float, bool]]] = {}
        self._due: dict[Place, tuple[float, Message]] = {}

    def is_waiting(self, place: Place) -> bool:
        """Whether a message is to go again there, so that another refusal of it says nothing."""
        return place in self._due

    def again(
        self, place: Place, make: Callable[[bool], Message | None], now: float
    ) -> float | None:
        """Keep what `make`, told whether it is the last try, returns; seconds until it goes.

        None: all tries are used up, or there is nothing to send.
        """
        with self._lock:
            following = next(self._left.setdefault(place, self._waits()), None)
            message = None if following is None else make(following[1])
            if following is None or message is None:
                del self._left[place]
                return None
            self._due[place] = now + following[0], message
            return following[0]

    def _waits(self) -> Iterator[tuple[float, bool]]:
        for number, wait in enumerate(self._retry.waits(self._chance), 1):
            yield wait, number == self._retry.most

    def due(self, now: float) -> list[Message]:
        """What is to be sent now; it is then no longer kept."""
        with self._lock:
            ready = [place for place, (due, _) in self._due.items() if due <= now]
            return [self._due.pop(place)[1] for place in ready]

    def keep_only(self, is_open: Callable[[Place], bool]) -> None:
        """Forget how often messages were refused that have an answer by now."""
        with self._lock:
            self._left = {place: left for place, left in self._left.items() if is_open(place)}


class StalePushes:
    """Tries refused pushes again until they are taken or all tries are used up.

    Args:
        customer: sends them.
        van: has the time.
        retry: how often and when.
        seed: of the chance in the waits.
    """

    def __init__(self, customer: Customer, van: Van, retry: Retry, seed: int) -> None:
        self.retry = retry
        self._customer, self._van = customer, van
        self._refused = Refused(retry, seed)
        self._is_looking = False

    def taking(self, take: Take | None) -> Take:
        """`take`, but refusals are dealt with here as long as there are tries."""

        def taken(message: Message) -> bool:
            error = message.meta.error
            if error is not None and error[0] == _REFUSED and self._goes_again(message.meta):
                return False
            return take is None or take(message)

        return taken

    def _goes_again(self, refusal: Meta) -> bool:
        place = (refusal.timestamp, refusal.sender, refusal.piece or 1)
        if self._refused.is_waiting(place):
            return True  # a copy was refused, too
        wait = self._refused.again(
            place, lambda is_last: self._renewed(place, refusal, is_last), self._van.now()
        )
        if wait is not None and not self._is_looking:
            self._is_looking = True
            self._van.every(max(1e-3, self.retry.base_delay / (2 * _OFTEN)), self._look)
        return wait is not None

    def _renewed(self, place: Place, refusal: Meta, is_last: bool) -> Message | None:
        """The refused message with the clocks of now; the last time it is refused for good."""
        message = dict(self._customer.unanswered()).get(place)
        if message is None:
            return None
        now = {table: (clock, pairs) for table, clock, pairs in refusal.clocks}
        clocks = tuple(
            (table, step, ((now[table][1][0][0], now[table][0]),) if table in now else base)
            for table, step, base in message.meta.clocks
        )
        body = {k: v for k, v in (message.meta.body or {}).items() if k != "again" or not is_last}
        return Message(replace(message.meta, clocks=clocks, body=body or None), message.arrays)

    def _look(self) -> None:
        for message in self._refused.due(self._van.now()):
            try:
                self._customer.send(message)
            except PsliteError:  # it goes again as any message without an answer does
                continue
        open_places = {place for place, _ in self._customer.unanswered()}
        self._refused.keep_only(open_places.__contains__)
