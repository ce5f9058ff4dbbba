"""A cluster with dispatchers on the loopback network, which may be killed."""

from __future__ import annotations

from typing import Any

import pytest

from kv.dispatcher.config import DispatcherConfig
from kv.dispatcher.dispatcher import Dispatcher
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


class Tier(Replicated):
    """Scheduler, servers, dispatchers and workers.

    Args:
        seed: of the order of events.
        dispatchers: how many.
        config: of each.
        chosen: see `Replicated`.
    """

    def __init__(
        self,
        seed: int,
        *,
        dispatchers: int = 2,
        config: DispatcherConfig = DispatcherConfig(),  # noqa: B008 (it is frozen)
        **chosen: Any,
    ) -> None:
        chosen.setdefault("replicas", 0)
        super().__init__(seed, dispatchers=dispatchers, **chosen)
        self.config = config
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
            )
            self.dispatchers[rank] = dispatcher
            office.resend_with(Resend(timeout=0.5))
            office.start()
            office.serve()
            office.finalize()

        self.network.spawn(f"dispatcher {rank}", run)

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
