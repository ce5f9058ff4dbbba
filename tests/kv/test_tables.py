"""Tables of a cluster: equal to tables in one process, whoever holds the rows."""

from __future__ import annotations

import itertools
import threading

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kv.errors import (
    KeyListError,
    KVError,
    MissingKeyError,
    NonFiniteError,
    SettingError,
    TableConflictError,
    ValueShapeError,
)
from kv.initializers import Normal, Uniform, Zeros
from kv.local import LocalCluster
from kv.optimizers import SGD, Adagrad, Adam, Momentum, Nesterov, Optimizer
from kv.remote_worker import RemoteWorker
from kv.table_protocol import Command
from kv.tables import RemoteSparseTable
from postoffice.errors import BarrierError, ClusterStoppedError, PostofficeError
from pslite.local_nodes import LocalNodes
from pslite.session import connect, local_cluster
from van.errors import CodecError

LAST = 2**64 - 1
OPTIMIZERS = [SGD(lr=0.1), Momentum(lr=0.1), Nesterov(lr=0.1), Adagrad(lr=0.1), Adam(lr=0.1)]


@pytest.fixture(scope="module")
def cluster() -> LocalNodes:
    nodes = local_cluster(servers=3, workers=1, seed=5)
    with nodes:
        yield nodes


@pytest.fixture(scope="module")
def worker(cluster: LocalNodes) -> RemoteWorker:
    return cluster.workers[0]


def test_any_key_list_gives_what_the_clean_calls_give(worker: RemoteWorker) -> None:
    table = worker.sparse_table("any list", 3, optimizer=SGD(lr=1.0), initializer=Zeros())
    messy = [LAST, 3, 0, 3, LAST, 7, 3]
    grads = np.arange(21, dtype=np.float32).reshape(7, 3)

    worker.wait(table.push(messy, grads))
    worker.wait(table.push([], np.empty((0, 3))))

    sums = {3: grads[1] + grads[3] + grads[6], 0: grads[2], 7: grads[5], LAST: grads[0] + grads[4]}
    np.testing.assert_array_equal(table.pull(messy), [-sums[key] for key in messy])
    assert table.pull([]).shape == (0, 3)
    assert len(table) == 4


def test_evaluation_reads_initial_values_and_makes_no_rows(worker: RemoteWorker) -> None:
    table = worker.sparse_table("evaluated", 4, initializer=Normal(std=1.0))

    before = table.pull([5, 1], create=False)

    assert len(table) == 0
    np.testing.assert_array_equal(table.pull([5, 1]), before)
    assert len(table) == 2


@pytest.mark.parametrize(
    ("wrong", "error"),
    [
        (lambda t: t.pull([-1]), KeyListError),
        (lambda t: t.pull([1.5]), KeyListError),
        (lambda t: t.push([1], [[1.0, 2.0]]), ValueShapeError),
        (lambda t: t.push([1, 2], [[1.0, 2.0, 3.0]]), ValueShapeError),
        (lambda t: t.push([1], [["x", "y", "z"]]), ValueShapeError),
    ],
)
def test_wrong_keys_and_values_name_the_table(worker: RemoteWorker, wrong, error) -> None:
    table = worker.sparse_table("strict", 3)

    with pytest.raises(error, match="table strict"):
        wrong(table)


@pytest.mark.parametrize("keys", [[4, 9], [9, 4, 9]])
def test_a_gradient_that_is_no_number_is_refused_before_anything_is_sent(
    worker: RemoteWorker, keys: list[int]
) -> None:
    table = worker.sparse_table("finite", 1, initializer=Zeros())
    clocks, counted = table.get_meta().clocks, _non_finite(table)

    whose = r"table finite: gradient of key 9 is nan \(step \d+, worker 0; nothing was sent\)"
    with pytest.raises(NonFiniteError, match=whose) as caught:
        table.push(keys, [[np.nan] if key == 9 else [1.0] for key in keys])

    assert (caught.value.key, caught.value.step) == (9, worker.steps)
    assert table.get_meta().clocks == clocks  # no server has had a push
    assert table.pull([4, 9]).tolist() == [[0.0], [0.0]]
    assert _non_finite(table) == counted + 1


def _non_finite(table: RemoteSparseTable) -> int:
    return sum(stats["non_finite"] for stats in table.stats())


def test_a_bad_gradient_of_a_dense_table_is_named_by_its_index(worker: RemoteWorker) -> None:
    table = worker.dense_table("finite dense", (70, 100))
    grad = np.zeros((70, 100))
    grad[66, 7] = np.nan

    with pytest.raises(NonFiniteError, match=r"gradient at \[66, 7\] is nan"):
        worker.wait(table.push(grad))


def test_an_error_nobody_waits_for_is_raised_by_the_next_step(worker: RemoteWorker) -> None:
    table = worker.sparse_table("unwaited", 1, missing="error")
    table.assign([1], [[1.0]])
    table.push([9], [[1.0]])
    with pytest.raises(MissingKeyError):  # noqa: PT012 - the answer may take a few steps to come
        while True:
            worker.step()
            table.pull([1])


def test_missing_keys_are_errors_or_zeros_as_the_table_says(worker: RemoteWorker) -> None:
    strict = worker.sparse_table("error", 2, missing="error")
    lenient = worker.sparse_table("zeros", 2, missing="zeros")

    with pytest.raises(MissingKeyError, match=r"table error.*key 4.*server"):
        strict.pull([4])
    strict.assign([4], [[1, 2]])

    assert strict.pull([4]).tolist() == [[1, 2]]
    assert lenient.pull([4]).tolist() == [[0, 0]]
    assert len(lenient) == 0


def test_definitions_that_disagree_are_shown_both(worker: RemoteWorker) -> None:
    worker.sparse_table("twice", 8)
    worker.sparse_table("twice", 8)

    with pytest.raises(TableConflictError, match=r"dim 8 here, 16 there"):
        worker.sparse_table("twice", 16)
    with pytest.raises(TableConflictError, match="optimizer"):
        worker.sparse_table("twice", 8, optimizer=Adam())


def test_rows_are_assigned_listed_and_deleted(worker: RemoteWorker) -> None:
    table = worker.sparse_table("listed", 2)
    keys = np.random.default_rng(1).permutation(200_000).astype(np.uint64)
    values = np.stack([keys, keys + 1], 1).astype(np.float32)

    table.assign(keys, values)
    listed = {int(k): v.tolist() for ks, vs in table.items() for k, v in zip(ks, vs, strict=True)}

    assert len(table) == len(listed) == 200_000
    assert listed[77] == [77.0, 78.0]
    assert table.delete([77, 78, 78, 10**9]) == 2
    assert len(table) == 199_998


@pytest.mark.parametrize("shape", [(3,), (), (100, 70), (64, 1000)])
def test_a_dense_table_is_one_array(worker: RemoteWorker, shape: tuple[int, ...]) -> None:
    table = worker.dense_table(
        f"dense {shape}", shape, optimizer=SGD(lr=0.5), initializer=Uniform(-1, 1)
    )
    before = table.pull()

    worker.wait(table.push(np.ones(shape)))

    assert before.shape == shape
    assert before.size < 2 or before.std() > 0.3
    np.testing.assert_array_equal(table.pull(), before - np.float32(0.5))
    table.assign(np.full(shape, 7.0))
    np.testing.assert_array_equal(table.pull(), np.full(shape, 7.0))


def test_many_tables_move_in_one_request_a_server(worker: RemoteWorker) -> None:
    a = worker.sparse_table("many a", 2, optimizer=SGD(lr=1), initializer=Zeros())
    b = worker.dense_table("many b", (5,), optimizer=SGD(lr=1))
    sent = worker.office.van.counts["sent"]

    worker.wait(worker.push_many([(a, [1, 2, 2, 900], np.ones((4, 2))), (b, np.ones(5))]))
    rows, array = worker.pull_many([(a, [2, 1, 77]), b])

    assert rows.tolist() == [[-2, -2], [-1, -1], [0, 0]]
    assert array.tolist() == [-1] * 5
    assert worker.office.van.counts["sent"] - sent <= 2 * 3


def test_the_callers_arrays_may_change_after_a_push(worker: RemoteWorker) -> None:
    table = worker.sparse_table("copied", 16, optimizer=SGD(lr=1), initializer=Zeros())
    keys = np.arange(20_000, dtype=np.uint64)
    grads = np.ones((20_000, 16), np.float32)

    request = table.push(keys, grads)
    grads[:] = 99
    keys[:] = 5
    worker.wait(request)

    np.testing.assert_array_equal(table.pull(np.arange(20_000)), -1)


def test_tables_of_elsewhere_are_refused(worker: RemoteWorker) -> None:
    foreign = LocalCluster().worker(0).sparse_table("x", 2)

    with pytest.raises(KVError, match="not a table of this cluster"):
        worker.pull_many([(foreign, [1])])


NUMBERS = itertools.count()
KEYS = st.lists(st.integers(0, 40) | st.sampled_from([LAST, LAST - 1, 2**63]), max_size=12)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.name)
@settings(max_examples=15, deadline=None, derandomize=True)
@given(data=st.data())
def test_a_cluster_does_to_the_bit_what_one_process_does(
    worker: RemoteWorker, optimizer: Optimizer, data: st.DataObject
) -> None:
    name = f"same {optimizer.name} {next(NUMBERS)}"  # each example has a table of its own
    local = LocalCluster(seed=5).worker(0)
    tables = [w.sparse_table(name, 3, optimizer=optimizer) for w in (worker, local)]
    for _ in range(data.draw(st.integers(1, 5))):
        keys = data.draw(KEYS)
        grads = np.random.default_rng(len(keys)).normal(size=(len(keys), 3))
        answers = []
        for table, owner in zip(tables, (worker, local), strict=True):
            owner.wait(table.push(keys, grads))
            answers.append(table.pull([*keys, 3, 3]))
        np.testing.assert_array_equal(*answers)
    rows = [dict(_rows(table)) for table in tables]
    assert rows[0] == rows[1]


def _rows(table) -> list[tuple[int, bytes]]:
    return [(int(k), v.tobytes()) for ks, vs in table.items() for k, v in zip(ks, vs, strict=True)]


def _train(worker, steps: int, optimizer: Optimizer) -> np.ndarray:
    """A few steps whose gradients depend on rank and on what was pulled."""
    table = worker.sparse_table("emb", 2, optimizer=optimizer)
    dense = worker.dense_table("w", (3,), optimizer=optimizer)
    rng = np.random.default_rng(worker.rank)
    for _ in range(steps):
        keys = rng.integers(0, 12, size=rng.integers(0, 9))
        rows, w = worker.pull_many([(table, keys), dense])
        grads = rows * 0.3 + rng.normal(size=rows.shape)
        worker.push_many([(table, keys, grads), (dense, w * 0.1 + rng.normal(size=3))])
        worker.step()
    worker.barrier()
    rows, w = worker.pull_many([(table, np.arange(12)), dense], create=False)
    return np.concatenate([rows.reshape(-1), w])


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.name)
def test_sync_workers_equal_one_process_that_adds_in_rank_order(optimizer: Optimizer) -> None:
    with local_cluster(servers=2, workers=3, mode="sync", seed=9) as nodes:
        remote = nodes.run(lambda worker: _train(worker, 20, optimizer))
    local = LocalCluster(3, mode="sync", seed=9, threads=True)
    here: dict[int, np.ndarray] = {}
    threads = [
        threading.Thread(
            target=lambda r=rank: here.update({r: _train(local.worker(r), 20, optimizer)})
        )
        for rank in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for rank in range(3):
        np.testing.assert_array_equal(remote[rank], here[0])


def test_sync_rounds_go_on_when_a_worker_has_finished() -> None:
    with local_cluster(servers=2, workers=3, mode="sync") as nodes:

        def program(worker: RemoteWorker) -> float:
            table = worker.sparse_table("t", 1, optimizer=SGD(lr=1), initializer=Zeros())
            worker.barrier()
            for _ in range(2 if worker.rank == 1 else 6):
                worker.push_many([(table, [1], [[1.0]])])
                worker.step()
            if worker.rank == 1:
                worker.close()
                return 0.0
            return float(table.pull([1])[0, 0])

        results = nodes.run(program)

    assert results == [-14.0, 0.0, -14.0]


def test_a_step_counts_also_when_it_raises_the_error_of_a_push() -> None:
    with local_cluster(servers=2, workers=2, mode="sync") as nodes:

        def program(worker: RemoteWorker) -> float:
            table = worker.sparse_table("t", 1, optimizer=SGD(lr=1), initializer=Zeros())
            strict = worker.sparse_table("strict", 1, missing="error")
            if worker.rank == 0:
                strict.push([7], [[1.0]])
                worker.office.wait(lambda: not worker._customer.pending)
            table.push([1], [[1.0]])
            if worker.rank == 0:
                with pytest.raises(MissingKeyError, match="strict"):
                    worker.step()
            else:
                worker.step()
            return float(table.pull([1])[0, 0])

        assert nodes.run(program) == [-2.0, -2.0]


def test_a_table_with_rounds_may_come_after_many_steps() -> None:
    with local_cluster(servers=2, workers=2, mode="async") as nodes:

        def program(worker: RemoteWorker) -> float:
            plain = worker.sparse_table("plain", 1)
            for _ in range(3 + worker.rank):
                plain.push([1], [[1.0]])
                worker.step()
            rounds = worker.sparse_table(
                "rounds", 1, optimizer=SGD(lr=1), initializer=Zeros(), mode="sync"
            )
            for _ in range(4 - worker.rank):
                rounds.push([1], [[1.0]])
                worker.step()
            return float(rounds.pull([1])[0, 0])

        assert nodes.run(program) == [-7.0, -7.0]


def test_a_push_to_many_tables_is_applied_whole_or_not_at_all() -> None:
    with local_cluster() as nodes:
        (worker,) = nodes.workers
        a = worker.sparse_table("a", 1, initializer=Zeros())
        b = worker.sparse_table("b", 1, initializer=Zeros())

        with pytest.raises(NonFiniteError, match="table b"):
            worker.wait(worker.push_many([(a, [1], [[1.0]]), (b, [1], [[np.inf]])]))

        assert len(a) == 0


def test_values_are_gathered_in_rank_order() -> None:
    with local_cluster(workers=3) as nodes:

        def program(worker: RemoteWorker) -> list | None:
            worker.gather(None)
            return worker.gather({"rank": worker.rank, "scores": [np.full(2, worker.rank)]})

        first, *others = nodes.run(program)

    assert others == [None, None]
    assert [value["rank"] for value in first] == [0, 1, 2]
    assert first[2]["scores"][0].tolist() == [2, 2]


def test_a_failing_worker_stops_the_others_and_its_error_is_the_one_shown() -> None:
    seen: list[str] = []

    def program(worker: RemoteWorker) -> None:
        if worker.rank == 1:
            raise ValueError("bad batch")
        try:
            worker.barrier()
        except ClusterStoppedError as error:
            seen.append(str(error))
            raise

    with pytest.raises(ValueError, match="bad batch"), local_cluster(workers=3) as nodes:
        nodes.run(program)

    assert seen == ["worker 1 failed: ValueError: bad batch"] * 2


def test_connect_local_gives_a_cluster_for_notebooks() -> None:
    before = threading.active_count()
    with connect(local=True, servers=2) as worker:
        table = worker.sparse_table("user", 8, optimizer=Adagrad(lr=0.05))
        rows = table.pull(np.arange(10))
        worker.wait(table.push(np.arange(10), np.ones_like(rows)))
        assert (table.pull(np.arange(10)) < rows).all()

    assert threading.active_count() == before


def test_what_cannot_be_sent_is_an_error_at_once_and_nothing_waits_for_it(
    worker: RemoteWorker,
) -> None:
    table = worker.sparse_table("unsent", 1)

    with pytest.raises(SettingError, match="no text"):
        worker.sparse_table("a\ud800", 1)
    with pytest.raises(SettingError):
        worker.dense_table("D", (2**70,))
    with pytest.raises(CodecError):
        worker.ask_all(Command.SIZE, body=2**80)

    worker.barrier()  # waits for all that is open
    assert table.pull([1]).shape == (1, 1)


@pytest.mark.parametrize("request_", [10**9, -1, None, "7"])
def test_waiting_for_a_request_that_was_never_made_is_an_error(
    worker: RemoteWorker, request_: object
) -> None:
    with pytest.raises(PostofficeError, match="made no request"):
        worker.wait(request_)


def test_a_barrier_without_a_proper_name_is_an_error(worker: RemoteWorker) -> None:
    with pytest.raises(BarrierError, match="is text, not 5"):
        worker.barrier(5)


def test_a_worker_without_tables_holds_no_round_up() -> None:
    with local_cluster(servers=2, workers=2, mode="sync") as nodes:

        def program(worker: RemoteWorker) -> float:
            if worker.rank == 1:
                for _ in range(2):
                    worker.step()
                worker.barrier()
                return 0.0
            table = worker.sparse_table("t", 1, optimizer=SGD(lr=1), initializer=Zeros())
            for _ in range(2):
                table.push([1], [[1.0]])
                worker.step()
            found = float(table.pull([1])[0, 0])
            worker.barrier()
            return found

        assert nodes.run(program) == [-2.0, 0.0]


def test_a_long_wait_says_what_it_is_for(caplog: pytest.LogCaptureFixture) -> None:
    with local_cluster(workers=2) as nodes:

        def program(worker: RemoteWorker) -> None:
            worker.office.van.reports_waits = 0.05
            if worker.rank == 0:
                worker.barrier("late")
                return
            worker.office.wait(lambda: "worker 0 has waited" in caplog.text)
            worker.barrier("late")

        nodes.run(program)

    assert "s for" in caplog.text
    assert "at barrier late" in caplog.text


def test_each_server_tells_of_its_share_of_a_table() -> None:
    with local_cluster(servers=3) as cluster:
        (worker,) = cluster.workers
        table = worker.sparse_table("t", 2)
        table.push(np.arange(100), np.ones((100, 2)))
        shares = table.stats()
        (blocks,) = {share["kind"] for share in worker.dense_table("w", (9, 4096)).stats()}
    local = LocalCluster(1).worker(0).sparse_table("t", 2)
    local.push(np.arange(100), np.ones((100, 2)))

    assert len(shares) == 3
    assert blocks == "dense"
    assert sum(share["rows"] for share in shares) == local.stats()[0]["rows"] == 100
    assert shares[0].keys() == local.stats()[0].keys()
