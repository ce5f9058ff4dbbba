"""Leases through the messages of a cluster, and in one process."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import pslite
from kv.errors import LeaseError
from kv.initializers import Zeros
from kv.leases.client import RemoteLeases
from kv.leases.desk import LeaseDesk
from kv.leases.ledger import FILE, read_ledger
from kv.leases.pieces import DataSet, Piece, Spans
from kv.leases.reader import Shards
from kv.local import LocalCluster
from kv.optimizers import SGD
from kv.protocols import Worker
from postoffice.head import SchedulerOffice
from postoffice.postoffice import ClusterShape, Postoffice
from pslite.audit import audit, balances, report
from tests.postoffice.nodes import run_nodes
from van.loopback import LoopbackNetwork


def count(worker: Worker, records: int, epochs: int = 1) -> int:
    """Add 1 to row 0 for each record; how many fell to this worker."""
    table = worker.sparse_table("counts", 1, optimizer=SGD(lr=1.0))
    shards = worker.shards("numbers", records, epochs=epochs, unit=10)
    mine = 0
    for piece in shards:
        for start in range(piece.start, piece.stop, 10):
            n = min(10, piece.stop - start)
            table.push([7], np.full((1, 1), -n, np.float32))
            worker.step()
            mine += n
            shards.seen(start + n - piece.start)
    worker.barrier()
    return mine


@pytest.mark.parametrize("workers", [1, 3])
def test_every_record_is_read_once_by_some_worker(tmp_path: Path, workers: int) -> None:
    with pslite.local_cluster(2, workers, run_dir=tmp_path) as cluster:
        shares = cluster.run(lambda worker: count(worker, 1003, epochs=2))
        start = float(cluster.workers[0].sparse_table("counts", 1, optimizer=SGD(lr=1.0)).dim)
        assert start == 1

    accounts = audit(tmp_path)
    assert sum(shares) == 2006
    assert balances(accounts)
    assert accounts["numbers"].records == {r: n for r, n in enumerate(shares) if n}
    assert "every record exactly once" in report(accounts)


def test_threads_of_one_process_share_the_data_too() -> None:
    cluster = LocalCluster(3, threads=True)
    found: list[Piece] = []

    def read(rank: int) -> None:
        with cluster.worker(rank) as worker:
            found.extend(worker.shards("d", 500, unit=5))

    threads = [threading.Thread(target=read, args=(rank,)) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    spans = Spans(piece.span for piece in found)
    assert [(s.start, s.stop) for s in spans] == [(0, 500)]


def test_a_worker_that_leaves_amid_a_piece_leaves_it_to_the_others(tmp_path: Path) -> None:
    def read(worker: Worker) -> list[Piece]:
        shards = worker.shards("d", 100, unit=10)
        if worker.rank == 0:
            piece = next(shards)
            shards.seen(4)
            worker.barrier("one has a piece")
            worker.close()
            return [piece]
        worker.barrier("one has a piece")
        return list(shards)

    with pslite.local_cluster(1, 2, run_dir=tmp_path) as cluster:
        (lost,), others = cluster.run(read)

    account = audit(tmp_path)["d"]
    assert lost.span in [piece.span for piece in others] or lost.start in {p.start for p in others}
    assert (account.returned, account.doubles, account.records) == (1, 4, {1: 100})
    assert account.balances


COUNTING = [pslite.SSP(0), pslite.SSP(2), pslite.SemiSync(2), pslite.SemiSync(backup_workers=1)]


@pytest.mark.parametrize("mode", COUNTING, ids=repr)
def test_nobody_waits_for_the_steps_of_a_worker_without_a_piece(mode: pslite.Consistency) -> None:
    def work(worker: Worker) -> int:
        table = worker.sparse_table("counts", 1, optimizer=SGD(lr=1.0))
        steps = 0
        for piece in worker.shards("d", 100, unit=100):
            for _ in range(piece.start, piece.stop, 10):
                table.pull([7])
                table.push([7], [[-1.0]])
                worker.step()
                steps += 1
        return steps

    with pslite.local_cluster(2, 2, mode) as cluster:
        assert sorted(cluster.run(work)) == [0, 10]


@pytest.mark.parametrize("mode", COUNTING[:3], ids=repr)  # the last drops what is late
def test_a_worker_that_rested_works_on_a_piece_that_comes_back(mode: pslite.Consistency) -> None:
    def work(worker: Worker) -> list[float]:
        table = worker.sparse_table("counts", 1, optimizer=SGD(lr=1.0), initializer=Zeros())
        worker.barrier()
        for _ in worker.shards("d", 10, unit=10) if worker.rank == 0 else later(worker):
            for _ in range(4):  # the first worker's later steps are answered when the other rests
                table.pull([7])
                table.push([7], [[-1.0]])
                worker.step()
            if worker.rank == 0:
                worker.close()
                return []
            worker.finish()
        return [float(table.pull([7])[0, 0])]

    def later(worker: Worker) -> Iterator[Piece]:
        while not worker.has_begun("d"):
            time.sleep(0.001)
        yield from worker.shards("d", 10, unit=10)

    with pslite.local_cluster(2, 2, mode) as cluster:
        assert cluster.run(work) == [[], [8.0]]


def test_a_description_that_differs_is_refused_at_the_worker() -> None:
    with pslite.local_cluster(1, 1) as cluster:
        worker = cluster.workers[0]
        worker.shards("d", 100)

        with pytest.raises(LeaseError, match="records = 101 where it was 100"):
            worker.shards("d", 101)


@pytest.mark.parametrize("seed", range(5))
def test_in_any_order_of_messages_every_record_is_given_once(seed: int) -> None:
    network = LoopbackNetwork(seed)
    shape = ClusterShape(servers=0, workers=3, scheduler="scheduler")
    found: list[Piece] = []
    desks: list[LeaseDesk] = []

    def scheduler(office: SchedulerOffice) -> None:
        desks.append(LeaseDesk(office, None))

    def worker(office: Postoffice, number: int) -> None:
        line = RemoteLeases(office)
        office.start()
        found.extend(Shards(line, DataSet(name="d", records=77, unit=4), lambda: None))
        office.finalize()

    run_nodes(network, shape, lambda office: None, worker, scheduler=scheduler)

    spans = Spans(piece.span for piece in found)
    assert [(s.start, s.stop) for s in spans] == [(0, 77)]
    assert desks[0].book.facts()["d"]["done"] == [[1, 0, 0, 77]]
    desks[0].book.get("d").validate()


def test_a_restarted_desk_carries_the_ledger_on(tmp_path: Path) -> None:
    network = LoopbackNetwork(1)
    shape = ClusterShape(servers=0, workers=2, scheduler="scheduler")
    desk = LeaseDesk(SchedulerOffice(network.van(), shape, incarnation=1), tmp_path)
    data = DataSet(name="d", records=100, unit=10)
    shards = desk.book.open(data)
    done, held = (shards.ask(rank, 1, 0.0).piece for rank in (0, 1))
    assert done is not None
    assert held is not None
    shards.see(1, 1, held.number, 3)
    state = desk.state()
    assert shards.finish(0, 1, done.number, 1.0)  # after the journal was written

    again = LeaseDesk(SchedulerOffice(network.van(), shape, incarnation=2), tmp_path)
    again.restore(state)

    shards = again.book.open(data)
    assert shards.finish(0, 1, done.number, 2.0), "its answer was lost, so it is said again"
    assert shards.ask(1, 1, 2.0).piece == held, "so was that one's"
    assert shards.leases[held.number].seen == 3
    again.book.lose(1, "died", 3.0)
    while (piece := shards.ask(0, 1, 4.0).piece) is not None:
        shards.finish(0, 1, piece.number, 4.0)
    assert audit(tmp_path)["d"].balances
    assert audit(tmp_path)["d"].doubles == 3
    assert read_ledger(tmp_path / FILE)[0]["job"] == state["job"]
