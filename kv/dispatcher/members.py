"""Whose pushes and steps a dispatcher waits for: workers that come and go.

In its first life it has from the start those that the rule gives it, since all know that. Others
say that they come (JOIN), as do all where it was started again, and those that were; and all say
that they go (LEAVE), see `kv.dispatcher.changing`. A dispatcher that was started again waits for
nobody who has not come. But as long as one of those whom the rule gives it is missing, what others
push to a round goes on one by one, so that servers can add up the dispatcher's part in rank order:
a round keeps its bits.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable

from kv.consistency.progress import Progress
from van.message import Message


class Members:
    """A dispatcher's workers. Called with its lock held.

    Args:
        progress: of all workers, those of others included; nobody waits for these.

    Attributes:
        progress: likewise.
        ranks: of this dispatcher's workers.
    """

    def __init__(self, progress: Progress) -> None:
        self.progress = progress
        self.ranks: set[int] = set()
        self._missing: set[int] = set()  # whom the rule gives it, and who have not come
        self._whole_from = 0
        self._going: list[tuple[Message, int]] = []

    def begin(self, own: Iterable[int], is_again: bool) -> None:
        """The node has a rank.

        Args:
            own: ranks of the workers that the rule gives it.
            is_again: it was started again.
        """
        self.ranks, self._missing = (set(), set(own)) if is_again else (set(own), set())
        for rank in range(self.progress.num_workers):
            if rank not in self.ranks:
                self.progress.lose(rank)

    @property
    def active(self) -> set[int]:
        """Those that may still push."""
        return {rank for rank in self.ranks if not self.progress.finished[rank]}

    def is_whole(self, number: int) -> bool:
        """Whether all that its own workers push to a round of that number comes by here."""
        return not self._missing and number >= self._whole_from

    def come(self, rank: int, step: int, position: int, rests: bool) -> bool:
        """A worker comes, with so many steps done, in that position of `semi_sync`.

        Args:
            rests: it has finished, or rests: nobody waits for it.
        Returns:
            Whether it was elsewhere before; else it, or this dispatcher, was started again.
        """
        was_elsewhere = rank not in self._missing | self.ranks
        self.ranks.add(rank)
        if rank in self._missing:
            self._missing.discard(rank)
            self._whole_from = max(step, self._whole_from)
        if not rests:
            self.progress.await_again(rank, step, position)
        return was_elsewhere

    def lose(self, rank: int) -> bool:
        """Nobody waits for a worker any more, which has died or rests; whether anybody did."""
        self._missing.discard(rank)
        return self.progress.lose(rank)

    def go(self, message: Message, rank: int) -> None:
        """A worker says that it goes."""
        self.ranks.discard(rank)
        self._going.append((message, rank))

    def gone(self, holds: Callable[[int], bool]) -> list[Message]:
        """What was said by those of whom servers have everything; they are then forgotten.

        Args:
            holds: whether something of a worker is not with servers.
        """
        if not self._going:
            return []
        ready = [entry for entry in self._going if not holds(entry[1])]
        self._going = [entry for entry in self._going if entry not in ready]
        return [message for message, _ in ready]
