"""A cluster with copies on the loopback network: servers that can be killed and started anew."""

from __future__ import annotations

import random
from collections.abc import Callable

import numpy as np

from kv.compression.settings import NO_RULES, Rules
from kv.consistency.settings import Consistency
from kv.dispatcher.balance_config import BalanceConfig
from kv.dispatcher.busy import BusyLink
from kv.placement_app import PlacementApp
from kv.remote_worker import RemoteWorker
from kv.replication.replicator import Replicator
from kv.table_server import TableServer
from postoffice.failure import FailurePolicy, WorkerFailure
from postoffice.head import SchedulerOffice
from postoffice.node import Role
from postoffice.postoffice import ClusterShape, Postoffice
from postoffice.resending import Resend
from tests.postoffice.journals import MemoryJournal
from van.faults import FaultPlan
from van.loopback import LoopbackNetwork

Program = Callable[[RemoteWorker], None]


class Replicated:
    """Scheduler, servers and workers; `run` returns when all have ended.

    Args:
        seed: of the order of events.
        plan: what goes wrong on the network.
        on_worker: what follows from a worker's death.
    """

    def __init__(
        self,
        seed: int,
        *,
        servers: int = 2,
        workers: int = 1,
        replicas: int = 1,
        mode: str | Consistency = "async",
        plan: FaultPlan | None = None,
        on_worker: WorkerFailure = "stop",
        dispatchers: int = 0,
        compression: Rules = NO_RULES,
    ) -> None:
        self.network = LoopbackNetwork(seed, plan=plan)
        self.mode, self.replicas, self.workers = mode, replicas, workers
        self.compression = compression
        self.shape = ClusterShape(
            servers=servers,
            workers=workers,
            dispatchers=dispatchers,
            scheduler="scheduler",
            failures=FailurePolicy(
                on_server="restart", on_worker=on_worker, on_dispatcher="restart"
            ),
        )
        self.balance = BalanceConfig()
        self.max_staleness: int | None = None  # of servers that start from here on
        self.servers: dict[int, Replicator] = {}
        self.app: PlacementApp | None = None
        self.records: list[bytes] = []
        self.journal = MemoryJournal(self.records, many=12)
        self._births = 0
        self.network.spawn("scheduler", self._scheduler)
        for rank in range(servers):
            self.start_server(rank)

    def _scheduler(self) -> None:
        self.journal = MemoryJournal(self.records, many=12)
        office = SchedulerOffice(
            self.network.van(), self.shape, incarnation=1, journal=self.journal
        )
        self.app = PlacementApp(office, self.replicas)
        self._scheduler_apps(office)
        office.start()
        office.serve()
        office.finalize()

    def _scheduler_apps(self, office: SchedulerOffice) -> None:
        """Add what else is decided on the scheduler."""

    def kill_scheduler(self) -> None:
        """As kill -9 would: what its program does to clean up changes nothing."""
        self.journal.is_cut = True
        self.network.kill("scheduler")

    def restart_scheduler(self) -> None:
        """Start another one at the same address, with what the killed one has written down."""
        self.network.spawn("scheduler", self._scheduler)

    def _office(self, role: Role, rank: int) -> Postoffice:
        self._births += 1
        bind = f"{role} {rank} {self._births}"
        van = self.network.van()
        office = Postoffice(role, van, self.shape, bind=bind, rank=rank, nonce=self._births)
        office.resend_with(Resend(timeout=0.5))
        return office

    def start_server(self, rank: int) -> None:
        def run() -> None:
            office = self._office(Role.SERVER, rank)
            tables = TableServer(office, self.mode, seed=4, max_staleness=self.max_staleness)
            if self.balance.when_busy:
                tables.unpacker.compress_when_busy(self.balance.when_busy)
                BusyLink(office, self.balance, tables.unpacker.switch, tables.unpacker.saved)
            self.servers[rank] = Replicator(tables, timeout=0.5)
            office.start()
            office.serve()
            tables.engine.validate()
            office.finalize()

        self.network.spawn(f"server {rank}", run)

    def start_worker(self, rank: int, program: Program) -> None:
        def run() -> None:
            office = self._office(Role.WORKER, rank)
            worker = RemoteWorker(
                office,
                self.mode,
                seed=4,
                may_move=self.replicas > 0,
                compression=self.compression,
                balance=self.balance,
            )
            office.start()
            program(worker)
            worker.close()

        self.network.spawn(f"worker {rank}", run)

    def meddle(self, program: Callable[[], None]) -> None:
        """Run `program` beside the nodes."""
        self.network.spawn("meddler", program)

    def lose_a_server(self, chance: random.Random, most: int) -> None:
        """Beside the nodes: a server is killed as soon as there are copies of all, another comes.

        Args:
            chance: says which one, and how many of `most` messages are delivered before.
        """

        def run() -> None:
            self.wait_until_copied()
            self.wait_for_events(chance.randrange(1, most))
            if self.network.is_over("worker 0"):
                return
            victim = chance.randrange(self.shape.servers)
            self.network.kill(f"server {victim}")
            self.start_server(victim)

        self.meddle(run)

    def wait(self, done: Callable[[], bool]) -> None:
        """In a program: go on when `done()`."""
        self.network.wait(done, None)

    def wait_for_events(self, count: int) -> None:
        """In a program: let so many messages be delivered."""
        goal = len(self.network.log) + count
        self.wait(lambda: len(self.network.log) >= goal or self.network.is_over("worker 0"))

    def wait_until_copied(self) -> None:
        """In a program: go on when each slot has its backup, as all servers know."""

        def is_copied() -> bool:
            if self.app is None:
                return False
            if self.network.is_over("worker 0"):
                return True
            desk = self.app.desk
            return desk.version > 0 and desk.is_settled and bool((desk.backup != 0xFFFF).all())

        self.wait(is_copied)
        self.wait(
            lambda: (
                self.network.is_over("worker 0")
                or {server.map_version for server in self.living()} == {self.newest_map()}
            )
        )

    def wait_until_settled(self, servers: int) -> None:
        """In a program: go on when there are that many servers and no slot is on its way."""
        assert self.app is not None
        desk = self.app.desk
        self.wait(
            lambda: (
                self.network.is_over("worker 0")
                or (desk.size == servers == len(desk.alive) and desk.is_settled)
            )
        )

    def replace_server(self, rank: int) -> None:
        """In a program: kill a server, start another one, and go on when all is copied again."""
        assert self.app is not None
        alive, former = self.app.desk.alive, self.app.desk.alive[rank]
        self.network.kill(f"server {rank}")
        self.start_server(rank)
        self.wait(
            lambda: self.network.is_over("worker 0") or alive.get(rank, former) != former,
        )
        self.wait_until_copied()

    def rows_of(self, rank: int, keys: np.ndarray, name: str = "t") -> np.ndarray:
        """What a server holds of these keys in a sparse table, own rows and copies."""
        engine = self.servers[rank].engine
        ((_, store),) = engine.tables[engine.number_of(name)].store.stores
        return store.pull(keys, create=False)

    def newest_map(self) -> int:
        assert self.app is not None
        return self.app.office.view.map_version

    def living(self) -> list[Replicator]:
        assert self.app is not None
        return [self.servers[rank] for rank in self.app.desk.alive]

    def living_ranks(self) -> list[int]:
        return [] if self.app is None else list(self.app.desk.alive)

    def run(self) -> None:
        self.network.run_all()
