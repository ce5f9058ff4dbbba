"""The ends of workers' steps: said to servers behind the pushes that belong before them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Sequence
from typing import Any

from van.message import Message


def said_to_all(answers: Sequence[Message]) -> dict[str, Any] | None:
    """The body of the answer to ends of steps, of what servers have answered."""
    bodies = [answer.meta.body for answer in answers if answer.meta.body is not None]
    return {"round": max(body["round"] for body in bodies)} if bodies else None


class Steps:
    """Ends of steps that wait.

    Attributes:
        early: of which some push has not come yet, each with the worker's rank.
    """

    def __init__(self) -> None:
        self.early: list[tuple[Message, int]] = []
        self._waiting: list[tuple[Message, int, int]] = []
        self._saying: Counter[int] = Counter()  # by rank, ends that servers have not answered

    def come(self, has_come: Callable[[Message], bool]) -> list[tuple[Message, int]]:
        """Those before which everything has come by now; they are then no longer early."""
        ready = [entry for entry in self.early if has_come(entry[0])]
        self.early = [entry for entry in self.early if entry not in ready]
        return ready

    def forget_former(self, node: int, life: int) -> None:
        """What has not come by now of lives of a worker before this one does not come."""
        self.early = [
            entry
            for entry in self.early
            if entry[0].meta.sender != node or entry[0].meta.incarnation >= life
        ]

    def wait(self, message: Message, rank: int, step: int) -> None:
        """Keep the end of a worker's step until its pushes have been sent."""
        self._waiting.append((message, rank, step))

    def ready(self, holds: Callable[[int, int], bool]) -> list[tuple[Message, int, int]]:
        """Those whose pushes have been sent, each with rank and step; they are to be said now.

        Args:
            holds: whether something of a worker up to a step has not been sent.
        """
        ready = [entry for entry in self._waiting if not holds(entry[1], entry[2])]
        if ready:
            self._waiting = [entry for entry in self._waiting if entry not in ready]
            self._saying.update(rank for _, rank, _ in ready)
        return ready

    def said(self, ends: Sequence[tuple[Message, int, int]]) -> None:
        """Servers have answered these."""
        self._saying.subtract(rank for _, rank, _ in ends)

    def is_saying(self, rank: int) -> bool:
        """Whether servers have not answered some end of a worker's steps."""
        return self._saying[rank] > 0

    def __len__(self) -> int:
        return len(self._waiting) + len(self.early)
