"""A cluster in this process: tables against NumPy and torch, workers in turn or in threads."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv.errors import (
    KeyListError,
    KVError,
    MissingKeyError,
    NonFiniteError,
    RankError,
    SettingError,
    TableConflictError,
    ValueShapeError,
    WouldWaitError,
)
from kv.initializers import Constant, Normal, Zeros
from kv.local import LocalCluster
from kv.local_worker import LocalWorker
from kv.optimizers import SGD, Adagrad, Adam, Momentum, Nesterov, Optimizer
from kv.protocols import DenseTable, SparseTable, Worker
from postoffice.errors import ClusterStoppedError

LAST = 2**64 - 1
OPTIMIZERS = [SGD(lr=0.1), Momentum(lr=0.1), Nesterov(lr=0.1), Adagrad(lr=0.1), Adam(lr=0.1)]
key_lists = st.lists(st.one_of(st.integers(0, 6), st.integers(LAST - 2, LAST)), max_size=25)


def worker(**options: object) -> LocalWorker:
    return LocalCluster(**options).worker(0)


def run_all(jobs: list[Callable[[], object]]) -> list[object]:
    """Run each job in a thread; their results, an exception being one, in order."""
    results: list[object] = [None] * len(jobs)

    def run(place: int) -> None:
        try:
            results[place] = jobs[place]()
        except Exception as error:
            results[place] = error

    threads = [threading.Thread(target=run, args=(i,), daemon=True) for i in range(len(jobs))]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(30)
        assert not thread.is_alive(), "a worker hangs"
    return results


def test_it_fits_the_protocols() -> None:
    w: Worker = worker()
    sparse: SparseTable = w.sparse_table("s", 2)
    dense: DenseTable = w.dense_table("d", (2, 3))

    assert (w.rank, w.num_workers) == (0, 1)
    assert (sparse.name, sparse.dim, dense.name, dense.shape) == ("s", 2, "d", (2, 3))


@given(key_lists)
def test_any_key_list_gives_what_the_clean_call_gives(keys: list[int]) -> None:
    w = worker()
    messy = w.sparse_table("t", 3, optimizer=Adagrad(lr=0.5), initializer=Normal(1.0))
    clean = worker().sparse_table("t", 3, optimizer=Adagrad(lr=0.5), initializer=Normal(1.0))
    grads = np.random.default_rng(len(keys)).standard_normal((len(keys), 3)).astype(np.float32)
    unique = sorted(set(keys))
    sums = {key: np.full(3, -0.0, np.float32) for key in unique}
    for key, grad in zip(keys, grads, strict=True):
        sums[key] = sums[key] + grad

    pulled = messy.pull(keys)
    messy.push(keys, grads)

    rows = dict(zip(unique, clean.pull(unique), strict=True))
    assert pulled.shape == (len(keys), 3)
    assert all((value == rows[key]).all() for key, value in zip(keys, pulled, strict=True))
    clean.push(unique, np.array([sums[key] for key in unique]).reshape(-1, 3))
    assert messy.pull(unique).tobytes() == clean.pull(unique).tobytes()
    assert len(messy) == len(unique)


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.name)
def test_a_small_model_trains_as_in_torch(optimizer: Optimizer) -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(0)
    w = worker()
    table = w.sparse_table("emb", 4, optimizer=optimizer, initializer=Normal(0.5))
    dense = w.dense_table("w", (4, 3), optimizer=optimizer, initializer=Normal(0.5))
    ids = np.arange(20, dtype=np.uint64)
    emb, weight = (torch.nn.Parameter(torch.tensor(a)) for a in (table.pull(ids), dense.pull()))
    kinds = {"sgd": torch.optim.SGD, "adagrad": torch.optim.Adagrad, "adam": torch.optim.Adam}
    options = {
        "momentum": {"momentum": 0.9},
        "nesterov": {"momentum": 0.9, "nesterov": True},
    }.get(optimizer.name, {})
    kind = kinds.get(optimizer.name, torch.optim.SGD)
    twin = kind([emb, weight], lr=optimizer.lr, **options)

    for _ in range(10):
        batch = np.concatenate([ids, rng.choice(ids, 44)])  # every row, so that lazy is not seen
        target = torch.tensor(rng.standard_normal((64, 3)).astype(np.float32))
        rows = torch.nn.Parameter(torch.tensor(table.pull(batch)))
        own = torch.nn.Parameter(torch.tensor(dense.pull()))
        (rows @ own - target).pow(2).mean().backward()
        w.push_many([(table, batch, rows.grad.numpy()), (dense, own.grad.numpy())])
        w.step()
        twin.zero_grad()
        (emb[batch.astype(np.int64)] @ weight - target).pow(2).mean().backward()
        twin.step()

    np.testing.assert_allclose(table.pull(ids), emb.detach().numpy(), rtol=1e-3, atol=1e-4)
    np.testing.assert_allclose(dense.pull(), weight.detach().numpy(), rtol=1e-3, atol=1e-4)


@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize("shape", [(), (5,), (64, 65), (3, 5000)], ids=str)
def test_a_dense_table_is_one_array(mode: str, shape: tuple[int, ...]) -> None:
    w = worker(mode=mode)
    table = w.dense_table("d", shape, optimizer=SGD(lr=0.5), initializer=Constant(1.0))
    grad = np.random.default_rng(0).standard_normal(shape)

    before = table.pull()
    w.wait(table.push(grad))
    w.step()

    assert before.shape == shape
    assert (before == 1.0).all()
    np.testing.assert_array_equal(table.pull(), before - np.float32(0.5) * grad.astype("f4"))
    table.assign(grad)
    np.testing.assert_array_equal(table.pull(), grad.astype(np.float32))


def test_the_whole_cluster_starts_from_its_seed() -> None:
    values = [
        worker(seed=seed).sparse_table("t", 4, initializer=Normal()).pull([1, 2])
        for seed in (0, 0, 1)
    ]

    np.testing.assert_array_equal(values[0], values[1])
    assert (values[0] != values[2]).all()


def test_evaluation_makes_no_rows() -> None:
    w = worker()
    table = w.sparse_table("t", 2)

    (values,) = w.pull_many([(table, [3, 1])], create=False)

    assert len(table) == 0
    np.testing.assert_array_equal(table.pull([3, 1]), values)


def test_assign_takes_the_last_of_repeated_keys_and_delete_counts() -> None:
    table = worker().sparse_table("t", 1, initializer=Zeros())

    table.assign([5, 1, 5], [[1], [2], [3]])

    assert table.pull([1, 5]).tolist() == [[2], [3]]
    assert table.delete([5, 5, 7]) == 1
    assert dict(zip(*[a.tolist() for a in next(table.items())], strict=True)) == {1: [2.0]}


def test_the_callers_arrays_may_change_after_a_push() -> None:
    w = worker(mode="sync")
    table = w.sparse_table("t", 1, optimizer=SGD(lr=1.0), initializer=Zeros())
    keys, grads = np.array([1, 2], np.uint64), np.ones((2, 1), np.float32)

    table.push(keys, grads)
    keys[:], grads[:] = 9, 9
    w.step()

    assert table.pull([1, 2, 9]).tolist() == [[-1], [-1], [0]]


@pytest.mark.parametrize(
    ("call", "error", "text"),
    [
        (lambda w, t, d: t.pull([0, -1]), KeyListError, "table t: key -1 at position 1"),
        (lambda w, t, d: t.push([0.5], [[1, 1]]), KeyListError, "key 0.5 at position 0"),
        (lambda w, t, d: t.push([1], [[1, 2, 3]]), ValueShapeError, "shape (1, 3), not (1, 2)"),
        (
            lambda w, t, d: t.push([1], [[1, np.inf]]),
            NonFiniteError,
            "table t: gradient of key 1 is inf",
        ),
        (lambda w, t, d: t.assign([1], [1, 2]), ValueShapeError, "values have shape (2,)"),
        (lambda w, t, d: d.push(np.ones(3)), ValueShapeError, "table d: gradients have shape (3,)"),
        (lambda w, t, d: d.assign(np.full((2, 2), np.nan)), NonFiniteError, "table d: value at"),
        (lambda w, t, d: w.sparse_table("t", 3), TableConflictError, "dim 2 here, 3 there"),
        (lambda w, t, d: w.wait(77), KVError, "worker 0 made no request 77"),
        (lambda w, t, d: w.pull_many([(d, [1])]), KVError, "needs a sparse table"),
        (lambda w, t, d: w.pull_many([t]), KVError, "needs a dense table"),
        (lambda w, t, d: w.gather(object()), KVError, "a value of type object cannot be sent"),
        (lambda w, t, d: LocalCluster(2).worker(2), RankError, "no worker 2"),
    ],
)
def test_mistakes_are_named(call: Callable, error: type[KVError], text: str) -> None:
    w = worker()
    table, dense = w.sparse_table("t", 2), w.dense_table("d", (2, 2))

    with pytest.raises(error) as caught:
        call(w, table, dense)

    assert text in str(caught.value)


def test_one_wrong_write_of_many_stops_them_all() -> None:
    w = worker()
    table, dense = w.sparse_table("t", 1, initializer=Zeros()), w.dense_table("d", (2,))
    strict = w.sparse_table("strict", 1, missing="error")

    with pytest.raises(MissingKeyError, match="table strict"):
        w.push_many([(table, [1], [[1]]), (dense, [1, 1]), (strict, [1], [[1]])])

    assert len(table) == 0
    assert dense.pull().tolist() == [0, 0]


# -- several workers driven by one thread -----------------------------------------------------


def test_workers_driven_in_turn_make_rounds() -> None:
    cluster = LocalCluster(3, mode="sync")
    workers = [cluster.worker(rank) for rank in range(3)]
    options = {"optimizer": SGD(lr=1.0), "initializer": Zeros()}
    tables = [w.sparse_table("t", 1, **options) for w in workers]

    for step in range(4):
        for w, table in zip(workers, tables, strict=True):
            assert table.pull([0, w.rank]).tolist() == [
                [-step * 3.0],
                [-step * (1.0 + 2 * (not w.rank))],
            ]
            table.push([0, w.rank], [[1], [1]] if w.rank else [[0.5], [0.5]])
        for w in workers:
            w.step()


def test_a_pull_that_could_only_dead_lock_says_whom_it_waits_for() -> None:
    cluster = LocalCluster(3, mode="sync")
    first = cluster.worker(0)
    table = first.sparse_table("t", 1)
    free = first.sparse_table("free", 1, mode="async")
    cluster.worker(2).close()

    first.step()

    with pytest.raises(WouldWaitError, match=r"pull of table t by worker 0 must wait for .*\[1\]"):
        table.pull([1])
    assert free.pull([1]).shape == (1, 1)
    cluster.worker(1).step()
    assert table.pull([1]).shape == (1, 1)


def test_a_barrier_of_workers_in_turn_raises_instead_of_hanging() -> None:
    cluster = LocalCluster(2)
    alone = worker()
    alone.barrier()

    with pytest.raises(
        WouldWaitError, match=r"barrier 'x' by worker 0 must wait for workers \[1\]"
    ):
        cluster.worker(0).barrier("x")
    cluster.worker(1).close()
    cluster.worker(0).barrier("x")


def test_gathering_in_turn_works_when_rank_0_comes_last() -> None:
    cluster = LocalCluster(3)
    first, second, third = (cluster.worker(rank) for rank in range(3))
    array = np.arange(3)

    with pytest.raises(WouldWaitError, match=r"gather by worker 0 must wait for workers \[1, 2\]"):
        first.gather("early")
    assert third.gather({"auc": (0.5, array)}) is None
    assert second.gather([np.float32(1.5), None, b"x"]) is None
    array[:] = 9

    values = first.gather(True)

    assert values[:2] == [True, [1.5, None, b"x"]]
    assert values[2]["auc"][0] == 0.5
    assert values[2]["auc"][1].tolist() == [0, 1, 2]


def test_gathering_from_a_closed_worker_is_an_error() -> None:
    cluster = LocalCluster(2)
    cluster.worker(1).close()

    with pytest.raises(KVError, match=r"workers \[1\] were closed"):
        cluster.worker(0).gather(1)


def test_a_closed_worker_is_refused_and_the_others_go_on() -> None:
    cluster = LocalCluster(2, mode="sync")
    first, second = cluster.worker(0), cluster.worker(1)
    table = first.sparse_table("t", 1)
    mine = second.sparse_table("t", 1)
    with second:
        second.step()
    second.close()

    with pytest.raises(KVError, match="worker 1 is closed"):
        mine.push([1], [[1]])
    for _ in range(3):
        first.step()
        table.pull([1])


# -- a thread for each worker -----------------------------------------------------------------


def test_threads_in_sync_mode_equal_the_workers_in_turn_to_the_bit() -> None:
    def steps(w: LocalWorker) -> np.ndarray:
        rng = np.random.default_rng(w.rank)
        table = w.sparse_table("t", 4, optimizer=Adagrad(lr=0.1), initializer=Normal())
        dense = w.dense_table("d", (30,), optimizer=Adam(lr=0.1))
        for _ in range(12):
            keys = rng.integers(0, 50, 30)
            rows, bias = w.pull_many([(table, keys), dense])
            w.push_many(
                [
                    (table, keys, rows * bias.mean() + rng.standard_normal((30, 4))),
                    (dense, bias + rows[0, 0]),
                ]
            )
            w.step()
        w.barrier()
        values = table.pull(np.arange(50), create=False)
        w.close()
        return values

    def run() -> list[object]:
        cluster = LocalCluster(3, mode="sync", seed=1, threads=True)
        results = run_all([partial(steps, w) for w in cluster.workers])
        cluster.engine.validate()
        return results

    first, second = run(), run()

    for values in [*first, *second]:
        assert isinstance(values, np.ndarray), values
        assert values.tobytes() == first[0].tobytes()


def test_async_threads_lose_no_push() -> None:
    cluster = LocalCluster(4, threads=True)

    def job(w: LocalWorker) -> None:
        table = w.sparse_table("t", 2, optimizer=SGD(lr=1.0), initializer=Zeros())
        for i in range(50):
            table.push([0, 1 + i % 7], np.ones((2, 2)))
            table.pull([0, i])

    results = run_all([partial(job, w) for w in cluster.workers])

    assert results == [None] * 4
    values = cluster.worker(0).sparse_table("t", 2, optimizer=SGD(lr=1.0), initializer=Zeros())
    assert values.pull([0])[0, 0] == -200
    assert -values.pull(np.arange(1, 8))[:, 0].sum() == 200


def test_threads_with_unequal_numbers_of_steps_all_end() -> None:
    cluster = LocalCluster(3, mode="sync", threads=True)

    def job(w: LocalWorker) -> float:
        table = w.sparse_table("t", 1, optimizer=SGD(lr=1.0), initializer=Zeros())
        for _ in range(3 * w.rank):
            table.pull([1])
            table.push([1], [[1]])
            w.step()
        w.close()
        return 3.0 * w.rank

    results = run_all([partial(job, w) for w in cluster.workers])

    assert results == [0.0, 3.0, 6.0]
    cluster.engine.validate()
    assert next(cluster.engine.items(0))[1].tolist() == [[-9]]


def test_barriers_and_gathers_of_threads_meet() -> None:
    cluster = LocalCluster(3, threads=True)
    passed: list[tuple[int, int]] = []

    def job(w: LocalWorker) -> list[object]:
        gathered = []
        for turn in range(5):
            w.barrier("turn")
            passed.append((turn, w.rank))
            w.barrier()
            gathered.append(w.gather((w.rank, turn)))
        return gathered

    results = run_all([partial(job, w) for w in cluster.workers])

    assert [turn for turn, _ in passed] == sorted(turn for turn, _ in passed)
    assert results[0] == [[[rank, turn] for rank in range(3)] for turn in range(5)]
    assert results[1] == results[2] == [None] * 5


def test_a_failed_worker_wakes_those_who_wait_for_it() -> None:
    cluster = LocalCluster(3, mode="sync", threads=True)

    def waits_for_a_round() -> None:
        table = cluster.worker(0).sparse_table("t", 1)
        cluster.worker(0).step()
        table.pull([1])

    def waits_at_a_barrier() -> None:
        cluster.worker(1).barrier()

    def fails() -> None:
        with cluster.worker(2):
            raise ValueError("no data")

    results = run_all([waits_for_a_round, waits_at_a_barrier, fails])

    for result in results[:2]:
        assert isinstance(result, ClusterStoppedError)
        assert "worker 2 failed with ValueError('no data')" in str(result)
    assert isinstance(results[2], ValueError)


@pytest.mark.parametrize("lr", [-1.0, float("nan"), "fast", None, True])
def test_a_learning_rate_that_is_none_is_refused_by_the_name_of_its_table(lr: Any) -> None:
    worker = LocalCluster().worker(0)

    with pytest.raises(SettingError, match="table user: lr must be a finite number"):
        worker.set_lr(worker.sparse_table("user", 2), lr)
