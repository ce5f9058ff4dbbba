"""A dispatcher's side of pushes: many of its workers become one to the servers.

A worker's push joins the open merge; `flush` sends that out as one push of the dispatcher's own,
which lists the pushes inside, so that servers recognise each of them. Workers have their answers
when the servers have given theirs. Repeats are recognised here until then and after.

When this life of a dispatcher is declared dead, servers refuse what still comes from it, and its
workers send to the servers themselves what has no answer. A dispatcher that learns of its own death
(it was only cut off) therefore says nothing more: neither OK nor an error would be true.

What is merged cannot be taken apart again. This is why pushes that come here have never been sent
elsewhere: `kv.requests.outgoing` never gives a push that was sent direct to a dispatcher.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np

from kv.requests.messages import Answer, Failure, Kind, Request
from kv.requests.outgoing import Outgoing, Progress
from kv.requests.signature import Constituent, Signature
from kv.requests.slots import Slots, no_slots
from kv.requests.view import View
from kv.requests.windows import Windows
from kv.requests.work import Work

WHOLE: Slots = np.zeros(1, np.int64)
"""A dispatcher takes pushes whole: its windows have one slot."""


@dataclass(frozen=True)
class Merged:
    """What an event changed for the merges under way.

    Args:
        done: merges (timestamps) that are complete: their memory can be given back.
        answers: to the workers whose pushes they held.
        send: pieces to be sent now.
    """

    done: tuple[int, ...] = ()
    answers: tuple[Answer, ...] = ()
    send: tuple[Request, ...] = ()


class Merging:
    """Merges the pushes of a dispatcher's workers and answers them.

    Args:
        outgoing: makes the dispatcher's own requests; nobody else makes any with it.
    """

    def __init__(self, outgoing: Outgoing) -> None:
        self.outgoing = outgoing
        self.windows = Windows(num_slots=1, limit=outgoing.limit)
        self._open: list[Request] = []
        self._under_way: dict[int, list[Request]] = {}
        self._in_hand: set[Signature] = set()

    @property
    def pushes(self) -> list[Request]:
        """Pushes in the open merge, in order of arrival."""
        return list(self._open)

    def receive(self, request: Request) -> Work | Answer | None:
        """Take a worker's push.

        Returns:
            Work: its values are to be added to the open merge, at all its slots (the ticket is
            0; nothing is to be finished); an answer to send now; or None: it is a late copy, or
            meant for another life, or this one is over.
        """
        signature = request.signature
        stream = self.outgoing.stream
        meant = (request.recipient, request.recipient_incarnation)
        if self.outgoing.is_fenced or meant != (stream.sender, stream.incarnation):
            return None
        if self.windows.is_former(signature):
            text = f"node {signature.sender}, life {signature.incarnation}, is over"
            return self._answer(request, Kind.FENCED, Failure("FencedNodeError", text, meant[0]))
        problem = request.problem(self.outgoing.view.owners.size, self.windows.limit)
        if request.pull or request.constituents:
            problem = f"{signature}: a dispatcher merges pushes of workers, nothing else"
        if problem is not None:
            return self._answer(request, Kind.ERROR, Failure("RequestError", problem, meant[0]))
        self.windows.meet(signature, request.oldest)
        if self.windows.is_past(signature):
            return None
        if signature in self._in_hand:
            return self._answer(request, Kind.HELD)
        if not self.windows.fresh(signature, WHOLE).all():
            failure = self.windows.failure(signature, WHOLE)
            return self._answer(request, Kind.ERROR if failure else Kind.OK, failure)
        self._in_hand.add(signature)
        self._open.append(replace(request, payload=None))  # its arrays need not outlive the merging
        self.windows.record(signature, WHOLE, request.oldest)
        return Work(0, request, request.slots, no_slots())

    def flush(
        self, now: float, *, cmd: int = 0, priority: int = 0, payload: object = None
    ) -> tuple[int, Merged]:
        """Send the open merge to the servers: its timestamp, and the pieces to send.

        A merge of pushes that touch nothing asks nobody and is done at once.

        Args:
            payload: the merged values, as `Outgoing.request` keeps them.
        Raises:
            ValueError: nothing to send.
            WindowFullError, FencedNodeError: as `Outgoing.request`; the merge stays open.
        """
        if not self._open:
            raise ValueError("no push has come since the last flush")
        timestamp, send = self.outgoing.request(
            np.unique(np.concatenate([push.slots for push in self._open])),
            now,
            push=True,
            everywhere=any(push.everywhere for push in self._open),
            constituents=tuple(Constituent(p.signature, p.oldest, p.clocks) for p in self._open),
            cmd=cmd,
            priority=priority,
            payload=payload,
        )
        self._under_way[timestamp], self._open = self._open, []
        if not self.outgoing.is_pending(timestamp):
            return timestamp, Merged((timestamp,), self._close(timestamp, None))
        return timestamp, Merged(send=tuple(send))

    def answer(self, answer: Answer, now: float) -> Merged:
        """Take a server's answer."""
        progress = self.outgoing.answer(answer, now)
        return Merged() if progress is None else self._after([progress])

    def learn(self, view: View, now: float) -> Merged:
        """Know a newer state of the cluster."""
        return self._after(self.outgoing.learn(view, now))

    def due(self, now: float) -> list[Request]:
        """What is to be sent again at `now`."""
        return self.outgoing.due(now)

    def __repr__(self) -> str:
        return (
            f"<Merging {self.outgoing.stream} open={len(self._open)} sent={len(self._under_way)}>"
        )

    def validate(self) -> None:
        """Raise AssertionError if the bookkeeping contradicts itself."""
        self.outgoing.validate()
        self.windows.validate()
        pushes = [*self._open, *(push for merge in self._under_way.values() for push in merge)]
        names = [push.signature for push in pushes]
        assert len(set(names)) == len(names), "a push is in two merges"
        assert set(names) == self._in_hand, "in hand is what is open or under way"
        for timestamp in self._under_way:
            assert self.outgoing.is_pending(timestamp), f"merge {timestamp} waits for nobody"

    def _after(self, changes: list[Progress]) -> Merged:
        """Answer the workers of the merges that are complete with this."""
        done = [progress for progress in changes if progress.done]
        answers: list[Answer] = []
        for progress in done:
            answers += self._close(progress.timestamp, next(iter(progress.errors), None))
        return Merged(
            done=tuple(progress.timestamp for progress in done),
            answers=tuple(answers),
            send=tuple(piece for progress in changes for piece in progress.send),
        )

    def _close(self, timestamp: int, failure: Failure | None) -> tuple[Answer, ...]:
        return tuple(self._complete(push, failure) for push in self._under_way.pop(timestamp))

    def _complete(self, push: Request, failure: Failure | None) -> Answer:
        self._in_hand.discard(push.signature)
        if failure is not None:
            self.windows.record(push.signature, WHOLE, push.oldest, failure)
        return self._answer(push, Kind.ERROR if failure else Kind.OK, failure)

    def _answer(self, request: Request, kind: Kind, failure: Failure | None = None) -> Answer:
        by = self.outgoing.stream[:2]
        return request.answer(kind, by, self.outgoing.view, error=failure)
