"""What a server does for requests, who permits it, and what goes along with a moving slot."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Protocol

from kv.requests.messages import Request
from kv.requests.slots import Slots


@dataclass(eq=False, slots=True)
class Work:
    """What to do now for a request; then `Incoming.finish(ticket)` gives the answer.

    Args:
        ticket: its number at this server.
        apply: slots to which the push is applied, and to no others.
        read: slots whose values go with the answer, after applying.
    """

    ticket: int
    request: Request
    apply: Slots
    read: Slots


class Gate(Protocol):
    """A consistency mode, as seen from here."""

    def admits(self, work: Work) -> bool:
        """Whether this is done now; else it is held until `Incoming.release([work.ticket])`.

        A mode that waits for several pushes holds the last of them too; whoever called
        `Incoming.receive` then releases them all, in the order the mode wants.
        A mode is asked again, under a new ticket, when a pull or an `everywhere` push is repeated
        after its answer; what is still to be applied of the push is then empty.
        """

    def dropped(self, ticket: int) -> None:
        """A held request is gone: its maker's life is over, or its slots have left."""


@dataclass(frozen=True)
class SlotState:
    """What goes with a slot to its new owner, beside its rows.

    Args:
        owner: the server that takes it over. If it has lost the slot again by the time it comes, it
            takes it all the same, and gives it on.
        move: number of this move of the slot, by which a copy of an older one is told.
        map_version: the map under which it moves; the receiver must know it first.
        windows: `Windows.export`.
    """

    slot: int
    owner: int
    move: int
    map_version: int
    windows: dict[str, Any]
