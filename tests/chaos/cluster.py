"""A whole cluster on the seeded network, to which any fault may happen at any moment of its job.

The job: each of two workers pushes ones `PUSHES` times, all meet at a barrier, look at the rows and
leave. `Cluster.moment` says how far it has come; whoever does harm waits for it, and the workers
wait in the midst of the moment until the harm is done.
"""

from __future__ import annotations

import random
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from kv.checkpoint.collective import Checkpoints
from kv.checkpoint.errors import CheckpointWriteError
from kv.checkpoint.server import CheckpointServer
from kv.leases.desk import LeaseDesk
from kv.optimizers import SGD
from kv.placement_app import PlacementApp
from kv.remote_worker import RemoteWorker
from kv.replication.replicator import Replicator
from kv.table_server import TableServer
from postoffice.failure import FailurePolicy
from postoffice.head import SchedulerOffice
from postoffice.node import Role
from postoffice.postoffice import Postoffice
from postoffice.resending import Resend
from postoffice.shape import ClusterShape
from tests.postoffice.journals import MemoryJournal
from van.codec import Buffer
from van.errors import PsliteError
from van.faults import FaultPlan, Faults
from van.loopback import LoopbackNetwork
from van.message import Message

MOMENTS = ("start", "steady", "barrier", "shutdown")
SAVING = "checkpoint"  # a moment of jobs that have a folder
SAVING_TAKES = 50  # events on the network, about
KEYS = np.arange(40, dtype=np.uint64)
PUSHES = 8


RETURNING = FailurePolicy(on_worker="restart", on_server="restart")


@dataclass(frozen=True, kw_only=True)
class Setting:
    """What kind of cluster it is."""

    replicas: int = 0
    policy: FailurePolicy = RETURNING


class GarblingNetwork(LoopbackNetwork):
    """Also puts bytes without sense in the place of messages.

    Args:
        seed: of the order of events, and of what is garbled.
        plan: what else goes wrong.
    """

    def __init__(self, seed: int, plan: FaultPlan) -> None:
        super().__init__(seed, plan=plan)
        self.garbled = 0.0  # share of messages
        self.count = 0
        self._chance = random.Random(f"garbled {seed}")

    def post(self, source: str, target: str, message: Message) -> int:
        if self._chance.random() >= self.garbled:
            return super().post(source, target, message)
        self.count += 1
        noise: list[Buffer] = [self._chance.randbytes(self._chance.randrange(1, 80))]
        self._links.setdefault((source, target), deque()).append(noise)
        return len(bytes(noise[0]))


class Cluster:
    """One cluster and its job.

    Args:
        seed: of everything.
        setting: what kind.
        mode: of the table.
        folder: if there is one, all save when they have pushed, and again when the harm is over.

    Attributes:
        moment: what the job has come to.
        is_harmed, is_over: the harm has been done, and undone.
        sums: the rows that each worker saw at the end.
        sent, acked: pushes of each worker, by rank.
        saved: what became of the saves of each worker, by rank: a name, or an error.
        ends: how each program ended, by name; None: well.
    """

    def __init__(
        self, seed: int, setting: Setting, mode: str = "async", folder: Path | None = None
    ) -> None:
        self.plan = FaultPlan(seed)
        self.network = GarblingNetwork(seed, self.plan)
        self.setting, self.mode, self.folder = setting, mode, folder
        self.shape = ClusterShape(
            servers=2,
            workers=2,
            scheduler="scheduler",
            heartbeat_interval=0.25,
            heartbeat_timeout=3.0,
            failures=setting.policy,
        )
        self.moment, self.harmful_moment = "", ""
        self.is_harmed = self.is_over = False
        self.sums: dict[int, NDArray[np.float32]] = {}
        self.sent, self.acked = [0, 0], [0, 0]
        self.saved: list[list[str]] = [[], []]
        self._chance = random.Random(f"when {seed}")
        self.ends: dict[str, BaseException | None] = {}
        self.app: PlacementApp | None = None
        self._records: list[bytes] = []
        self._journal = MemoryJournal(self._records)
        self._servers: dict[int, Replicator] = {}
        self._births = 0
        self.start_scheduler()
        for rank in range(2):
            self.start_server(rank)
            self.start_worker(rank)

    # -- nodes ------------------------------------------------------------------------------

    def _spawn(self, name: str, run: Callable[[], None]) -> None:
        def guarded() -> None:
            try:
                run()
                self.ends[name] = None
            except PsliteError as error:
                self.ends[name] = error

        self.network.spawn(name, guarded)

    def start_scheduler(self) -> None:
        def run() -> None:
            journal = self._journal = MemoryJournal(self._records)
            self._births += 1
            office = SchedulerOffice(
                self.network.van(), self.shape, incarnation=self._births, journal=journal
            )
            office.apps.append(LeaseDesk(office, None))
            self.app = PlacementApp(office, self.setting.replicas)
            try:
                office.start()
                office.serve()
            finally:
                office.finalize()

        self._spawn("scheduler", run)

    def _office(self, role: Role, rank: int) -> Postoffice:
        self._births += 1
        office = Postoffice(
            role,
            self.network.van(),
            self.shape,
            bind=f"{role} {rank} {self._births}",
            rank=rank,
            nonce=self._births,
        )
        office.resend_with(Resend(timeout=0.5))
        return office

    def start_server(self, rank: int) -> None:
        def run() -> None:
            office = self._office(Role.SERVER, rank)
            tables = TableServer(office, self.mode, seed=4)
            CheckpointServer(
                office,
                tables.engine,
                is_threaded=False,
                owned=lambda: tables.desk.slots.owner == office.rank,
            )
            self._servers[rank] = Replicator(tables, timeout=0.5)
            try:
                office.start()
                office.serve()
                tables.engine.validate()
            finally:
                office.finalize()

        self._spawn(f"server {rank}", run)

    def start_worker(self, rank: int) -> None:
        def run() -> None:
            office = self._office(Role.WORKER, rank)
            worker = RemoteWorker(office, self.mode, seed=4)
            try:
                office.start()
                self._work(worker)
            finally:
                office.finalize()

        self._spawn(f"worker {rank}", run)

    def kill(self, name: str) -> None:
        """As kill -9 would."""
        if name == "scheduler":
            self._journal.is_cut = True
        self.network.kill(name)

    # -- the job ----------------------------------------------------------------------------

    def _work(self, worker: RemoteWorker) -> None:
        rank = worker.rank
        table = worker.sparse_table("t", 1, optimizer=SGD(lr=1), initializer=None, missing="zeros")
        if self.setting.replicas:
            self._wait_until_copied()
        for number in range(PUSHES):
            self.sent[rank] += 1
            worker.wait(table.push(KEYS, np.ones((KEYS.size, 1))))
            worker.step()
            self.acked[rank] += 1
            if number == PUSHES // 2:
                self._come("steady")
        if self.folder is not None:
            self._save(worker, str(self.folder))
        if rank == 0:
            self._come("barrier", is_waited_for=False)
        else:
            self._see("barrier")
        worker.barrier("pushed")
        self.sums[rank] = table.pull(KEYS)
        worker.barrier("looked")
        if rank == 0:
            if self.harmful_moment != "shutdown":
                self.network.wait(lambda: self.is_over, None)
                self.network.wait(lambda: False, self.network.now + 3.0)  # all hear what came of it
            worker.close()
            self._come("shutdown", is_waited_for=False)
        else:
            self._see("shutdown")
            worker.close()

    def _save(self, worker: RemoteWorker, folder: str) -> None:
        """Once amid the harm, which may fail, and once after it."""
        checkpoints = Checkpoints(worker, folder, keep=0)
        worker.barrier("saving")
        if worker.rank == 0:
            self.moment = SAVING
        try:
            self.saved[worker.rank].append(checkpoints.save(dict))
        except CheckpointWriteError as error:
            self.saved[worker.rank].append(str(error))
        self.network.wait(lambda: self.is_over, None)
        if self.setting.replicas:
            self._wait_until_copied()
        self.saved[worker.rank].append(checkpoints.save(dict))

    @property
    def is_saved(self) -> bool:
        """Whether a worker knows what became of the first save."""
        return any(self.saved)

    def _come(self, moment: str, *, is_waited_for: bool = True) -> None:
        """This moment of the job is here."""
        order = [*MOMENTS[:2], SAVING, *MOMENTS[2:]]
        if order.index(moment) > order.index(self.moment or "start"):
            self.moment = moment
        if is_waited_for:
            self._see(moment)

    def _see(self, moment: str) -> None:
        """If harm is meant for this moment, wait for it."""
        if self.harmful_moment == moment:
            self.network.wait(lambda: self.is_harmed, None)

    def _wait_until_copied(self) -> None:
        def is_copied() -> bool:
            if self.app is None or self.app.desk.version == 0 or not self.app.desk.is_settled:
                return False
            newest = self.app.office.view.map_version
            known = {self._servers[rank].map_version for rank in self.app.desk.alive}
            return bool((self.app.desk.backup != 0xFFFF).all()) and known == {newest}

        self.network.wait(is_copied, None)

    # -- harm -------------------------------------------------------------------------------

    def harm(
        self,
        moment: str,
        act: Callable[[Cluster], None],
        after: float = 0.0,
        undo: Callable[[Cluster], None] | None = None,
    ) -> None:
        """Do `act` at a moment of the job and `undo` it some virtual seconds later."""
        self.harmful_moment = moment

        def run() -> None:
            network = self.network
            if moment == "start":
                network.wait(lambda: len(network.log) >= 3, None)
            else:
                network.wait(lambda: self.moment == moment, None)
            if moment == SAVING:  # at any of what happens then
                events = len(network.log) + self._chance.randrange(SAVING_TAKES)
                network.wait(lambda: len(network.log) >= events or self.is_saved, None)
            act(self)
            self.is_harmed = True
            if undo is not None:
                network.wait(lambda: False, network.now + after)
                undo(self)
            self.is_over = True

        self.network.spawn("harm", run)

    def run(self) -> None:
        """Run to the end of all programs; `DeadlockError` if anybody waits for ever."""
        self.network.run_all()


def spell(faults: Faults) -> Callable[[Cluster], None]:
    """From now on these faults are everywhere."""

    def act(cluster: Cluster) -> None:
        cluster.plan.everywhere = faults

    return act
