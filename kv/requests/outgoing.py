"""Requests of one customer, from the making to the full answer.

A request is cut into pieces by the owners of its slots. An answer is a fact about the slots of its
piece, whenever it comes; a request is complete when every slot is settled. Pieces without an answer
are sent again, the n-th wait n times as long as the first. HELD slows this down to a rare reminder:
the receiver has it, but its later answer may get lost. Slots refused, or owned by another server in
a newer map, are cut again.

A push may be given to a dispatcher first (`via`). It is handed to the servers only when that life
of the dispatcher is declared dead, and stays direct from then on: servers fence a dispatcher before
they look at a request of the epoch that says so.

Source: ps-lite, src/resender.h; differs in that answers acknowledge, and that pieces change owner.
"""

from __future__ import annotations

from dataclasses import dataclass

from kv.requests.errors import FencedNodeError, WindowFullError
from kv.requests.messages import Answer, Failure, Kind, Request
from kv.requests.pending import Pending, Piece
from kv.requests.signature import Clock, Constituent, Signature, Stream
from kv.requests.slots import Slots, no_slots
from kv.requests.view import View
from kv.requests.windows import LIMIT


@dataclass(eq=False, slots=True)
class Progress:
    """What an event changed for one request.

    Args:
        settled: slots settled by this answer and by none before: a pull takes their values from it.
        done: the request is complete with this; said once.
        errors: what failed and where, when done.
        send: pieces to be sent now.
    """

    timestamp: int
    settled: Slots
    done: bool
    errors: tuple[Failure, ...]
    send: tuple[Request, ...]


class Outgoing:
    """Makes the requests of one (app, customer) of a node and follows them to their answers.

    Args:
        timeout: seconds before the first resend; the n-th wait lasts n times as long.
        longest: seconds that no such wait exceeds.
        reminder: seconds between repeats of what the receiver holds.
        limit: timestamps that may lie between the oldest unanswered request and the newest.
    """

    def __init__(
        self,
        node: int,
        incarnation: int,
        view: View,
        *,
        app: int = 0,
        customer: int = 0,
        timeout: float = 1.0,
        longest: float = 30.0,
        reminder: float = 30.0,
        limit: int = LIMIT,
    ) -> None:
        self.stream = Stream(node, incarnation, app, customer)
        self.view = view
        self.timeout, self.longest, self.reminder = timeout, longest, reminder
        self.limit = limit
        self.is_fenced = False
        self._next = 0
        self._pending: dict[int, Pending] = {}

    @property
    def oldest(self) -> int:
        """Oldest timestamp without its full answer; the next one if there is none."""
        return next(iter(self._pending), self._next)

    @property
    def has_room(self) -> bool:
        """Whether another request may be made now."""
        return self._next < self.oldest + self.limit

    @property
    def next_due(self) -> float | None:
        """When `due` has something to send, if nothing happens before."""
        if self.is_fenced:
            return None
        return min((pending.next_due for pending in self._pending.values()), default=None)

    def is_pending(self, timestamp: int) -> bool:
        """Whether the request waits for answers."""
        return timestamp in self._pending

    def unanswered(self, timestamp: int) -> list[int]:
        """Nodes whose answer the request waits for, rising."""
        pending = self._pending.get(timestamp)
        return sorted({piece.node for piece in pending.pieces.values()}) if pending else []

    def request(
        self,
        slots: Slots,
        now: float,
        *,
        push: bool = False,
        pull: bool = False,
        everywhere: bool = False,
        via: tuple[int, int] | None = None,
        constituents: tuple[Constituent, ...] = (),
        clocks: tuple[Clock, ...] = (),
        cmd: int = 0,
        priority: int = 0,
        payload: object = None,
    ) -> tuple[int, list[Request]]:
        """Make a request: its timestamp and the pieces to send.

        A request without slots that is neither `everywhere` nor for a dispatcher asks nobody and is
        done at once.

        Args:
            slots: int64 (n,), strictly rising.
            via: node and incarnation of the dispatcher to take the push; a dead one is passed by.
            payload: goes along in `Request.payload` with every piece and every resend.
        Raises:
            WindowFullError: too far ahead of the oldest unanswered request; see `has_room`.
            FencedNodeError: this life of the node is over.
        """
        if self.is_fenced:
            raise FencedNodeError(self.stream.sender, self.stream.incarnation)
        if not self.has_room:
            raise WindowFullError(self.oldest, self._next, self.limit)
        timestamp = self._next
        template = Request(
            signature=Signature(*self.stream, timestamp),
            push=push,
            pull=pull,
            everywhere=everywhere,
            slots=slots,
            constituents=constituents,
            clocks=clocks,
            cmd=cmd,
            priority=priority,
            payload=payload,
        )
        pending = Pending(template, via if via and self.view.lives(*via) else None)
        self._pending[timestamp] = pending
        self._next += 1
        send = self._cut(pending, now)
        if pending.is_done:
            del self._pending[timestamp]
        return timestamp, send

    def answer(self, answer: Answer, now: float) -> Progress | None:
        """Take an answer. None: it is late or meant for a former life, and changes nothing."""
        if answer.request[:-1] != self.stream:
            return None
        if answer.kind is Kind.FENCED:
            self.is_fenced = True
        pending = self._pending.get(answer.request.timestamp)
        piece = pending.pieces.get(answer.piece) if pending else None
        if pending is None or piece is None or self.is_fenced:
            return None
        settled = no_slots()
        if answer.kind in (Kind.OK, Kind.ERROR):
            settled = pending.settle(piece, answer.refused)
        elif answer.kind is Kind.HELD:
            piece.is_held, piece.due = True, now + self.reminder
        if answer.kind is Kind.ERROR:
            pending.errors.append(answer.error or Failure("Error", "no text", answer.sender))
        send = self._take_back(pending, piece, answer, now)
        return self._progress(pending, settled, send)

    def learn(self, view: View, now: float) -> list[Progress]:
        """Know a newer state of the cluster; what it changes for the requests under way."""
        if not view.is_newer(self.view):
            return []
        has_new_epoch = view.epoch > self.view.epoch
        has_new_map = view.map_version > self.view.map_version
        self.view = view
        self.is_fenced |= view.is_fenced(self.stream.sender, self.stream.incarnation)
        changed = []
        for pending in [] if self.is_fenced else list(self._pending.values()):
            if pending.via and not view.lives(*pending.via):
                pending.leave_dispatcher()
            if has_new_map:
                pending.leave_owners(view)
            send = self._cut(pending, now)
            if has_new_epoch:
                send += self._ask_again(pending, now)
            changed.append(self._progress(pending, no_slots(), send))
        return [progress for progress in changed if progress.done or progress.send]

    def due(self, now: float) -> list[Request]:
        """What is to be sent (again) at `now`, oldest request first."""
        send: list[Request] = []
        for pending in [] if self.is_fenced else self._pending.values():
            late = [piece for piece in pending.pieces.values() if piece.due <= now]
            send += [self._send(pending, piece, now) for piece in late]
            if pending.is_waiting and pending.cut_due <= now:
                send += self._cut(pending, now)
        return send

    def abandon(self, timestamp: int) -> bool:
        """Give a request up: what is not applied of it yet may or may not be, but never twice.

        Returns whether it was pending.
        """
        return self._pending.pop(timestamp, None) is not None

    def __repr__(self) -> str:
        return f"<Outgoing {self.stream} next={self._next} pending={len(self._pending)}>"

    def validate(self) -> None:
        """Raise AssertionError if the bookkeeping contradicts itself."""
        assert list(self._pending) == sorted(self._pending), "timestamps rise"
        assert self._next <= self.oldest + self.limit, "too far ahead"
        for pending in self._pending.values():
            pending.validate()

    def _cut(self, pending: Pending, now: float) -> list[Request]:
        """Put slots that wait into new pieces, and make those that carry no slots."""
        shares = pending.shares(self.view)
        if pending.is_waiting:
            pending.cuts += 1
            pending.cut_due = now + self._wait(pending.cuts)
        pieces = [pending.piece(node, where) for node, where in shares]
        return [self._send(pending, piece, now) for piece in pieces]

    def _send(self, pending: Pending, piece: Piece, now: float) -> Request:
        """The message of a piece as things stand now; also sets when it is due again."""
        piece.sends += 1
        piece.due = now + (self.reminder if piece.is_held else self._wait(piece.sends))
        made, life = pending.template, self.view.incarnations.get(piece.node, 0)
        return Request(
            signature=made.signature,
            push=made.push,
            pull=made.pull,
            recipient=piece.node,
            recipient_incarnation=pending.via[1] if pending.via else life,
            oldest=self.oldest,
            piece=piece.number,
            epoch=self.view.epoch,
            map_version=self.view.map_version,
            everywhere=made.everywhere,
            slots=made.slots[piece.where],
            constituents=made.constituents,
            clocks=made.clocks,
            cmd=made.cmd,
            priority=made.priority,
            payload=made.payload,
        )

    def _take_back(
        self, pending: Pending, piece: Piece, answer: Answer, now: float
    ) -> list[Request]:
        """Take refused slots out of their piece; those with another owner by now go to it."""
        refused = pending.refuse(piece, answer.refused) if answer.refused else no_slots()
        if not refused.size:
            return []
        pending.cut_due = now + self._wait(max(pending.cuts, 1))
        has_moved = pending.via is None and bool((self.view.owners[refused] != piece.node).any())
        return self._cut(pending, now) if has_moved else []

    def _ask_again(self, pending: Pending, now: float) -> list[Request]:
        """After a change of membership nobody may be holding what was held: ask from the start."""
        held = [piece for piece in pending.pieces.values() if piece.is_held]
        for piece in held:
            piece.is_held, piece.sends = False, 0
        return [self._send(pending, piece, now) for piece in held]

    def _progress(self, pending: Pending, settled: Slots, send: list[Request]) -> Progress:
        timestamp = pending.template.signature.timestamp
        done = pending.is_done
        if done:
            del self._pending[timestamp]
        errors = tuple(pending.errors) if done else ()
        return Progress(timestamp, settled, done, errors, tuple(send))

    def _wait(self, sends: int) -> float:
        return min(sends * self.timeout, self.longest)
