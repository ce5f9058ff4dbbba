"""Every mode on a cluster whose order of delivery and time a seed decides."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kv.compression.settings import NO_RULES, Rules
from kv.consistency.settings import SSP, Async, Consistency, DCAsync, SemiSync, Sync
from kv.errors import VersionMismatchError
from kv.initializers import Zeros
from kv.local import LocalCluster
from kv.optimizers import SGD
from kv.remote_worker import RemoteWorker
from kv.retrying import Retry
from kv.table_server import TableServer
from kv.tables import RemoteSparseTable
from postoffice.failure import FailurePolicy
from postoffice.postoffice import ClusterShape, Postoffice
from postoffice.resending import Resend
from tests.postoffice.nodes import run_nodes
from van.faults import FaultPlan, Faults
from van.loopback import LoopbackNetwork

Program = Callable[[RemoteWorker], None]
MODES = [
    Async(),
    Async(lr_by_staleness=1),
    DCAsync(),
    SSP(0),
    SSP(2),
    Sync(),
    SemiSync(0.5),
    SemiSync(2, window=3.0),
    SemiSync(backup_workers=1),
]


class Job:
    """A cluster on a network with virtual time; workers may be killed."""

    def __init__(self, seed: int, mode: Consistency, faults: Faults | None = None) -> None:
        plan = None if faults is None else FaultPlan(seed, faults, hits=lambda m: not m.control)
        self.network = LoopbackNetwork(seed, plan=plan)
        self.mode, self.servers = mode, list[TableServer]()

    def run(
        self,
        workers: int,
        program: Program,
        servers: int = 2,
        max_staleness: int | None = None,
        retry: Retry = Retry(),
        compression: Rules = NO_RULES,
    ) -> None:
        shape = ClusterShape(
            servers=servers,
            workers=workers,
            scheduler="scheduler",
            failures=FailurePolicy(on_worker="continue"),
        )

        def server(office: Postoffice) -> None:
            office.resend_with(Resend(timeout=1.0))
            tables = TableServer(office, self.mode, seed=4, max_staleness=max_staleness)
            self.servers.append(tables)

        def worker(office: Postoffice, number: int) -> None:
            office.resend_with(Resend(timeout=1.0))
            remote = RemoteWorker(
                office,
                self.mode,
                seed=4,
                max_staleness=max_staleness,
                retry=retry,
                compression=compression,
            )
            office.start()
            program(remote)
            remote.close()

        run_nodes(self.network, shape, server, worker)
        for tables in self.servers:
            tables.engine.validate()

    def value(self, key: int = 0) -> float:
        """Of a key that one of the servers has, at the end."""
        keys = np.array([key], np.uint64)
        found = [float(s.engine.pull(0, keys, create=False)[0, 0]) for s in self.servers]
        return sum(found)

    def total(self, count: str) -> int:
        return sum(server.engine.stats(0).get(count, 0) for server in self.servers)


def table_of(worker: RemoteWorker) -> RemoteSparseTable:
    return worker.sparse_table("t", 1, optimizer=SGD(lr=1), initializer=Zeros())


def train(worker: RemoteWorker, steps: int) -> None:
    """Each step pulls two keys and pushes -1 to one of them, each third step an empty push."""
    table = table_of(worker)
    for step in range(steps):
        table.pull([0, 1])
        count = int(step % 3 != 2)
        table.push([0] * count, np.full((count, 1), -1.0))
        worker.step()


def adds_up(mode: Consistency) -> bool:
    """Whether gradients count as they are, however late."""
    return not isinstance(mode, DCAsync) and not (isinstance(mode, Async) and mode.lr_by_staleness)


def pushed(steps: int) -> int:
    return steps - steps // 3


@pytest.mark.parametrize("mode", MODES, ids=repr)
@pytest.mark.parametrize("seed", range(3))
def test_workers_with_unequal_work_finish_and_nothing_is_lost(seed: int, mode: Consistency) -> None:
    job = Job(seed, mode)

    job.run(3, lambda worker: train(worker, 4 + 3 * worker.rank))

    sums = sum(pushed(4 + 3 * rank) for rank in range(3))
    if adds_up(mode):
        assert job.value() == sums - job.total("dropped")


@pytest.mark.parametrize("mode", [SemiSync(2), SemiSync(), SemiSync(backup_workers=1)], ids=repr)
@pytest.mark.parametrize("seed", range(4))
def test_workers_never_all_wait_each_at_another_server(seed: int, mode: SemiSync) -> None:
    """Rounds are each server's own: with as many servers as workers each could be kept at one."""
    job, keys = Job(seed, mode), np.arange(30)

    def program(worker: RemoteWorker) -> None:
        table = table_of(worker)
        for _ in range(20):
            table.pull(keys)  # of all servers
            table.push(keys, -np.ones((keys.size, 1)))
            worker.step()

    job.run(3, program, servers=3)

    assert job.value() <= 60
    if not mode.backup_workers:
        assert job.value() == 60


@pytest.mark.parametrize("mode", MODES, ids=repr)
@pytest.mark.parametrize("seed", range(2))
def test_a_network_that_loses_and_repeats_changes_nothing_of_that(
    seed: int, mode: Consistency
) -> None:
    job = Job(seed, mode, Faults.all(0.15))

    job.run(3, lambda worker: train(worker, 6))

    if adds_up(mode):
        assert job.value() == 3 * pushed(6) - job.total("dropped")


@pytest.mark.parametrize("mode", MODES, ids=repr)
def test_a_dead_worker_holds_nobody_up(mode: Consistency) -> None:
    job = Job(1, mode)
    steps: dict[int, int] = {}

    def program(worker: RemoteWorker) -> None:
        table = table_of(worker)
        for step in range(12):
            if worker.rank == 2 and step == 3:
                worker.office.wait(lambda: False)  # silent until it is killed
            table.pull([0])
            table.push([0], [[-1.0]])
            worker.step()
            steps[worker.rank] = step + 1

    def reaper() -> None:
        job.network.wait(lambda: steps.get(2) == 3, None)
        job.network.kill("worker 2")

    job.network.spawn("reaper", reaper)
    job.run(3, program)

    assert steps == {0: 12, 1: 12, 2: 3}
    if isinstance(mode, SSP | Sync):  # the others have waited until it was declared dead
        assert all(server.engine.progress.lost == [False, False, True] for server in job.servers)


def test_a_pull_waits_for_the_slowest_within_the_bound() -> None:
    job, lead = Job(5, SSP(2)), []
    done = [0, 0]

    def program(worker: RemoteWorker) -> None:
        table = table_of(worker)
        for _ in range(8):
            if worker.rank == 1:
                worker.office.wait(lambda: False, 1.0)  # a slow worker
            table.pull([0])
            if worker.rank == 0:
                lead.append(done[0] - done[1])
            table.push([0], [[-1.0]])
            done[worker.rank] += 1
            worker.step()

    job.run(2, program)

    assert max(lead) == 2
    assert job.value() == 16


def test_a_window_closes_rounds_on_the_servers_though_nobody_ends_a_step() -> None:
    job, waited = Job(2, SemiSync(3, window=2.0)), []

    def program(worker: RemoteWorker) -> None:
        table = table_of(worker)
        for _ in range(3 if worker.rank < 2 else 1):
            started = worker.office.van.now()
            table.pull([0])
            if worker.rank < 2:
                waited.append(worker.office.van.now() - started)
            else:
                worker.office.wait(lambda: False, 20.0)
            table.push([0], [[-1.0]])
            worker.step()

    job.run(3, program)

    assert 1.0 < max(waited) < 4.0  # the window, not the 20 seconds of worker 2
    assert job.value() == 7
    assert job.total("late") >= 1


def test_a_bounded_run_of_one_worker_gives_the_bits_of_one_process() -> None:
    rows: list[bytes] = []
    rng = np.random.default_rng(0)
    keys, grads = rng.integers(0, 50, (10, 20)), rng.standard_normal((10, 20, 1))

    def program(worker: Any) -> None:
        table = worker.sparse_table("t", 1, optimizer=SGD(lr=0.1))
        for step in range(10):
            table.pull(keys[step])
            table.push(keys[step], grads[step])
            worker.step()
        rows.append(table.pull(np.arange(50), create=False).tobytes())

    for mode in (SSP(0), DCAsync(), Async()):
        Job(0, mode).run(1, program)
        program(LocalCluster(1, mode=mode, seed=4).worker(0))

    assert len(set(rows)) == 1  # with one worker nothing is ever stale


# -- versions -----------------------------------------------------------------------------------


def test_the_staleness_of_each_push_is_counted() -> None:
    job, reports = Job(3, Async()), []
    turn = [0]

    def program(worker: RemoteWorker) -> None:
        table = table_of(worker)
        table.pull([0])
        worker.barrier("pulled")
        for rank in range(3):
            if rank == worker.rank:
                worker.wait(table.push([0], [[-1.0]]))
            worker.barrier(f"{rank}")
        turn[0] += 1
        reports.append(worker.staleness(table))

    job.run(3, program, servers=1)

    assert reports == [{"0": 1, "1": 1, "2": 1}] * 3


def test_a_stale_push_is_tried_again_and_then_taken() -> None:
    job = Job(3, Async())
    times: list[float] = []

    def program(worker: RemoteWorker) -> None:
        table = table_of(worker)
        table.pull([0, 1])
        worker.barrier("pulled")
        if worker.rank == 0:
            for _ in range(3):
                table.pull([0, 1])
                worker.wait(table.push([0, 1], np.full((2, 1), -1.0)))
        worker.barrier("pushed")
        if worker.rank == 1:
            started = worker.office.van.now()
            worker.wait(table.push([0, 1], np.full((2, 1), -1.0)))
            times.append(worker.office.van.now() - started)

    job.run(2, program, max_staleness=2)

    assert (job.value(0), job.value(1)) == (4, 4)
    assert 0.05 <= times[0] < 1.0  # of the first wait, half to all of 0.1 s


@pytest.mark.parametrize("mode", [Async(), SSP(4)], ids=repr)
@pytest.mark.parametrize("most", [0, 2])
def test_a_push_that_stays_stale_is_an_error_that_names_all(mode: Consistency, most: int) -> None:
    job, said = Job(3, mode), []

    def program(worker: RemoteWorker) -> None:
        table = worker.sparse_table("user", 1, optimizer=SGD(lr=1), initializer=Zeros())
        table.pull([0])
        worker.barrier("pulled")
        if worker.rank == 0:
            worker.wait(table.push([0], [[-1.0]]))
        worker.barrier("pushed")
        if worker.rank == 1:
            if most:
                for server in job.servers:
                    server.engine.max_staleness = -1  # refuses whatever comes
            with pytest.raises(VersionMismatchError) as caught:
                worker.wait(table.push([0], [[-1.0]]))
            said.append(str(caught.value))
            for server in job.servers:
                server.engine.max_staleness = 5
        worker.step()  # nobody waits for the refused push
        table.pull([0])

    job.run(2, program, servers=1, max_staleness=0, retry=Retry(most, 0.1, 2.0))

    expected = "expected 1, got 1" if most else "expected 1, got 0"
    assert said == [f"table user: version mismatch: {expected} (worker 1, server 0)"]
    assert job.value() == 1


def test_only_rows_that_have_changed_come_and_each_once() -> None:
    job = Job(3, Async())
    seen: list[list[int]] = []

    def program(worker: RemoteWorker) -> None:
        table = table_of(worker)
        keys = np.arange(40)
        table.push(keys, np.full((40, 1), -1.0))
        every = table.pull_changed()
        assert (every.values == 1).all()
        table.push([3, 7, 20], np.full((3, 1), -1.0))
        some = table.pull_changed(every.version)
        assert (some.values == 2).all()
        none = table.pull_changed(some.version)
        seen.extend(sorted(c.keys.tolist()) for c in (every, some, none))

    job.run(1, program, servers=3)

    assert seen == [list(range(40)), [3, 7, 20], []]


def test_meta_tells_clocks_and_the_rows_asked_for() -> None:
    def program(worker: Any) -> None:
        table = worker.sparse_table("t", 1, optimizer=SGD(lr=1), initializer=Zeros())
        for _ in range(2):
            table.push([1, 2], np.zeros((2, 1)))
        table.pull([3])
        meta = table.get_meta([2, 99, 3, 1])
        assert meta.shows.tolist() == [2, 0, 0, 2]
        assert (meta.versions > 0).tolist() == [True, False, True, True]
        assert (meta.seen > 0).tolist() == [True, False, True, True]
        assert max(meta.clocks.values()) == 2
        assert set(meta.version) == set(meta.clocks) == set(table.get_meta().clocks)

    Job(0, Async()).run(1, program)
    program(LocalCluster().worker(0))


def test_a_local_worker_is_refused_and_tries_again_likewise() -> None:
    for most, outcome in ((0, VersionMismatchError), (1, None)):
        cluster = LocalCluster(2, max_staleness=0, retry=Retry(most, 1e-3, 1e-3))
        tables = [
            w.sparse_table("user", 1, optimizer=SGD(lr=1), initializer=Zeros())
            for w in cluster.workers
        ]
        for table in tables:
            table.pull([0])
        tables[0].push([0], [[-1.0]])
        if outcome is None:
            tables[1].push([0], [[-1.0]])
            assert tables[1].pull([0])[0, 0] == 2
            changed = tables[1].pull_changed()
            tables[1].push([5], [[-1.0]])
            assert tables[1].pull_changed(changed.version).keys.tolist() == [5]
            assert cluster.worker(0).staleness(tables[0]) == {"0": 3}
        else:
            text = r"table user: version mismatch: expected 1, got 0 \(worker 1, server 0\)"
            with pytest.raises(VersionMismatchError, match=text):
                tables[1].push([0], [[-1.0]])
