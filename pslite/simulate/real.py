"""A simulation of the very nodes: scheduler, servers and workers as in a job, on a virtual network.

Their code is that of a job, from the worker's table down to the codec: `SchedulerOffice`,
`Postoffice`, `TableServer` with its engine and store, `RemoteWorker`. Only the van is another, and
a worker computes by letting virtual time pass.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

import numpy as np

from kv.remote_worker import RemoteWorker
from kv.table_server import TableServer
from postoffice.head import SchedulerOffice
from postoffice.node import Role, node_name, role_and_rank
from postoffice.postoffice import ClusterShape, Postoffice
from postoffice.resending import Resend
from pslite.simulate.outcome import Outcome
from pslite.simulate.staleness import Staleness
from pslite.simulate.workload import TABLE, Workload
from van.faults import FaultPlan
from van.linked import losses
from van.message import Meta
from van.virtual import VirtualNetwork
from van.wires import Wires

_NEVER = 1e9  # seconds between heartbeats, which nobody needs here
Tell = Callable[[int], None]
"""Told of each step that a worker has ended."""


class RealCluster:
    """The nodes of one simulation.

    Args:
        work: what they do.
        tell: hears of progress.
    """

    def __init__(self, work: Workload, tell: Tell = lambda steps: None) -> None:
        config = work.config
        self._work, self._tell = work, tell
        links = config.network
        self._plan = FaultPlan(config.seed, links=losses(links, node_name), hits=_is_about_tables)
        self._is_lossy = links.loses is not None
        self._network = VirtualNetwork(
            Wires(lines=links), plan=self._plan if self._is_lossy else None
        )
        self._shape = ClusterShape(
            servers=config.servers,
            workers=work.workers,
            scheduler="scheduler",
            heartbeat_interval=_NEVER,
            heartbeat_timeout=0,
            scheduler_timeout=0,
        )
        self._staleness = Staleness()
        self._lasting = [0.0] * work.workers
        self._dropped = 0

    def run(self) -> Outcome:
        """Simulate it."""
        network, work = self._network, self._work
        network.spawn("scheduler", self._scheduler)
        for rank in range(work.config.servers):
            network.spawn(f"server {rank}", partial(self._server, rank))
        for rank in range(work.workers):
            network.spawn(f"worker {rank}", partial(self._worker, rank))
        network.run_all()
        return Outcome(
            work.mode,
            work.workers,
            "real",
            work.config.steps,
            work.times.sum(axis=1).tolist(),
            self._lasting,
            self._staleness.counts,
            self._dropped,
            network.messages,
            network.wires.sent.total(),
        )

    def _scheduler(self) -> None:
        office = SchedulerOffice(self._network.van(), self._shape, incarnation=1)
        office.start()
        office.serve()
        office.finalize()

    def _office(self, role: Role, rank: int) -> Postoffice:
        office = Postoffice(
            role,
            self._network.van(),
            self._shape,
            bind=f"{role} {rank}",
            rank=rank,
            nonce=1 + rank,
        )
        if self._is_lossy:
            office.resend_with(Resend())
        return office

    def _server(self, rank: int) -> None:
        office = self._office(Role.SERVER, rank)
        tables = TableServer(office, self._work.consistency, self._work.spec.seed or 0)
        mode = tables.find_or_define(self._work.spec).mode
        self._staleness.watch(mode)
        office.start()
        office.serve()
        self._dropped += getattr(mode, "dropped", 0)
        office.finalize()

    def _worker(self, rank: int) -> None:
        work, network = self._work, self._network
        office = self._office(Role.WORKER, rank)
        worker = RemoteWorker(office, work.consistency, work.spec.seed or 0, key_cache=0)
        office.start()
        table = worker.sparse_table(TABLE, work.spec.dim, optimizer=work.spec.optimizer)
        keys = work.keys_of(rank)
        gradients = np.ones((keys.size, work.spec.dim), np.float32)
        worker.barrier()
        begun = network.now
        for seconds in work.times[rank].tolist():
            table.pull(keys)
            network.sleep(seconds)
            self._lasting[rank] = network.now - begun
            table.push(keys, gradients)
            worker.step()
            self._tell(1)
        worker.close()


def _is_about_tables(meta: Meta) -> bool:
    """Whether a message goes between a worker and a server once all have come together."""
    roles = {role_and_rank(node)[0] for node in (meta.sender, meta.recipient) if node}
    return not meta.control and roles == {Role.SERVER, Role.WORKER}
