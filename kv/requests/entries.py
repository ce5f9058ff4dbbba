"""The requests a server has in its hands: held for a consistency mode, or being worked on."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kv.requests.messages import Request
from kv.requests.signature import Signature
from kv.requests.slots import Slots


@dataclass(eq=False, slots=True)
class Entry:
    """One piece of a request.

    Args:
        ticket: its number at this server.
        apply: slots to which the push is to be applied.
        read: slots whose values the answer brings.
        refused: slots the answer will not speak for.
        is_working: work has begun; else it is held.
    """

    ticket: int
    request: Request
    apply: Slots
    read: Slots
    refused: set[int]
    is_working: bool = False

    @property
    def signatures(self) -> list[Signature]:
        """The request's and, of a merged push, those inside."""
        return [self.request.signature, *(c.signature for c in self.request.constituents)]

    def touches(self, slot: int) -> bool:
        return slot in self.apply or slot in self.read

    def lose(self, slot: int) -> None:
        """The slot leaves this server."""
        self.apply = self.apply[self.apply != slot]
        self.read = self.read[self.read != slot]
        self.refused.add(slot)


class Entries:
    """Entries by ticket and by signature."""

    def __init__(self) -> None:
        self._by_ticket: dict[int, Entry] = {}
        self._by_signature: dict[Signature, list[Entry]] = {}
        self._last = 0

    def new_ticket(self) -> int:
        self._last += 1
        return self._last

    def add(self, entry: Entry) -> None:
        self._by_ticket[entry.ticket] = entry
        for signature in entry.signatures:
            self._by_signature.setdefault(signature, []).append(entry)

    def pop(self, ticket: int) -> Entry:
        entry = self._by_ticket.pop(ticket)
        for signature in entry.signatures:
            same = self._by_signature[signature]
            same.remove(entry)
            if not same:
                del self._by_signature[signature]
        return entry

    def get(self, ticket: int) -> Entry | None:
        return self._by_ticket.get(ticket)

    def repeated_by(self, request: Request) -> Entry | None:
        """The entry of this very piece, if it has come before."""
        for entry in self._by_signature.get(request.signature, ()):
            if (
                entry.request.signature == request.signature
                and entry.request.piece == request.piece
            ):
                return entry
        return None

    def knows(self, signature: Signature) -> bool:
        """Whether the request, or a merged one with it inside, is in hand."""
        return signature in self._by_signature

    def has(self, signature: Signature, slots: Slots) -> NDArray[np.bool_]:
        """Which of `slots` wait for the push, alone or merged: bool (len(slots),)."""
        mask = np.zeros(slots.size, np.bool_)
        for entry in self._by_signature.get(signature, ()):
            mask |= np.isin(slots, entry.apply)
        return mask

    def held(self) -> list[Entry]:
        """Entries on which no work has begun, oldest first."""
        return [entry for entry in self if not entry.is_working]

    def working_on(self, slot: int) -> list[int]:
        """Tickets of the work under way that touches the slot."""
        return [e.ticket for e in self if e.is_working and e.touches(slot)]

    def __iter__(self) -> Iterator[Entry]:
        return iter(list(self._by_ticket.values()))

    def __len__(self) -> int:
        return len(self._by_ticket)
