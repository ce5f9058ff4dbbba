"""A dispatcher that has too much to do sends workers past it, and takes them back.

From time to time it compares what waits, and how long sums take, with the marks of `[balance]`. Of
the workers whose pushes wait one half goes past it first, when they are gone half of the rest: who
is here because another dispatcher had too much to do before its own, and of these those with the
most pushes waiting. They come back one by one. Who stays away for long is given another dispatcher
by the scheduler (`kv.dispatcher.balance_app`), which learns of all this with the heartbeats.
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Set
from typing import Any

from kv.dispatcher.asking import Upstream
from kv.dispatcher.assignment import dispatcher_of
from kv.dispatcher.balance import Decision, Hysteresis, Reading
from kv.dispatcher.balance_config import BalanceConfig
from kv.dispatcher.journal import Decisions
from kv.dispatcher.measuring import Measures
from kv.dispatcher.protocol import BALANCE_APP, STATUS
from kv.remote import remote_error
from postoffice.node import Role, node_id
from postoffice.postoffice import Postoffice
from van.message import Message, Meta

log = logging.getLogger(__name__)


class Balancer:
    """Looks after the load of one dispatcher; its lock is held by who calls.

    Args:
        office: the dispatcher's node.
        config: marks and times.
        measures: what it measures.
        active: ranks of its workers that may still push.

    Attributes:
        leaving: ranks of workers that are here and are to go another way.
    """

    def __init__(
        self,
        office: Postoffice,
        config: BalanceConfig,
        measures: Measures,
        active: Callable[[], Set[int]],
    ) -> None:
        self._office, self._config = office, config
        self._measures, self._active = measures, active
        self._customer = Upstream(BALANCE_APP, 0, office, remote_error)
        self._hysteresis, self._queue, self._latency = Hysteresis(config), 0, 0.0
        self._wishes = 0
        self._spilled: dict[int, float] = {}  # by rank of who goes past, since when
        self.leaving: set[int] = set()
        self._asked = 0.0  # when workers were last asked to go past
        self.decisions = Decisions(office)
        office.statuses[STATUS] = self.status

    @property
    def spilled(self) -> list[int]:
        """Ranks of the workers that go past."""
        return sorted(self._spilled)

    def look(self) -> None:
        """Compare with the marks, and decide."""
        now, config, waiting = self._office.van.now(), self._config, self._measures.waiting()
        self._queue, self._latency = sum(waiting.values()), self._measures.longest()
        readings = [
            Reading("queue", self._queue, config.queue_low, config.queue_high),
            Reading("latency", self._latency, config.latency_low, config.latency_high),
        ]
        hysteresis = self._hysteresis
        hysteresis.look(now, readings)
        if hysteresis.is_relief_due(now):
            here = self._active() - self._spilled.keys()
            here = {rank for rank in here if waiting[rank]} or here
            is_under_way = bool(self.leaving) and now - self._asked < config.move_after
            if here and not is_under_way:
                first = sorted(here, key=lambda rank: (self._is_own(rank), -waiting[rank], rank))
                self._spill(first[: (len(first) + 1) // 2], now)
        elif hysteresis.is_return_due(now):
            away = self._spilled.keys() - self.leaving
            if away:
                self._take_back(max(away, key=lambda rank: (self._spilled[rank], rank)), now)

    def _spill(self, ranks: list[int], now: float) -> None:
        high = self._hysteresis.watch.high
        assert high is not None
        self._hysteresis.relieved(now)
        self._spilled |= dict.fromkeys(ranks, now)
        self._asked = now
        self.leaving.update(ranks)
        self._note("spill", ranks, high.metric, high.value, high.high)
        for rank in ranks:
            self._ask(rank, True)

    def _take_back(self, rank: int, now: float) -> None:
        low = self._hysteresis.watch.nearest
        assert low is not None
        self._hysteresis.returned(now)
        del self._spilled[rank]
        self._note("return", [rank], low.metric, low.value, low.low)
        self._ask(rank, False)

    def _note(self, what: str, ranks: list[int], metric: str, value: float, mark: float) -> None:
        name = self._office.name
        self.decisions.note(
            Decision(0, what, metric, value, mark, about=name, workers=tuple(sorted(ranks)))
        )

    def _ask(self, rank: int, spill: bool) -> None:
        """Tell a worker where to go, again until it has heard."""
        self._wishes += 1
        worker, body = node_id(Role.WORKER, rank), {"number": self._wishes, "spill": spill}

        def send(timestamp: int, oldest: int) -> None:
            meta = Meta(
                recipient=worker,
                app=BALANCE_APP,
                timestamp=timestamp,
                oldest=oldest,
                piece=1,
                body=body,
            )
            self._customer.send(Message(meta))

        def ended(error: BaseException | None) -> None:
            if error is not None:
                log.debug("worker %d is not told where to go: %s", rank, error)

        self._customer.ask([worker], send, ended)

    def see(self) -> None:
        """What the scheduler says has changed: who has another dispatcher now is not awaited."""
        office = self._office
        elsewhere = {rank for rank in self._active() if self._dispatcher_of(rank) != office.rank}
        self.leaving.update(elsewhere)
        for rank in list(self._spilled):
            node = node_id(Role.WORKER, rank)
            if self._dispatcher_of(rank) != office.rank:
                del self._spilled[rank]
                self._ask(rank, False)  # when it is sent home one day it is to come
            elif node not in office.nodes or node in office.view.gone:
                del self._spilled[rank]
                self.leaving.discard(rank)

    def _dispatcher_of(self, rank: int) -> int:
        """The dispatcher of a worker, as the view has it."""
        return self._office.view.ways.get(node_id(Role.WORKER, rank), self._home_of(rank))

    def _home_of(self, rank: int) -> int:
        shape = self._office.shape
        return dispatcher_of(rank, shape.workers, shape.dispatchers)

    def _is_own(self, rank: int) -> bool:
        return self._home_of(rank) == self._office.rank

    def joined(self, rank: int, was_elsewhere: bool) -> None:
        """A worker has come: because it was asked to, or the scheduler sent it; or there was no
        other way before, as one of the two was started again."""
        self._spilled.pop(rank, None)
        self.leaving.discard(rank)
        if was_elsewhere and self._is_own(rank):
            self._hysteresis.returned(self._office.van.now())

    def left(self, rank: int) -> None:
        """A worker has gone another way."""
        self.leaving.discard(rank)
        if rank in self._spilled:
            self._spilled[rank] = self._office.van.now()

    def status(self) -> dict[str, Any]:
        """What the scheduler is told with each heartbeat."""
        now, hysteresis = self._office.van.now(), self._hysteresis
        return {
            "queue": self._queue,
            "latency": self._latency,
            "high_for": hysteresis.watch.high_for(now),
            "low_for": hysteresis.watch.low_for(now),
            "calm": hysteresis.calm,
            "factor": hysteresis.factor,
            "spilled": [
                [rank, now - since]
                for rank, since in sorted(self._spilled.items())
                if rank not in self.leaving
            ],
            **self.decisions.status(),
        }
