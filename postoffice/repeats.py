"""What a node says to the scheduler again and again until it is answered. Time is an argument."""

from __future__ import annotations

from collections.abc import Hashable

from van.message import Message


class Repeats:
    """Messages without an answer.

    Args:
        every: seconds between two sendings of one.
    """

    def __init__(self, every: float) -> None:
        self._every = every
        self._open: dict[Hashable, tuple[Message, float]] = {}

    def ask(self, key: Hashable, message: Message, now: float) -> None:
        """`message` is being sent, and is repeated until `answered(key)`."""
        self._open[key] = (message, now + self._every)

    def answered(self, key: Hashable) -> bool:
        """An answer has come, or nobody waits for it any more; whether somebody did."""
        return self._open.pop(key, None) is not None

    def due(self, now: float) -> list[Message]:
        """What to send again now."""
        found = []
        for key, (message, due) in list(self._open.items()):
            if due <= now and key in self._open:
                self._open[key] = (message, now + self._every)
                found.append(message)
        return found
