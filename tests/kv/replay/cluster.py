"""A cluster on the loopback network whose servers write down an order, or keep to one."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from kv.consistency.settings import Consistency
from kv.executor import run_through
from kv.leases.desk import LeaseDesk
from kv.remote_worker import RemoteWorker
from kv.replay.order import Order, Recording, Replaying
from kv.replay.recordfile import Head, RecordWriter, read_record, server_file
from kv.retrying import Retry
from kv.table_server import TableServer
from postoffice.head import SchedulerOffice
from postoffice.node import Role
from postoffice.postoffice import ClusterShape, Postoffice
from postoffice.resending import Resend
from van.faults import FaultPlan, Faults
from van.loopback import LoopbackNetwork

Program = Callable[[RemoteWorker], Any]
LIMIT = 300.0  # virtual seconds to wait for a request


class Cluster:
    """One run; `seed` is that of the order of events and of the faults.

    Args:
        orders: makes the order of a server; None: there is none.
    """

    def __init__(
        self,
        seed: int,
        mode: Consistency,
        orders: Callable[[int], Order] | None = None,
        *,
        servers: int = 2,
        workers: int = 3,
        faults: Faults | None = None,
        max_staleness: int | None = None,
        is_deterministic: bool = False,
    ) -> None:
        plan = None if faults is None else FaultPlan(seed, faults, hits=lambda m: not m.control)
        self.network = LoopbackNetwork(seed, plan=plan)
        self.shape = ClusterShape(servers=servers, workers=workers, scheduler="scheduler")
        self.mode, self.orders, self.max_staleness = mode, orders, max_staleness
        self.is_deterministic = is_deterministic
        self.tables: dict[int, TableServer] = {}
        self.results: dict[int, Any] = {}

    def run(self, program: Program) -> dict[int, Any]:
        """What `program` returned, by rank of the worker."""
        self.network.spawn("scheduler", self._scheduler)
        for rank in range(self.shape.servers):
            self.network.spawn(f"server {rank}", lambda rank=rank: self._server(rank))
        for rank in range(self.shape.workers):
            self.network.spawn(f"worker {rank}", lambda rank=rank: self._worker(rank, program))
        self.network.run_all()
        return self.results

    def _scheduler(self) -> None:
        office = SchedulerOffice(self.network.van(), self.shape, incarnation=1)
        office.apps.append(LeaseDesk(office, None))
        office.start()
        office.serve()
        office.finalize()

    def _server(self, rank: int) -> None:
        office = Postoffice(Role.SERVER, self.network.van(), self.shape, bind=f"s{rank}", rank=rank)
        office.resend_with(Resend(timeout=1.0))
        order = None if self.orders is None else self.orders(rank)
        made = {"max_staleness": self.max_staleness, "order": order}
        self.tables[rank] = tables = TableServer(office, self.mode, seed=4, **made)
        with tables:
            office.start()
            office.serve()
        tables.engine.validate()
        office.finalize()

    def _worker(self, rank: int, program: Program) -> None:
        office = Postoffice(Role.WORKER, self.network.van(), self.shape, bind=f"w{rank}", rank=rank)
        office.resend_with(Resend(timeout=1.0))
        retry = Retry(100, 0.5, 2.0)
        worker = RemoteWorker(
            office,
            self.mode,
            seed=4,
            max_staleness=self.max_staleness,
            retry=retry,
            is_deterministic=self.is_deterministic,
        )
        office.start()
        self.results[rank] = program(worker)
        worker.close()

    def state(self) -> dict[tuple[int, str], bytes]:
        """All rows with their optimiser state, by server and table."""
        found = {}
        for rank, tables in self.tables.items():
            for table in tables.engine.tables:
                keys = [keys for keys, _ in table.items(4096)]
                all_keys = np.sort(np.concatenate([np.empty(0, np.uint64), *keys]))
                if table.is_dense:
                    all_keys = table.names
                rows = run_through(table.exporting(all_keys))
                found[rank, table.spec.name] = all_keys.tobytes() + rows.data.tobytes()
        return found


def recorded(folder: Path, mode: Consistency, servers: int = 2, workers: int = 3) -> Any:
    """Makes the orders of servers that write into `folder`."""

    def make(rank: int) -> Order:
        head = Head(
            server=rank, servers=servers, workers=workers, mode=str(mode), seed=4, threads=1
        )
        return Recording(RecordWriter(server_file(folder, rank), head))

    return make


def replayed(folder: Path, limit: float = LIMIT) -> Callable[[int], Order]:
    """Makes the orders of servers that keep to what lies in `folder`."""
    return lambda rank: Replaying(read_record(server_file(folder, rank)), limit)
