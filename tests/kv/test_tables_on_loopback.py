"""Tables on a network whose order of delivery a seed decides: the values never depend on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

import kv.remote_worker
from kv.local import LocalCluster
from kv.optimizers import SGD, Adam
from kv.remote_worker import RemoteWorker
from kv.table_server import TableServer
from postoffice.postoffice import ClusterShape, Postoffice
from tests.postoffice.nodes import run_nodes
from van.loopback import LoopbackNetwork

Program = Callable[[RemoteWorker], None]


def run(
    seed: int, servers: int, workers: int, mode: str, program: Program, **chosen: Any
) -> LoopbackNetwork:
    """Run `program` on each worker of a cluster; `chosen` are settings of the workers."""
    network = LoopbackNetwork(seed)
    shape = ClusterShape(servers=servers, workers=workers, scheduler="scheduler")

    made: list[TableServer] = []

    def server(office: Postoffice) -> None:
        made.append(TableServer(office, mode, seed=4))

    def worker(office: Postoffice, number: int) -> None:
        remote = RemoteWorker(office, mode, seed=4, **chosen)
        office.start()
        program(remote)
        remote.close()

    run_nodes(network, shape, server, worker)
    for tables in made:
        tables.engine.validate()
    return network


@pytest.mark.parametrize("seed", range(8))
def test_pushes_of_ones_add_up_in_any_order_of_delivery(seed: int) -> None:
    seen: list[np.ndarray] = []

    def program(worker: RemoteWorker) -> None:
        table = worker.sparse_table("t", 1, optimizer=SGD(lr=1), initializer=None, missing="zeros")
        for _ in range(5):
            table.push(np.arange(20), np.ones((20, 1)))
        worker.barrier()
        seen.append(table.pull(np.arange(20)))

    run(seed, servers=3, workers=3, mode="async", program=program)

    assert len(seen) == 3
    for rows in seen:
        np.testing.assert_array_equal(rows, -15)


def train(worker: RemoteWorker, steps: int) -> bytes:
    table = worker.sparse_table("emb", 2, optimizer=Adam(lr=0.1))
    rng = np.random.default_rng(worker.rank)
    for _ in range(steps):
        keys = rng.integers(0, 9, size=rng.integers(0, 6))
        rows = table.pull(keys)
        table.push(keys, rows * 0.3 + rng.normal(size=rows.shape))
        worker.step()
    worker.barrier()
    return table.pull(np.arange(9), create=False).tobytes()


@pytest.mark.parametrize("seed", range(8))
def test_sync_training_gives_the_same_bits_in_any_order_of_delivery(seed: int) -> None:
    digests: list[bytes] = []

    run(seed, 2, 3, "sync", lambda worker: digests.append(train(worker, 6)))

    local = LocalCluster(3, mode="sync", seed=4)
    assert set(digests) == {_train_in_turn(local, 6)}


@pytest.mark.parametrize("seed", range(6))
@pytest.mark.parametrize("key_cache", [2000, 1 << 20])
def test_cut_and_named_requests_give_these_bits_too(
    monkeypatch: pytest.MonkeyPatch, seed: int, key_cache: int
) -> None:
    monkeypatch.setattr(kv.remote_worker, "SHORTEST_LIST", 1)
    digests: list[bytes] = []

    run(
        seed,
        2,
        2,
        "sync",
        lambda worker: digests.append(train(worker, 6)),
        piece=30,
        key_cache=key_cache,
        key_deltas="on",
    )

    assert set(digests) == {_train_in_turn(LocalCluster(2, mode="sync", seed=4), 6)}


def _train_in_turn(cluster: LocalCluster, steps: int) -> bytes:
    """The same program, all workers driven step by step by one thread."""
    workers = [cluster.worker(rank) for rank in range(cluster.num_workers)]
    tables = [worker.sparse_table("emb", 2, optimizer=Adam(lr=0.1)) for worker in workers]
    rngs = [np.random.default_rng(rank) for rank in range(len(workers))]
    for _ in range(steps):
        for table, rng in zip(tables, rngs, strict=True):
            keys = rng.integers(0, 9, size=rng.integers(0, 6))
            rows = table.pull(keys)
            table.push(keys, rows * 0.3 + rng.normal(size=rows.shape))
        for worker in workers:
            worker.step()
    return tables[0].pull(np.arange(9), create=False).tobytes()


def test_one_seed_is_one_order_of_events() -> None:
    logs = [run(3, 2, 2, "sync", lambda worker: train(worker, 3) and None).log for _ in range(2)]

    assert logs[0] == logs[1]
