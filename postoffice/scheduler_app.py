"""What else the scheduler does (placement, leases): called when nodes come, die and leave."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from postoffice.node import Node, Role


class SchedulerApp:
    """Something that decides on the scheduler; override what concerns it.

    All calls come from the thread that drives the scheduler's van, one at a time; they may send,
    and call `SchedulerOffice.set_map`. One that raises ends the job with its error.

    Attributes:
        name: of its part of the journal; other than those of all other apps.
    """

    name = ""

    def joined(self, node: Node, now: float) -> None:
        """A node is in the cluster, for the first time or in a new life."""

    def died(self, node: Node, now: float) -> None:
        """That life of a node is over; the view that fences it has not been sent yet."""

    def left(self, node: Node, now: float) -> None:
        """A node has said goodbye."""

    def tick(self, now: float) -> None:
        """About once a heartbeat."""

    def may_grow(self, role: Role) -> bool:
        """Whether a process may join as a new rank of `role`."""
        return False

    def is_covered(self, node: int) -> bool:
        """Whether others have all that the server `node` has, should it be dead."""
        return False

    def state(self) -> Any:
        """All that another scheduler must know to go on, as msgpack types; None: nothing."""
        return None

    def restore(self, state: Any, notes: Sequence[Any]) -> None:
        """Go on from what `state` returned once, and what was noted (`SchedulerOffice.note`) since.

        Called before any message comes; once more with None and no notes if that job turns out to
        be over and a new one begins.
        """
