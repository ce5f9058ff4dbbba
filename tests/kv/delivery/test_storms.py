"""Requests on a network that loses, repeats, delays and reorders: each counts exactly once."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kv.remote_worker
from kv.block_table import BlockTable
from kv.consistency.settings import Consistency
from kv.dense import share_of
from kv.optimizers import SGD
from kv.placement import SlotMap, slot_of
from kv.remote_worker import RemoteWorker
from kv.server import KVServer, KVServerDefaultHandle
from kv.store.blocks import Blocks
from kv.table_server import TableServer
from kv.tables import RemoteSparseTable
from kv.worker import KVWorker
from postoffice.head import SchedulerOffice
from postoffice.postoffice import ClusterShape, Postoffice
from postoffice.resending import Resend
from tests.kv.training import train
from tests.postoffice.nodes import run_nodes
from van.faults import FaultPlan, Faults
from van.loopback import LoopbackNetwork
from van.message import Meta

Program = Callable[[RemoteWorker], None]
STORM = Faults.all(0.2)


def is_data(meta: Meta) -> bool:
    return not meta.control


class Job:
    """A cluster on a network with faults; what its nodes are is kept for the test to look at."""

    def __init__(self, seed: int, faults: Faults = STORM, kept_lists: int = 1 << 20) -> None:
        self.kept_lists = kept_lists  # bytes of key lists that servers remember
        self.plan = FaultPlan(seed, faults, hits=is_data)
        self.network = LoopbackNetwork(seed, plan=self.plan)
        self.servers: list[TableServer] = []
        self.workers: list[RemoteWorker] = []

    def run(
        self,
        servers: int,
        workers: int,
        mode: str | Consistency,
        program: Program,
        **chosen: Any,
    ) -> None:
        shape = ClusterShape(servers=servers, workers=workers, scheduler="scheduler")

        def keep(office: SchedulerOffice) -> None:
            self.scheduler = office

        def server(office: Postoffice) -> None:
            self.servers.append(TableServer(office, mode, seed=4, key_cache=self.kept_lists))

        def worker(office: Postoffice, number: int) -> None:
            office.resend_with(Resend(timeout=1.0))
            remote = RemoteWorker(office, mode, seed=4, **chosen)
            self.workers.append(remote)
            office.start()
            program(remote)
            remote.close()

        run_nodes(self.network, shape, server, worker, scheduler=keep)
        for tables in self.servers:
            tables.engine.validate()
            tables.desk.windows.validate()

    def check_that_it_stormed(self) -> None:
        for name in ("dropped", "duplicated", "delayed", "reordered"):
            assert self.plan.counts[name] > 0, self.plan.counts


@pytest.mark.parametrize("seed", range(6))
def test_pushes_of_ones_add_up_whatever_the_network_does(seed: int) -> None:
    job, seen = Job(seed), []

    def program(worker: RemoteWorker) -> None:
        table = worker.sparse_table("t", 1, optimizer=SGD(lr=1), initializer=None, missing="zeros")
        dense = worker.dense_table("d", [5000], optimizer=SGD(lr=1), initializer=None)
        for _ in range(8):
            table.push(np.arange(20), np.ones((20, 1)))
            dense.push(np.ones(5000))
        rows = table.push_pull(np.arange(20), np.ones((20, 1)))
        assert rows.max() <= -1  # its own is in it; one sent before may have been overtaken
        worker.barrier()
        seen.append((table.pull(np.arange(20)), dense.pull()))

    job.run(3, 3, "async", program)

    job.check_that_it_stormed()
    assert len(seen) == 3
    for rows, array in seen:
        np.testing.assert_array_equal(rows, -27)
        np.testing.assert_array_equal(array, -24)


def train_and_meet(worker: RemoteWorker) -> bytes:
    """After each step all meet; what the next one pulls is asked for before."""

    def meet(table: RemoteSparseTable, step: int) -> None:
        table.prefetch(np.arange(5))
        worker.barrier(f"{step}")
        table.pull(np.arange(5))

    return train(worker, 4, meet)


@pytest.fixture(scope="module")
def expected_bits() -> bytes:
    digests: list[bytes] = []
    Job(0, Faults()).run(2, 2, "sync", lambda worker: digests.append(train_and_meet(worker)))
    assert len(set(digests)) == 1
    return digests[0]


@pytest.mark.parametrize("key_cache", [0, 1 << 20])
@pytest.mark.parametrize("seed", range(3))
def test_rounds_give_the_same_bits_whatever_the_network_does(
    monkeypatch: pytest.MonkeyPatch, expected_bits: bytes, seed: int, key_cache: int
) -> None:
    monkeypatch.setattr(kv.remote_worker, "SHORTEST_LIST", 1)
    job = Job(seed, kept_lists=600)  # about one
    digests: list[bytes] = []

    job.run(
        2,
        2,
        "sync",
        lambda worker: digests.append(train_and_meet(worker)),
        piece=30,
        key_cache=key_cache,
        key_deltas="on",
    )

    job.check_that_it_stormed()
    assert digests == [expected_bits] * 2
    if key_cache:
        assert any(worker.counts["lists_unknown"] for worker in job.workers)


def move(servers: list[TableServer], rng: np.random.Generator) -> SlotMap:
    """Give slots to other servers between two messages, rows and windows with them."""
    old = servers[0].desk.slots
    owner = rng.permutation(old.owner)
    new = SlotMap(old.version + 1, owner)
    given = []
    by_rank = sorted(servers, key=lambda server: server.office.rank)
    for rank, server in enumerate(by_rank):
        leaving = (old.owner == rank) & (new.owner != rank)
        rows = []
        for number, table in enumerate(server.engine.tables):
            if table.is_dense:
                continue
            for keys, _ in list(table.items(1 << 16)):
                keys = keys[leaving[slot_of(keys)]]
                rows.append((number, keys, server.engine.pull(number, keys)))
                server.engine.delete(number, keys)
        given.append((leaving, rows, server.desk.windows.export(leaving)))
    for server in by_rank:
        server.learn_map(new)
    for leaving, rows, windows in given:
        for rank, server in enumerate(by_rank):
            come = leaving & (new.owner == rank)
            server.desk.windows.adopt(come, windows)
            for number, keys, values in rows:
                mine = come[slot_of(keys)]
                server.engine.assign(number, keys[mine], values[mine])
    move_blocks(by_rank)
    return new


def move_blocks(servers: list[TableServer]) -> None:
    """Give the blocks of dense tables to those who own them now."""
    blocks = {}
    for server in servers:
        for number, table in enumerate(server.engine.tables):
            if isinstance(table, BlockTable):
                names = table.store.numbers.tolist()
                for block, values in zip(names, server.engine.pull(number), strict=True):
                    blocks[number, block] = values
    for server in servers:
        for number, table in enumerate(server.engine.tables):
            if isinstance(table, BlockTable):
                table.store = Blocks(table.spec, share_of(table.spec, server.engine.owner_filter))
                names = table.store.numbers.tolist()
                values = np.array([blocks[number, block] for block in names], np.float32)
                table.store.assign(values.reshape(table.store.shape))


@pytest.mark.parametrize("seed", range(2))
def test_pushes_of_ones_add_up_while_slots_change_their_owners(seed: int) -> None:
    job, seen = Job(seed), []

    def program(worker: RemoteWorker) -> None:
        rng = np.random.default_rng([seed, worker.rank])
        table = worker.sparse_table("t", 1, optimizer=SGD(lr=1), initializer=None, missing="zeros")
        dense = worker.dense_table("d", [9 * 4096 + 5], optimizer=SGD(lr=1), initializer=None)
        worker.barrier("defined")
        for step in range(12):
            table.push(np.arange(40), np.ones((40, 1)))
            dense.push(np.ones(dense.shape))
            if step % 3 == 1:
                assert table.push_pull(np.arange(40), np.ones((40, 1))).max() <= -1
            if worker.rank == 0 and step in (4, 5, 9):
                job.scheduler.set_map(move(job.servers, rng).to_bytes())
        worker.barrier("pushed")
        seen.append((table.pull(np.arange(40)), dense.pull()))

    job.run(3, 3, "async", program)

    job.check_that_it_stormed()
    assert all(worker.slots.version == 3 for worker in job.workers)
    assert len(seen) == 3
    for rows, array in seen:
        np.testing.assert_array_equal(rows, -3 * 16)
        np.testing.assert_array_equal(array, -3 * 12)


@pytest.mark.parametrize("seed", range(3))
def test_every_command_counts_once(seed: int) -> None:
    job = Job(seed)
    found: dict[int, tuple[int, int]] = {}

    def program(worker: RemoteWorker) -> None:
        table = worker.sparse_table("t", 2, optimizer=SGD(lr=1), initializer=None, missing="zeros")
        own = np.arange(10) + 100 * worker.rank
        for turn in range(4):
            table.assign(own, np.full((10, 2), turn))
            worker.wait(table.push(own, np.ones((10, 2))))
            np.testing.assert_array_equal(table.pull(own), turn - 1)
            table.push(own[:3], np.ones((3, 2)))  # not after what follows, though nobody waits
            assert table.delete(own[:3]) == 3
            assert table.delete(own[:3]) == 0
        worker.barrier("before others' learning rate")
        worker.set_lr(table, 0.5)
        worker.wait(table.push(own[5:], np.ones((5, 2))))
        np.testing.assert_array_equal(table.pull(own[5:]), 1.5)
        worker.barrier()
        rows = sum(keys.size for keys, _ in table.items())
        found[worker.rank] = rows, len(table)
        assert worker.gather(worker.rank) == ([0, 1] if worker.rank == 0 else None)

    job.run(2, 2, "async", program)

    job.check_that_it_stormed()
    assert found == {0: (14, 14), 1: (14, 14)}


@pytest.mark.parametrize("seed", range(4))
def test_the_low_level_pushes_count_once(seed: int) -> None:
    plan = FaultPlan(seed, STORM, hits=is_data)
    network = LoopbackNetwork(seed, plan=plan)
    shape = ClusterShape(servers=2, workers=2, scheduler="scheduler")
    sums: list[np.ndarray] = []
    echoes: list[float] = []

    def server(office: Postoffice) -> None:
        KVServer(1, office).set_request_handle(KVServerDefaultHandle())

    def worker(office: Postoffice, number: int) -> None:
        office.resend_with(Resend(timeout=1.0))
        kv = KVWorker(1, 0, office)
        office.start()
        keys, ones = np.arange(50, dtype=np.uint64), np.ones(50, np.float32)
        requests = [kv.push(keys, ones) for _ in range(6)]
        for request in requests:
            kv.wait(request)
        both = kv.wait(kv.push_pull(keys, ones))
        assert both is not None
        echoes.append(float(both.vals.min()))
        office.barrier()
        pulled = kv.wait(kv.pull(keys))
        assert pulled is not None
        sums.append(pulled.vals)
        office.barrier(name="done")
        office.finalize()

    run_nodes(network, shape, server, worker)

    assert plan.counts["dropped"] > 0
    assert plan.counts["duplicated"] > 0
    assert min(echoes) >= 7
    for values in sums:
        np.testing.assert_array_equal(values, 14)
