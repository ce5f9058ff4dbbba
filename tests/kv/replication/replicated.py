"""A cluster with copies on the loopback network: servers that can be killed and started anew."""

from __future__ import annotations

from collections.abc import Callable

from kv.compression.settings import NO_RULES, Rules
from kv.consistency.settings import Consistency
from kv.placement_app import PlacementApp
from kv.remote_worker import RemoteWorker
from kv.replication.replicator import Replicator
from kv.table_server import TableServer
from postoffice.failure import FailurePolicy
from postoffice.head import SchedulerOffice
from postoffice.node import Role
from postoffice.postoffice import ClusterShape, Postoffice
from postoffice.resending import Resend
from van.faults import FaultPlan
from van.loopback import LoopbackNetwork

Program = Callable[[RemoteWorker], None]


class KeptRecords:
    """A journal that outlives its scheduler; a killed one, while it unwinds, changes nothing."""

    def __init__(self, records: list[bytes]) -> None:
        self.records, self.is_cut = records, False

    def load(self) -> list[bytes]:
        return list(self.records)

    def append(self, record: bytes) -> None:
        if not self.is_cut:
            self.records.append(record)

    @property
    def is_long(self) -> bool:
        return len(self.records) > 12

    def compact(self, record: bytes) -> None:
        if not self.is_cut:
            self.records[:] = [record]

    def announce(self, address: str) -> None:
        pass

    def clear(self) -> None:
        if not self.is_cut:
            self.records.clear()

    def close(self) -> None:
        pass


class Replicated:
    """Scheduler, servers and workers; `run` returns when all have ended.

    Args:
        seed: of the order of events.
        plan: what goes wrong on the network.
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
        compression: Rules = NO_RULES,
    ) -> None:
        self.network = LoopbackNetwork(seed, plan=plan)
        self.mode, self.replicas, self.workers = mode, replicas, workers
        self.compression = compression
        self.shape = ClusterShape(
            servers=servers,
            workers=workers,
            scheduler="scheduler",
            failures=FailurePolicy(on_server="restart"),
        )
        self.servers: dict[int, Replicator] = {}
        self.app: PlacementApp | None = None
        self.records: list[bytes] = []
        self.journal = KeptRecords(self.records)
        self._births = 0
        self.network.spawn("scheduler", self._scheduler)
        for rank in range(servers):
            self.start_server(rank)

    def _scheduler(self) -> None:
        self.journal = KeptRecords(self.records)
        office = SchedulerOffice(
            self.network.van(), self.shape, incarnation=1, journal=self.journal
        )
        self.app = PlacementApp(office, self.replicas)
        office.start()
        office.serve()
        office.finalize()

    def kill_scheduler(self) -> None:
        """As kill -9 would: what its program does to clean up changes nothing."""
        self.journal.is_cut = True
        self.network.kill("scheduler")

    def restart_scheduler(self) -> None:
        """Start another one at the same address, with what the killed one has written down."""
        self.network.spawn("scheduler", self._scheduler)

    def start_server(self, rank: int) -> None:
        self._births += 1
        births = self._births

        def run() -> None:
            office = Postoffice(
                Role.SERVER,
                self.network.van(),
                self.shape,
                bind=f"s{rank}.{births}",
                rank=rank,
            )
            tables = TableServer(office, self.mode, seed=4)
            self.servers[rank] = Replicator(tables, timeout=0.5)
            office.resend_with(Resend(timeout=0.5))
            office.start()
            office.serve()
            tables.engine.validate()
            office.finalize()

        self.network.spawn(f"server {rank}", run)

    def start_worker(self, rank: int, program: Program) -> None:
        def run() -> None:
            office = Postoffice(
                Role.WORKER,
                self.network.van(),
                self.shape,
                bind=f"w{rank}",
                rank=rank,
            )
            worker = RemoteWorker(
                office,
                self.mode,
                seed=4,
                may_move=self.replicas > 0,
                compression=self.compression,
            )
            office.resend_with(Resend(timeout=0.5))
            office.start()
            program(worker)
            worker.close()

        self.network.spawn(f"worker {rank}", run)

    def meddle(self, program: Callable[[], None]) -> None:
        """Run `program` beside the nodes."""
        self.network.spawn("meddler", program)

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

    def newest_map(self) -> int:
        assert self.app is not None
        return self.app.office.view.map_version

    def living(self) -> list[Replicator]:
        assert self.app is not None
        return [self.servers[rank] for rank in self.app.desk.alive]

    def run(self) -> None:
        self.network.run_all()
