"""How old gradients are when they count.

A push was computed with values of the table's clock at the server's answer to the pull before it.
When it counts, the clock is further: by as many updates of the table at that server as the worker
did not know of. Where rounds are added up, an update is a round.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from kv.consistency.base import Due, Mode, Update


class Staleness:
    """Counts what the modes of several servers let count.

    Attributes:
        counts: pushes by their staleness.
    """

    def __init__(self) -> None:
        self.counts: Counter[int] = Counter()

    def watch(self, mode: Mode) -> Mode:
        """Look on at what `mode` decides, which changes nothing; returns it."""
        may_pull, on_push, total = mode.may_pull, mode.on_push, mode.total
        known: dict[int, int] = {}  # rank -> clock of what it was last answered

        def watched_pull(rank: int, step: int) -> bool:
            may = may_pull(rank, step)
            if may:
                known[rank] = mode.clock
            return may

        def watched_push(rank: int, step: int, update: Update) -> Sequence[Update]:
            if update.base < 0:
                update = update._replace(base=known.get(rank, mode.clock))
            counting = on_push(rank, step, update)
            for one in counting:
                self.counts[one.clock - one.base] += 1
            return counting

        def watched_total(due: Due) -> Update:
            number, pushes = due[:2]  # of a round, as all modes that hold pushes back have them
            for some in pushes.values():
                self.counts.update(number - push.base for push in some if not push.is_rest)
            return total(due)

        for name, watched in (
            ("may_pull", watched_pull),
            ("on_push", watched_push),
            ("total", watched_total),
        ):
            setattr(mode, name, watched)
        return mode
