"""Compressed pushes and pulls on clusters: whatever the network and the servers do, what servers
have applied and what workers keep is what was pushed."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import kv.remote_worker
import pslite
from kv.compressing import Encoders
from kv.compression.settings import Rules
from kv.consistency.settings import SSP, Async, Consistency, SemiSync, Sync
from kv.errors import MissingKeyError, NonFiniteError, VersionMismatchError
from kv.initializers import Zeros
from kv.optimizers import SGD
from kv.remote_worker import RemoteWorker
from kv.retrying import Retry
from kv.table_protocol import table_id
from kv.tables import RemoteDenseTable, RemoteSparseTable
from tests.kv.delivery.test_storms import Job, move
from tests.kv.replication.replicated import Replicated
from tests.kv.test_modes_on_loopback import Job as TimedJob
from van.faults import Faults

KEYS = 60
DIM = 4
SHAPE = (9000,)
CHAINS = [
    "fp16",
    "int8",
    "onebit",
    "topk:0.2+fp16",
    "topk:0.3:rows=1",
    "selective:relative=0.9+onebit",
    "delta+int8",
    "selective:relative=0.5+delta+topk:0.3+fp16",
]
MODES = [Async(), SSP(2), Sync(), SemiSync(0.5)]


class Ledger:
    """What the workers of a job pushed, and what they keep back at its end."""

    def __init__(self) -> None:
        self.pushed = np.zeros((KEYS, DIM))
        self.dense = np.zeros(SHAPE)
        self.kept = np.zeros((KEYS, DIM))
        self.dense_kept = np.zeros(SHAPE)
        self.counts: list[dict[str, Any]] = []

    def tables(self, worker: RemoteWorker) -> tuple[RemoteSparseTable, RemoteDenseTable]:
        options: dict[str, Any] = {"optimizer": SGD(lr=1), "initializer": Zeros()}
        return (
            worker.sparse_table("user", DIM, **options),
            worker.dense_table("w", SHAPE, **options),
        )

    def push(
        self,
        rng: np.random.Generator,
        table: RemoteSparseTable,
        dense: RemoteDenseTable,
        is_pull: bool = False,
    ) -> int:
        """Push to both tables by chance; the request."""
        keys = rng.choice(KEYS, int(rng.integers(1, KEYS)), replace=False)
        grads = rng.standard_normal((keys.size, DIM)).astype(np.float32)
        array = rng.standard_normal(SHAPE).astype(np.float32)
        self.pushed[keys] += grads
        self.dense += array
        if is_pull:
            table.worker.push_pull_many([(table, keys, grads), (dense, array)])
            return 0
        return table.worker.push_many([(table, keys, grads), (dense, array)])

    def keep(self, worker: RemoteWorker) -> None:
        """Add what a worker keeps, when nothing of it is under way."""
        self.keep_of(worker.encoders)

    def keep_of(self, encoders: Encoders) -> None:
        """Add what a node keeps."""
        self.counts.append(encoders.stats())
        for name, total in (("user", self.kept), ("w", self.dense_kept)):
            kept: Any = encoders._kept.get(table_id(name))
            if kept is not None and name == "user":
                kept.validate()
                keys, values = kept.items()
                known = keys < KEYS
                assert np.abs(values[~known]).max(initial=0) < 1e-5  # of pushes that were refused
                total[keys[known].astype(np.int64)] += values[known]
            elif kept is not None:
                total += kept.data.reshape(-1)[: SHAPE[0]]

    def check(self, rows: np.ndarray, array: np.ndarray) -> None:
        np.testing.assert_allclose(self.kept - rows, self.pushed, atol=2e-4)
        np.testing.assert_allclose(self.dense_kept - array, self.dense, atol=2e-4)

    def total(self, name: str) -> float:
        """A count over all workers, tables and links."""
        links = [
            link for count in self.counts for table in count.values() for link in table.values()
        ]
        return sum(link.get(name, 0) for link in links)


@pytest.fixture(autouse=True)
def short_lists_are_named(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(kv.remote_worker, "SHORTEST_LIST", 20)


@pytest.mark.parametrize(
    ("text", "mode"),
    [
        pytest.param(text, mode, marks=[] if (i + j) % len(MODES) == 0 else [pytest.mark.slow])
        for i, text in enumerate(CHAINS)
        for j, mode in enumerate(MODES)
    ],
    ids=str,
)
def test_nothing_is_lost_or_counted_twice_whatever_the_network_does(
    text: str, mode: Consistency
) -> None:
    job, ledger, seen = Job(len(text), kept_lists=3000), Ledger(), []

    def program(worker: RemoteWorker) -> None:
        rng = np.random.default_rng([worker.rank, len(text)])
        table, dense = ledger.tables(worker)
        for step in range(6):
            ledger.push(rng, table, dense, is_pull=step % 3 == 1)
            worker.step()
        worker.finish()
        ledger.keep(worker)
        worker.barrier("all have finished")
        seen.append((table.pull(np.arange(KEYS)), dense.pull()))

    rules = Rules({"*": text})
    job.run(2, 3, mode, program, piece=400, compression=rules, key_deltas="on")

    job.check_that_it_stormed()
    assert ledger.total("nbytes") < 0.95 * ledger.total("plain_nbytes")
    assert ledger.total("unsettled") == ledger.total("returned") == 0
    for rows, array in seen:
        ledger.check(rows, array)


@pytest.mark.parametrize("text", ["int8", *CHAINS[3:6:2], CHAINS[-1]])
def test_nothing_is_lost_while_slots_change_their_owners(text: str) -> None:
    job, ledger, seen = Job(len(text)), Ledger(), []

    def program(worker: RemoteWorker) -> None:
        rng, chance = np.random.default_rng(worker.rank), np.random.default_rng(3)
        table, dense = ledger.tables(worker)
        worker.barrier("defined")
        for step in range(9):
            ledger.push(rng, table, dense, is_pull=step % 3 == 1)
            if worker.rank == 0 and step in (2, 4, 7):
                job.scheduler.set_map(move(job.servers, chance).to_bytes())
        worker.barrier("pushed")
        ledger.keep(worker)
        seen.append((table.pull(np.arange(KEYS)), dense.pull()))

    job.run(3, 2, "async", program, compression=Rules({"*": text}))

    assert all(worker.slots.version == 3 for worker in job.workers)
    assert ledger.total("unsettled") == ledger.total("returned") == 0
    for rows, array in seen:
        ledger.check(rows, array)


@pytest.mark.parametrize("mode", [Async(), Sync()], ids=str)
@pytest.mark.parametrize("text", ["topk:0.2+fp16", "onebit", "delta+int8"])
def test_nothing_is_lost_when_a_server_dies_and_has_copies(text: str, mode: Consistency) -> None:
    ledger, seen = Ledger(), []
    cluster = Replicated(1, servers=3, mode=mode, compression=Rules({"*": text}))

    def program(worker: RemoteWorker) -> None:
        rng = np.random.default_rng(worker.rank)
        table, dense = ledger.tables(worker)
        cluster.wait_until_copied()
        for step in range(12):
            ledger.push(rng, table, dense)
            worker.step()
            if step == 4:
                cluster.network.kill("server 1")
                cluster.start_server(1)
        worker.finish()
        ledger.keep(worker)
        seen.append((table.pull(np.arange(KEYS)), dense.pull()))

    cluster.start_worker(0, program)
    cluster.run()

    assert ledger.total("unsettled") == 0
    ((rows, array),) = seen
    ledger.check(rows, array)


@pytest.mark.parametrize("text", ["fp16", *CHAINS[3:6:2], "delta+int8"])
def test_a_push_that_servers_refuse_is_lost_and_nothing_else(text: str) -> None:
    job, ledger, seen = Job(1, Faults()), Ledger(), []

    def program(worker: RemoteWorker) -> None:
        rng = np.random.default_rng(1)
        options: dict[str, Any] = {"optimizer": SGD(lr=1), "initializer": Zeros()}
        table = worker.sparse_table("user", DIM, missing="error", **options)
        dense = worker.dense_table("w", SHAPE, **options)
        table.assign(np.arange(KEYS), np.zeros((KEYS, DIM)))
        for _ in range(5):
            worker.wait(ledger.push(rng, table, dense))
            unknown = np.arange(KEYS, KEYS + 30)
            request = table.push(unknown, rng.standard_normal((30, DIM)))
            with pytest.raises(MissingKeyError):
                worker.wait(request)
        ledger.keep(worker)
        seen.append((table.pull(np.arange(KEYS)), dense.pull()))

    job.run(2, 1, "async", program, compression=Rules({"*": text}))

    assert ledger.total("returned") == 10  # both servers refuse, each its own part
    for rows, array in seen:
        kept = ledger.kept
        np.testing.assert_allclose(kept - rows, ledger.pushed, atol=2e-4)
        np.testing.assert_allclose(ledger.dense_kept - array, ledger.dense, atol=2e-4)


@pytest.mark.parametrize("text", ["topk:0.2", "onebit", "delta+int8"])
@pytest.mark.parametrize("tries", [0, 2])
def test_a_push_that_is_too_stale_for_ever_leaves_the_residuals_as_they_were(
    text: str, tries: int
) -> None:
    job, ledger, seen = TimedJob(1, Async()), Ledger(), []

    def program(worker: RemoteWorker) -> None:
        rng = np.random.default_rng(worker.rank)
        table, dense = ledger.tables(worker)
        table.pull(np.arange(KEYS))
        dense.pull()
        worker.barrier("pulled")
        if worker.rank:
            for _ in range(6):
                worker.wait(ledger.push(rng, table, dense))
                table.pull(np.arange(KEYS))
                dense.pull()
        worker.barrier("the others are ahead")
        if not worker.rank:
            pushed = ledger.pushed.copy(), ledger.dense.copy()
            request = ledger.push(rng, table, dense)
            if tries:  # the clock that comes with the refusal makes it fresh enough
                worker.wait(request)
            else:
                with pytest.raises(VersionMismatchError):
                    worker.wait(request)
                ledger.pushed, ledger.dense = pushed
        ledger.keep(worker)
        worker.barrier("all have pushed")
        seen.append((table.pull(np.arange(KEYS)), dense.pull()))

    job.run(
        2,
        program,
        max_staleness=1,
        retry=Retry(most=tries, base_delay=0.1),
        compression=Rules({"*": text}),
    )

    assert ledger.total("returned") == (0 if tries else 4)  # two tables on two servers
    for rows, array in seen:
        ledger.check(rows, array)


def test_a_push_that_is_refused_here_leaves_the_residuals_as_they_were() -> None:
    job, ledger, seen = Job(1, Faults()), Ledger(), []

    def program(worker: RemoteWorker) -> None:
        rng = np.random.default_rng(1)
        table, dense = ledger.tables(worker)
        worker.wait(ledger.push(rng, table, dense))
        bad = np.ones((8, DIM))
        bad[3, 2] = np.nan
        with pytest.raises(NonFiniteError):
            worker.push_many([(dense, np.ones(SHAPE)), (table, np.arange(8), bad)])
        ledger.keep(worker)
        seen.append((table.pull(np.arange(KEYS)), dense.pull()))

    job.run(2, 1, "async", program, compression=Rules({"*": "topk:0.1"}))

    assert ledger.total("messages") == 4
    ledger.check(*seen[0])


def test_long_pushes_of_several_workers_are_unpacked_in_their_turn() -> None:
    rows, dim, pushes = 20_000, 16, 4  # more than is answered at once
    rules = Rules({"*": "selective:relative=0.5+delta+int8", "*@pull": "bf16"})
    with pslite.local_cluster(2, 2, compression=rules) as cluster:

        def program(worker: RemoteWorker) -> tuple[np.ndarray, np.ndarray, dict[str, Any]]:
            table = worker.sparse_table("user", dim, optimizer=SGD(lr=1), initializer=Zeros())
            rng, pushed = np.random.default_rng(worker.rank), np.zeros((rows, dim))
            for _ in range(pushes):
                keys = rng.choice(rows, rows - 1000, replace=False)
                grads = rng.standard_normal((keys.size, dim)).astype(np.float32)
                pushed[keys] += grads
                table.push(keys, grads)  # not waited for: they overtake nothing
            worker.barrier()
            kept: Any = worker.encoders._kept[table_id("user")]
            names, values = kept.items()
            pushed[names.astype(np.int64)] -= values
            return pushed, table.pull(np.arange(rows)), worker.encoders.stats()["user"]

        (one, seen, counts), (other, _, _) = cluster.run(program)

    np.testing.assert_allclose(-seen, one + other, atol=0.01, rtol=2**-8)
    assert counts["worker-server"]["restarted"] == counts["worker-server"]["unsettled"] == 0


@pytest.mark.parametrize("text", ["fp16", "bf16", "int8"])
def test_pulled_values_are_as_near_as_their_scheme_says(text: str) -> None:
    job, seen = Job(2), []

    def program(worker: RemoteWorker) -> None:
        rng = np.random.default_rng(1)
        table = worker.sparse_table("user", DIM, compression={"pull": text})
        dense = worker.dense_table("w", SHAPE, compression={"pull": text})
        keys = rng.choice(5000, 300, replace=False)
        rows, array = rng.standard_normal((300, DIM)), rng.standard_normal(SHAPE)
        if worker.rank == 0:
            table.assign(keys, rows)
            dense.assign(array)
        worker.barrier()
        for _ in range(3):
            out = np.empty((300, DIM), np.float32)
            table.prefetch(keys)
            table.pull(keys, out=out)
            both = table.push_pull(keys, np.zeros((300, DIM)))
            seen.append((out - rows, both - rows, dense.pull() - array))
        stats = [stats["compression"]["pull"] for stats in table.stats()]
        assert sum(count["nbytes"] for count in stats) < 0.7 * sum(
            count["plain_nbytes"] for count in stats
        )

    job.run(2, 2, "async", program, piece=900)

    limits = {"fp16": 0.003, "bf16": 0.02, "int8": 0.02}
    for errors in seen:
        for error in errors:
            assert 0 < np.abs(error).max() < limits[text]


def test_a_request_that_nobody_answers_is_counted() -> None:
    job, found = Job(1, Faults()), []

    def program(worker: RemoteWorker) -> None:
        ledger = Ledger()
        table, dense = ledger.tables(worker)
        rng = np.random.default_rng(1)
        request = ledger.push(rng, table, dense)
        worker._customer.forget(request)
        for _ in range(2):
            worker.wait(ledger.push(rng, table, dense))
        ledger.keep(worker)
        found.append(ledger.total("unsettled"))

    job.run(2, 1, "async", program, compression=Rules({"*": "topk:0.1"}))

    assert found == [4]


def test_servers_say_what_came_compressed_and_workers_what_they_sent() -> None:
    job, found = Job(1, Faults()), []

    def program(worker: RemoteWorker) -> None:
        table, dense = Ledger().tables(worker)
        keys, rng = np.arange(KEYS), np.random.default_rng(1)
        for _ in range(3):
            worker.wait(table.push(keys, rng.standard_normal((KEYS, DIM))))
        sent = worker.encoders.stats()["user"]
        came = [stats["compression"]["worker-server"] for stats in table.stats()]
        assert "compression" not in dense.stats()[0]
        assert list(worker.encoders.stats()) == ["user"]
        found.append((sent, came))

    job.run(2, 1, "async", program, compression=Rules({"user": "topk:0.3+fp16"}))

    ((sent, came),) = found
    link = sent["worker-server"]
    for name in ("messages", "nbytes", "plain_nbytes", "rows", "rows_sent"):
        assert sum(count[name] for count in came) == link[name], name
    assert link["messages"] == 6
    assert link["plain_nbytes"] == 3 * KEYS * DIM * 4
    assert 0 < link["nbytes"] < 0.4 * link["plain_nbytes"]
    assert sent["residuals"]["rows"] == KEYS


def test_workers_that_disagree_about_compression_hear_so() -> None:
    job, problems = Job(1, Faults()), []

    def program(worker: RemoteWorker) -> None:
        try:
            worker.sparse_table("user", DIM, compression="fp16" if worker.rank else "int8")
        except Exception as error:
            problems.append(str(error))
        worker.barrier()

    job.run(1, 2, "async", program)

    (problem,) = problems
    assert "compression push=" in problem
