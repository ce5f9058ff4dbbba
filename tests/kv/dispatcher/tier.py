"""A cluster with dispatchers on the loopback network, which may be killed."""

from __future__ import annotations

import random
from collections.abc import Mapping, Set
from pathlib import Path
from typing import Any

import pytest

from kv.dispatcher.balance_app import BalanceApp
from kv.dispatcher.balance_config import BalanceConfig
from kv.dispatcher.buffers import Pair
from kv.dispatcher.config import DispatcherConfig
from kv.dispatcher.dispatcher import Dispatcher
from kv.dispatcher.flushing import Cause, Flushing
from postoffice.head import SchedulerOffice
from postoffice.node import Role
from postoffice.postoffice import Postoffice
from postoffice.resending import Resend
from tests.kv.replication.replicated import Program, Replicated
from van.faults import FaultPlan, Faults
from van.message import Meta

STORM = Faults.all(0.2)
SEEDS = [0, 1, *(pytest.param(seed, marks=pytest.mark.slow) for seed in range(2, 8))]


def storm(seed: int) -> FaultPlan:
    """Every fifth message about data is lost, repeated, delayed, overtaken."""
    return FaultPlan(seed, STORM, hits=is_data)


def is_data(meta: Meta) -> bool:
    return not meta.control


class SlowFlushing(Flushing):
    """Lets a buffer go now and then only, until the dispatcher is slow no more."""

    def __init__(self, tier: Tier, rank: int) -> None:
        super().__init__(tier.config)
        self._tier, self._rank, self._next = tier, rank, 0.0
        self._chance = random.Random(rank)

    def cause(
        self, pair: Pair, now: float, active: Set[int], slowest: int | None, waiting: int
    ) -> Cause | None:
        pause = self._tier.slow.get(self._rank)
        if pause is not None and now < self._next:
            return None
        cause = super().cause(pair, now, active, slowest, waiting)
        if cause is not None and pause is not None:
            self._next = now + pause * self._chance.uniform(0.5, 1.5)
        return cause


class Tier(Replicated):
    """Scheduler, servers, dispatchers and workers.

    Args:
        seed: of the order of events.
        dispatchers: how many.
        config, balance: of each.
        slow: by rank of a dispatcher that does not keep up, the seconds between two buffers.
        chosen: see `Replicated`.
    """

    def __init__(
        self,
        seed: int,
        *,
        dispatchers: int = 2,
        config: DispatcherConfig = DispatcherConfig(),
        balance: BalanceConfig = BalanceConfig(),
        slow: Mapping[int, float] | None = None,
        run_dir: Path | None = None,
        **chosen: Any,
    ) -> None:
        chosen.setdefault("replicas", 0)
        super().__init__(seed, dispatchers=dispatchers, **chosen)
        self.config, self.balance = config, balance
        self.slow = dict(slow or {})
        self.balance_app: BalanceApp | None = None
        self.run_dir = run_dir
        self.dispatchers: dict[int, Dispatcher] = {}
        for rank in range(dispatchers):
            self.start_dispatcher(rank)

    def start_dispatcher(self, rank: int) -> None:
        self._births += 1
        births = self._births

        def run() -> None:
            office = Postoffice(
                Role.DISPATCHER, self.network.van(), self.shape, bind=f"d{rank}.{births}", rank=rank
            )
            dispatcher = Dispatcher(
                office,
                self.mode,
                4,
                self.config,
                may_move=self.replicas > 0,
                max_staleness=self.max_staleness,
                balance=self.balance,
            )
            if rank in self.slow:
                slow = SlowFlushing(self, rank)
                merging = dispatcher._merging
                slow.leaving, merging.flushing = merging.flushing.leaving, slow
            self.dispatchers[rank] = dispatcher
            office.resend_with(Resend(timeout=0.5))
            office.start()
            office.serve()
            office.finalize()

        self.network.spawn(f"dispatcher {rank}", run)

    def _scheduler_apps(self, office: SchedulerOffice) -> None:
        self.balance_app = BalanceApp(office, self.balance, self.run_dir, begins=False)

    def kill_dispatcher(self, rank: int) -> None:
        self.network.kill(f"dispatcher {rank}")

    def train(self, program: Program) -> None:
        """Run `program` on every worker."""
        for rank in range(self.workers):
            self.start_worker(rank, program)
        self.run()

    @property
    def counts(self) -> dict[str, int]:
        """What the dispatchers have counted, together."""
        total: dict[str, int] = {}
        for dispatcher in self.dispatchers.values():
            for name, count in dispatcher.counts.items():
                total[name] = total.get(name, 0) + count
        return total
