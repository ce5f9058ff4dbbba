"""Barriers: a set of senders each, complete when every living member has come.

Pure. A repeat changes nothing (ps-lite counts messages, so that a resent one lets others through
early), and a member that goes no longer holds the others up.

Source: ps-lite, src/van.cc (ProcessBarrierCommand).
"""

from __future__ import annotations

from collections.abc import Set
from dataclasses import dataclass, field

from postoffice.node import Group

Place = tuple[int, str]
"""Group and name of a barrier."""


@dataclass(slots=True)
class _Barrier:
    count: int  # how often this barrier has been passed
    come: set[int] = field(default_factory=set)


class Barriers:
    """All barriers of a cluster."""

    def __init__(self) -> None:
        self._barriers: dict[Place, _Barrier] = {}
        self.passes = 0  # of all barriers together

    def arrive(
        self, sender: int, group: Group, name: str, count: int, members: Set[int]
    ) -> list[int]:
        """`sender` has come for the `count`-th time (from 0); returns whom to let through now."""
        barrier = self._barriers.setdefault((int(group), name), _Barrier(0))
        if count < barrier.count:
            return [sender]  # its release was lost: say it again
        barrier.come.add(sender)
        return self._release(barrier, members)

    def recheck(self, group: Group, name: str, members: Set[int]) -> list[int]:
        """Whom to let through after a change of membership."""
        barrier = self._barriers.get((int(group), name))
        return self._release(barrier, members) if barrier is not None and barrier.come else []

    def forget(self, node: int) -> None:
        """A node is dead: if it comes back it has to come again."""
        for barrier in self._barriers.values():
            barrier.come.discard(node)

    def counts(self) -> list[tuple[int, str, int]]:
        """Group, name and how often it has been passed, of each barrier that was."""
        return [(g, name, b.count) for (g, name), b in self._barriers.items() if b.count]

    def restore(self, counts: list[tuple[int, str, int]]) -> None:
        """Go on from the `counts` of another; who waits will say so again."""
        for group, name, count in counts:
            self._barriers[(group, name)] = _Barrier(count)
            self.passes += count

    def _release(self, barrier: _Barrier, members: Set[int]) -> list[int]:
        if not members <= barrier.come:
            return []
        released = sorted(barrier.come)
        barrier.come.clear()
        barrier.count += 1
        self.passes += 1
        return released

    def passed(self, group: Group, name: str) -> int:
        """How often a barrier has been passed."""
        barrier = self._barriers.get((int(group), name))
        return 0 if barrier is None else barrier.count

    def places(self) -> list[tuple[Group, str]]:
        """The barriers at which somebody waits."""
        return [(Group(g), name) for (g, name), b in self._barriers.items() if b.come]

    def missing(self, group: Group, name: str, members: Set[int]) -> list[int]:
        """Who has not come."""
        barrier = self._barriers.get((int(group), name))
        return sorted(members - (barrier.come if barrier else set()))

    def validate(self) -> None:
        """Check that the book is consistent."""
        for barrier in self._barriers.values():
            assert barrier.count >= 0
