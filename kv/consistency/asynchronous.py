"""Mode `async`: every push is applied when it comes, every pull answered at once.

Nobody waits; gradients may be stale by whatever the others pushed meanwhile.
Source: Dean et al., Large Scale Distributed Deep Networks, NIPS 2012 (Downpour SGD).
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from kv.consistency.base import Context, Due, Mode, Update
from kv.consistency.settings import Async


class Asynchronous(Mode):
    """The clock counts the pushes applied, empty ones included, further pieces of one left out."""

    name: ClassVar[str] = Async.name
    holds: ClassVar[bool] = False

    def __init__(self, context: Context) -> None:
        super().__init__(context)
        settings = context.settings
        self._slows_down = isinstance(settings, Async) and bool(settings.lr_by_staleness)

    def on_push(self, rank: int, step: int, update: Update) -> Sequence[Update]:
        count = 0 if update.is_rest else update.makers
        self.clock += count
        clock = max(0, self.clock - (count or 1))
        rate = update.rate
        if self._slows_down and update.base >= 0:
            rate /= max(1, clock - update.base)
        return (update._replace(clock=clock, rate=rate),)

    def may_pull(self, rank: int, step: int) -> bool:
        return True

    def due(self) -> Sequence[Due]:
        return ()
