"""Which worker is to go through which dispatcher: the scheduler's part of the balance, pure.

Gets what dispatchers say of themselves, returns decisions. Workers that have gone past a dispatcher
for `move_after`, while it is not calm, or again after they had come back, get another that has
room; when their own has been calm for long enough they come home one by one. A worker that was
moved lately goes past its dispatcher twice as long before it is moved again, up to 16 times: it may
be too much for any.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from kv.dispatcher.balance import MOST, Decision
from kv.dispatcher.balance_config import BalanceConfig


@dataclass(frozen=True)
class Said:
    """What a dispatcher says of itself; fields as in `kv.dispatcher.balancing.Balancer.status`."""

    queue: int
    latency: float
    high_for: float
    low_for: float
    calm: float
    factor: int
    spilled: tuple[tuple[int, float], ...]

    @classmethod
    def of(cls, status: Mapping[str, Any]) -> Said:
        """From a heartbeat; raises KeyError, TypeError or ValueError on anything else."""
        return cls(
            int(status["queue"]),
            float(status["latency"]),
            float(status["high_for"]),
            float(status["low_for"]),
            float(status["calm"]),
            int(status["factor"]),
            tuple((int(rank), float(seconds)) for rank, seconds in status["spilled"]),
        )

    @property
    def has_room(self) -> bool:
        """Whether workers of others may come."""
        return self.high_for < 0 and not self.spilled and self.factor == 1


class BalanceDesk:
    """Decides who goes where.

    Args:
        config: marks and times.
        homes: by worker the rank of the dispatcher that the rule gives it.

    Attributes:
        ways: by rank of a worker that of its dispatcher, where it is not its home.
    """

    def __init__(self, config: BalanceConfig, homes: Sequence[int]) -> None:
        self._config, self._homes = config, list(homes)
        self.ways: dict[int, int] = {}
        self._decided: float | None = None
        self._moved: dict[
            int, tuple[float, int]
        ] = {}  # by worker, when last, and times `move_after`

    def died(self, dispatcher: int) -> bool:
        """Nobody goes there any more; whether anybody did."""
        former = dict(self.ways)
        self.ways = {worker: rank for worker, rank in former.items() if rank != dispatcher}
        return former != self.ways

    def decide(self, now: float, said: Mapping[int, Said]) -> Decision | None:
        """What is to change now, at most one thing; `ways` are then as it says.

        Args:
            said: by rank of a living dispatcher, the latest.
        """
        if self._decided is not None and now - self._decided < self._config.hold:
            return None
        decision = self._move(now, said) or self._home(said)
        if decision is not None:
            self._decided = now
        return decision

    def _factor(self, worker: int, now: float) -> int:
        """How many times `move_after` a worker goes past its dispatcher before it is moved."""
        moved, factor = self._moved.get(worker, (now, 1))
        return factor if now - moved < 2 * factor * self._config.calm else 1

    def _move(self, now: float, said: Mapping[int, Said]) -> Decision | None:
        for rank, one in sorted(said.items()):
            is_lasting = one.low_for < 0 or one.factor > 1
            workers = tuple(
                worker
                for worker, seconds in one.spilled
                if is_lasting
                and seconds >= self._config.move_after * self._factor(worker, now)
                and self.ways.get(worker, self._homes[worker]) == rank
            )
            target = self._target(rank, said)
            if workers and target is not None:
                for worker in workers:
                    self._moved[worker] = now, min(MOST, 2 * self._factor(worker, now))
                    self._send(worker, target)
                return self._decision("move", one, rank, workers, target)
        return None

    def _target(self, rank: int, said: Mapping[int, Said]) -> int | None:
        """Who has the most room beside `rank`; None: nobody."""
        others = [other for other, one in said.items() if other != rank and one.has_room]
        counts = [self.ways.get(worker, home) for worker, home in enumerate(self._homes)]
        key = {other: (said[other].queue, counts.count(other), other) for other in others}
        return min(others, key=lambda other: key[other], default=None)

    def _home(self, said: Mapping[int, Said]) -> Decision | None:
        for worker in sorted(self.ways):
            home = self._homes[worker]
            one = said.get(home)
            if one is not None and not one.spilled and one.low_for >= one.calm:
                self._send(worker, home)
                return self._decision("home", one, home, (worker,), home)
        return None

    def _send(self, worker: int, dispatcher: int) -> None:
        if dispatcher == self._homes[worker]:
            self.ways.pop(worker, None)
        else:
            self.ways[worker] = dispatcher

    def _decision(
        self, what: str, one: Said, rank: int, workers: tuple[int, ...], to: int
    ) -> Decision:
        config, name = self._config, f"dispatcher {rank}"
        is_slow = what == "move" and one.queue < config.queue_low <= config.queue_high
        if is_slow and one.latency >= config.latency_low:
            metric, value, mark = "latency", one.latency, config.latency_low
        else:
            metric, value, mark = "queue", float(one.queue), float(config.queue_low)
        return Decision(0, what, metric, value, mark, about=name, workers=workers, to=to)
