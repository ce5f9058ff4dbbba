"""A server's side of requests: what is done with each one that arrives.

Per slot a push is applied here, was applied before, is in hand already, or belongs elsewhere. The
consistency mode, a `Gate`, decides only about slots that the push may still be applied to: now, or
held until the mode releases it. Pulls are read again for every repeat and never remembered.

Two rules carry the proof that nothing counts twice (`docs/requests.md`): a request of an epoch not
known here is not looked at, so that whoever is fenced by that epoch is fenced first; and a slot is
served only between its arrival with its windows and its leaving.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from kv.requests.entries import Entries, Entry
from kv.requests.errors import BehindError, SlotBusyError
from kv.requests.holdings import Holdings
from kv.requests.messages import Answer, Failure, Kind, Request
from kv.requests.signature import Clock, Signature
from kv.requests.slots import Slots, among, no_slots
from kv.requests.view import View
from kv.requests.windows import LIMIT, Windows
from kv.requests.work import Gate, SlotState, Work


class Incoming:
    """Decides about the requests that arrive at one server.

    Args:
        gate: the consistency mode.
        windows: what slots remember, if it comes from a checkpoint; else empty ones.
        is_founder: whether the slots that `view` gives this server begin here; a server that joins
            later waits for each (`adopt`).
    """

    def __init__(
        self,
        node: int,
        incarnation: int,
        view: View,
        gate: Gate,
        *,
        windows: Windows | None = None,
        is_founder: bool = True,
        limit: int = LIMIT,
    ) -> None:
        self.node, self.incarnation = node, incarnation
        self.view, self.gate = view, gate
        self.windows = Windows(view.owners.size, limit) if windows is None else windows
        self.entries = Entries()
        self.holdings = Holdings(node, view.owners, is_founder=is_founder)
        self._fence(view)

    def receive(self, request: Request) -> Work | Answer | None:
        """Take a request.

        Returns:
            Work to do now, an answer to send now, or None: it is held for the first time, is a late
            copy, or is meant for another life of this node.
        """
        if request.recipient_incarnation not in (0, self.incarnation):
            return None
        if self.windows.is_former(request.signature):
            text = f"node {request.signature.sender}, life {request.signature.incarnation}, is over"
            return self._answer(
                request, Kind.FENCED, (), Failure("FencedNodeError", text, self.node)
            )
        if request.epoch > self.view.epoch:
            return self._answer(request, Kind.BEHIND)
        if problem := request.problem(self.view.owners.size, self.windows.limit):
            return self._answer(
                request, Kind.ERROR, (), Failure("RequestError", problem, self.node)
            )
        self._meet(request)
        if self.windows.is_past(request.signature):
            return None
        if entry := self.entries.repeated_by(request):
            return self._answer(request, Kind.HELD, entry.refused)
        return self._sort(request)

    def release(self, tickets: Iterable[int]) -> list[Work]:
        """Begin the work on held requests, in the order given; those dropped are passed over."""
        entries = (self.entries.get(ticket) for ticket in tickets)
        return [self._begin(entry) for entry in entries if entry and not entry.is_working]

    def finish(
        self, ticket: int, error: tuple[str, str] | None = None, clocks: tuple[Clock, ...] = ()
    ) -> Answer:
        """The work is done and, with replicas, the backups have it; or it failed for good.

        Args:
            error: type and text of what the handler raised.
        """
        entry = self.entries.pop(ticket)
        if error is not None:
            failure = Failure(*error, self.node)
            self._record(entry, failure)
            return self._answer(entry.request, Kind.ERROR, entry.refused, failure, clocks)
        return self._settled(entry.request, entry.refused, clocks)

    def learn(self, view: View) -> None:
        """Know a newer state of the cluster: whom to refuse, and which slots to give away."""
        if view.is_newer(self.view):
            self.view = view
            self.holdings.learn(view.owners)
            self._fence(view)

    @property
    def leaving(self) -> list[int]:
        """Slots that are here, belong to another server, and can be given now."""
        return [slot for slot in self.holdings.leaving if not self.entries.working_on(slot)]

    def give(self, slot: int) -> tuple[SlotState, list[Answer]]:
        """Let a slot go: what goes with it, and answers that send what was held elsewhere.

        Raises:
            SlotBusyError: work on the slot is not finished.
        """
        if tickets := self.entries.working_on(slot):
            raise SlotBusyError(slot, tickets)
        move = self.holdings.leave(slot)
        answers = [self._lose(entry, slot) for entry in self.entries.held() if entry.touches(slot)]
        state = SlotState(
            slot=slot,
            owner=int(self.view.owners[slot]),
            move=move,
            map_version=self.view.map_version,
            windows=self.windows.export(slot),
        )
        self.windows.forget(slot)
        return state, answers

    def adopt(self, state: SlotState) -> bool:
        """Take a slot over; False: a copy of an older move, or for another: leave the rows alone.

        Raises:
            BehindError: the move belongs to a map not known here.
        """
        if state.map_version > self.view.map_version:
            raise BehindError(state.slot, state.map_version, self.view.map_version)
        if state.owner != self.node or not self.holdings.arrive(state.slot, state.move):
            return False
        if self.windows.adopt(state.slot, state.windows):
            self._drop_former()
        return True

    def __repr__(self) -> str:
        held = len(self.entries.held())
        working = len(self.entries) - held
        return f"<Incoming {self.node}.{self.incarnation} held={held} working={working}>"

    def validate(self) -> None:
        """Raise AssertionError if the bookkeeping contradicts itself."""
        self.windows.validate()
        self.holdings.validate()
        for entry in self.entries:
            for signature in entry.signatures:
                assert self.entries.has(signature, entry.apply).all(), f"{signature} is not found"
            assert self.holdings.here[entry.apply].all(), f"{entry} works on slots that left"
            assert self.holdings.here[entry.read].all(), f"{entry} reads slots that left"
            if not entry.is_working:
                fresh = self.windows.fresh(entry.request.signature, entry.apply)
                past = self.windows.is_past(entry.request.signature)
                assert past or fresh.all(), f"{entry} is held and was applied"

    # What becomes of a request's slots

    def _sort(self, request: Request) -> Work | Answer | None:
        served = self.holdings.served[request.slots]
        if np.count_nonzero(served) == served.size:
            slots, refused = request.slots, set[int]()
        else:
            slots, refused = request.slots[served], set(request.slots[~served].tolist())
            if not slots.size:
                return self._answer(request, Kind.WRONG_OWNER, refused)
        if request.push:
            return self._sort_push(request, slots, refused)
        return self._admit(request, no_slots(), slots, refused)

    def _sort_push(self, request: Request, slots: Slots, refused: set[int]) -> Work | Answer | None:
        name = request.signature
        if not (self.entries.knows(name) or self.windows.knows(name) or request.constituents):
            return self._admit(request, slots, slots if request.pull else no_slots(), refused)
        in_hand, fresh = self.entries.has(name, slots), self.windows.fresh(name, slots)
        apply, elsewhere = slots[fresh & ~in_hand], slots[in_hand]
        if not apply.size:
            if elsewhere.size:
                return self._answer(request, Kind.HELD, refused)
            is_over = self.windows.failure(name, slots) is not None
            if is_over or not (request.pull or request.everywhere):
                return self._settled(request, refused)
        if counted := self._counted_inside(request, apply):
            text = f"{counted} inside {name} was applied without it"
            return self._answer(request, Kind.ERROR, (), Failure("RequestError", text, self.node))
        read = slots[~in_hand] if request.pull else no_slots()
        return self._admit(request, apply, read, refused | set(elsewhere.tolist()))

    def _admit(
        self, request: Request, apply: Slots, read: Slots, refused: set[int]
    ) -> Work | Answer | None:
        entry = Entry(self.entries.new_ticket(), request, apply, read, refused)
        self.entries.add(entry)
        if self.gate.admits(Work(entry.ticket, request, apply, read)):
            return self._begin(entry)
        return self._answer(request, Kind.HELD, refused) if refused else None

    def _begin(self, entry: Entry) -> Work:
        """From now on the push counts as applied; repeats get HELD until the work is finished."""
        entry.is_working = True
        self._record(entry)
        return Work(entry.ticket, entry.request, entry.apply, entry.read)

    def _record(self, entry: Entry, failure: Failure | None = None) -> None:
        request = entry.request
        self.windows.record(request.signature, entry.apply, request.oldest, failure)
        for inside in request.constituents:
            self.windows.record(inside.signature, entry.apply, inside.oldest, failure)
        if request.constituents:  # they may have told of new lives
            self._drop_former()

    def _settled(
        self, request: Request, refused: set[int], clocks: tuple[Clock, ...] = ()
    ) -> Answer:
        """The answer to a push applied now or before: also a repeat hears that it failed."""
        slots = request.slots[~among(request.slots, refused)] if refused else request.slots
        failure = self.windows.failure(request.signature, slots) if request.push else None
        kind = Kind.OK if failure is None else Kind.ERROR
        return self._answer(request, kind, refused, failure, clocks)

    def _counted_inside(self, request: Request, slots: Slots) -> Signature | None:
        """A constituent that is applied or in hand without the merged push: it cannot be taken out.

        Cannot happen while pushes change their path only after a fence; never counting twice
        matters more than that.
        """
        for inside in request.constituents:
            name = inside.signature
            is_counted = not (self._is_over(name) or self.windows.fresh(name, slots).all())
            if is_counted or self.entries.has(name, slots).any():
                return name
        return None

    def _lose(self, entry: Entry, slot: int) -> Answer:
        entry.lose(slot)
        if entry.apply.size or entry.read.size:
            return self._answer(entry.request, Kind.HELD, entry.refused)
        self._drop(entry)
        return self._answer(entry.request, Kind.WRONG_OWNER, entry.refused)

    # Lives that end, and makers that have their answers

    def _meet(self, request: Request) -> None:
        if self.windows.meet(request.signature, request.oldest):
            self._drop_former()
        if not len(self.entries):
            return
        stream = request.signature.stream
        for entry in self.entries.held():
            same = entry.request.signature.stream == stream and not entry.request.push
            if same and self.windows.is_past(entry.request.signature):
                self._drop(entry)

    def _fence(self, view: View) -> None:
        over = [
            *view.fenced.items(),
            *((node, life - 1) for node, life in view.incarnations.items()),
        ]
        for node, life in over:
            self.windows.fence(node, life)
        self._drop_former()

    def _drop_former(self) -> None:
        """Held requests of lives that are over are dropped; work that has begun is finished."""
        for entry in self.entries.held():
            if self.windows.is_former(entry.request.signature):
                self._drop(entry)

    def _is_over(self, signature: Signature) -> bool:
        """Whether a copy of the request itself would be ignored."""
        return self.windows.is_former(signature) or self.windows.is_past(signature)

    def _drop(self, entry: Entry) -> None:
        self.entries.pop(entry.ticket)
        self.gate.dropped(entry.ticket)

    def _answer(
        self,
        request: Request,
        kind: Kind,
        refused: Iterable[int] = (),
        failure: Failure | None = None,
        clocks: tuple[Clock, ...] = (),
    ) -> Answer:
        by = (self.node, self.incarnation)
        return request.answer(kind, by, self.view, refused, failure, clocks)
