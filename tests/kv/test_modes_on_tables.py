"""Modes behind real tables: what they say of a push reaches its rows, whatever kind these are."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kv.consistency.settings import SSP, Async, Consistency, DCAsync, SemiSync, Sync
from kv.engine import Engine
from kv.errors import LatePushError, WouldWaitError
from kv.initializers import Uniform, Zeros
from kv.kernels.jit import frozen
from kv.local import LocalCluster
from kv.optimizers import SGD, Adagrad, Adam, Optimizer
from kv.spec import TableSpec
from kv.store.delay import Delay
from kv.store.sparse import SparseStore

F = np.float32
KEYS = np.arange(5, dtype=np.uint64)
RATE = 0.5


def sparse_store(optimizer: Optimizer, storage: str = "float32") -> SparseStore:
    start = Uniform(-1, 1)
    spec = TableSpec.sparse("t", 3, optimizer=optimizer, initializer=start, storage=storage)
    return SparseStore(spec.resolved("async", 1))


@pytest.mark.parametrize("optimizer", [SGD(lr=0.4), Adagrad(lr=0.4), Adam(lr=0.4)], ids=repr)
def test_a_rate_multiplies_the_learning_rate_and_not_the_gradient(optimizer: Optimizer) -> None:
    grads = np.random.default_rng(1).standard_normal((5, 3)).astype(F)
    slower = type(optimizer)(lr=0.2)
    stores = [sparse_store(optimizer), sparse_store(slower)]

    stores[0].push(KEYS, grads, 0, delay=Delay(RATE))
    stores[1].push(KEYS, grads, 0)

    first, second = (store.export(KEYS).data.tobytes() for store in stores)
    assert first == second  # weights and state


@pytest.mark.parametrize("storage", ["float32", "float16"])
def test_a_gradient_is_corrected_by_what_its_row_is_now(storage: str) -> None:
    rng = np.random.default_rng(2)
    grads, seen = rng.standard_normal((2, 5, 3)).astype(F)
    seen[1] = np.nan
    plain, delayed = sparse_store(SGD(lr=1), storage), sparse_store(SGD(lr=1), storage)
    now = plain.pull(KEYS)
    delayed.pull(KEYS)
    moved = np.where(np.isnan(seen), 0, now - seen)

    delayed.push(KEYS, grads, 0, delay=Delay(seen=seen, lam=F(0.3)))
    plain.push(KEYS, (grads + F(0.3) * grads**2 * moved).astype(F), 0)

    tolerance = 1e-6 if storage == "float32" else 4e-3
    expected, got = plain.pull(KEYS), delayed.pull(KEYS)
    np.testing.assert_allclose(got, expected, atol=tolerance, rtol=tolerance)


def test_a_correction_that_is_no_number_is_left_out() -> None:
    store = sparse_store(SGD(lr=1e-30))
    store.pull(KEYS)

    store.push(KEYS, np.full((5, 3), 1e30, F), 0, delay=Delay(seen=np.zeros((5, 3), F), lam=F(1)))

    assert np.isfinite(store.pull(KEYS)).all()


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("count", [5, 40_000])  # at once, and in turns
def test_what_a_worker_saw_corrects_its_push_in_a_table_in_parts(parts: int, count: int) -> None:
    engine, keys = Engine(2, DCAsync(lam=0.5), parts=parts), np.arange(count, dtype=np.uint64)
    number = engine.define(TableSpec.sparse("t", 4, optimizer=SGD(lr=1.0), initializer=Zeros()))
    table = engine.table(number)
    table.answered(0, keys, engine.pull(number, keys))

    engine.push(number, 1, 0, keys, np.full((count, 4), -2, F))  # weights are 2 now
    engine.push(number, 0, 0, keys, np.full((count, 4), 1, F))

    # Worker 1 never pulled: -2 as it is. Worker 0 saw zeros: 1 + 0.5 · 1 · (2 - 0) = 2.
    np.testing.assert_array_equal(engine.pull(number, keys), 0)
    assert engine.stats(number)["unseen"] == count


def test_a_dense_table_is_corrected_too() -> None:
    cluster = LocalCluster(2, mode=DCAsync(lam=0.5))
    tables = [w.dense_table("b", (6000,), optimizer=SGD(lr=1.0)) for w in cluster.workers]
    tables[0].pull()
    tables[1].push(np.full(6000, -2.0))

    tables[0].push(np.ones(6000))

    np.testing.assert_array_equal(tables[0].pull(), 0)


def test_a_stale_push_of_a_local_worker_steps_less_far() -> None:
    cluster = LocalCluster(2, mode=Async(lr_by_staleness=1))
    tables = [
        w.sparse_table("t", 1, optimizer=SGD(lr=1), initializer=Zeros()) for w in cluster.workers
    ]
    for table in tables:
        table.pull([1])
    for _ in range(2):
        tables[0].pull([1])
        tables[0].push([1], [[1.0]])

    tables[1].push([1], [[1.0]])  # two updates late

    assert tables[0].pull([1])[0, 0] == -2.5


def test_a_push_that_is_dropped_is_not_among_those_counted_by_staleness() -> None:
    cluster = LocalCluster(2, mode=SemiSync(backup_workers=1))
    tables = [w.sparse_table("t", 1, optimizer=SGD(lr=1)) for w in cluster.workers]
    for table in tables:
        table.pull([1])
    for _ in range(3):  # rounds without the other
        tables[0].pull([1])
        tables[0].push([1], [[1.0]])
        cluster.worker(0).step()

    tables[1].push([1], [[1.0]])

    assert tables[0].stats()[0]["dropped"] == 1
    assert cluster.worker(0).staleness(tables[0]) == {"0": 3}


@pytest.mark.parametrize("mode", [Sync(), SemiSync(2)], ids=repr)
def test_a_push_for_a_later_round_is_as_stale_as_it_will_be_then(mode: Consistency) -> None:
    cluster = LocalCluster(2, mode=mode)
    ahead, behind = cluster.workers
    tables = [w.sparse_table("t", 1, optimizer=SGD(lr=1)) for w in (ahead, behind)]
    tables[0].pull([1])
    for _ in range(3):  # without another pull
        tables[0].push([1], [[1.0]])
        ahead.step()

    for _ in range(3):
        behind.step()

    assert ahead.staleness(tables[0]) == {"0": 1, "1": 1, "2": 1}


def program(worker: Any, steps: int, seen: list[list[float]]) -> None:
    table = worker.sparse_table("t", 1, optimizer=SGD(lr=1), initializer=Zeros())
    for _ in range(steps):
        seen[worker.rank].append(float(table.pull([0])[0, 0]))
        table.push([0], [[-1.0]])
        worker.step()


@pytest.mark.parametrize(
    "mode",
    [Async(), DCAsync(lam=0), SSP(0), SSP(2), Sync(), SemiSync(0.5), SemiSync(2, window=0.01)],
    ids=repr,
)
def test_threads_with_unequal_work_come_to_an_end_and_lose_nothing(mode: Consistency) -> None:
    import threading

    cluster = LocalCluster(3, mode=mode, threads=True)
    seen: list[list[float]] = [[], [], []]

    def run(rank: int) -> None:
        with cluster.worker(rank) as worker:
            program(worker, 5 + 5 * rank, seen)

    threads = [threading.Thread(target=run, args=(rank,), daemon=True) for rank in range(3)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(120)

    assert not any(thread.is_alive() for thread in threads)
    assert cluster.engine.pull(0, np.zeros(1, np.uint64))[0, 0] == 30
    cluster.engine.validate()


def test_one_thread_is_told_for_whom_a_bounded_pull_would_wait() -> None:
    cluster = LocalCluster(2, mode=SSP(1))
    table = cluster.worker(0).sparse_table("t", 1)
    for _ in range(2):
        table.pull([1])
        cluster.worker(0).step()

    with pytest.raises(WouldWaitError, match=r"wait for workers \[1\]"):
        table.pull([1])


def test_one_thread_waits_for_a_window_to_close() -> None:
    cluster = LocalCluster(2, mode=SemiSync(2, window=0.01))
    table = cluster.worker(0).sparse_table("t", 1, optimizer=SGD(lr=1), initializer=Zeros())
    table.push([1], [[-1.0]])
    cluster.worker(0).step()

    assert table.pull([1])[0, 0] == 1


def test_a_dead_worker_holds_nobody_up_and_its_successor_may_push() -> None:
    engine = Engine(2, SSP(0))
    number = engine.define(TableSpec.sparse("t", 1, optimizer=SGD(lr=1), initializer=Zeros()))
    engine.step(0, 0)
    assert not engine.may_pull(number, 0, 1)

    assert list(engine.losing(1)) == []  # run to its end

    assert engine.may_pull(number, 0, 1)
    engine.push(number, 1, 0, KEYS, np.ones((5, 1), F))
    assert engine.clock(number) == 1


# -- copies and checkpoints ---------------------------------------------------------------------


def held(engine: Engine, number: int) -> list[tuple[int, int, list[int]]]:
    return [(r, n, push.keys.tolist()) for r, n, push in engine.table(number).mode.kept()]


def test_what_a_quorum_holds_moves_to_another_server_and_counts_there() -> None:
    engines = [Engine(3, SemiSync(3)) for _ in range(2)]
    spec = TableSpec.sparse("t", 1, optimizer=SGD(lr=1), initializer=Zeros())
    numbers = [engine.define(spec) for engine in engines]
    engines[0].push(numbers[0], 0, 0, KEYS, np.ones((5, 1), F))
    engines[0].step(0, 0)
    kept = engines[0].table(numbers[0]).mode.kept()
    assert held(engines[0], numbers[0]) == [(0, 0, [0, 1, 2, 3, 4])]

    for rank in (1, 2, 0):  # the other server's round 0 is over
        engines[1].step(rank, 0)
    list(engines[1].keeping(engines[1].table(numbers[1]), kept))
    assert held(engines[1], numbers[1]) == [(0, 1, [0, 1, 2, 3, 4])]
    for rank in range(3):
        engines[1].step(rank, 1)

    np.testing.assert_array_equal(engines[1].pull(numbers[1], frozen(KEYS)), -1)
    engines[1].validate()


@pytest.mark.parametrize("mode", [Async(), DCAsync(), SSP(1), Sync(), SemiSync(2)], ids=repr)
def test_every_mode_goes_on_from_the_clocks_of_a_checkpoint(mode: Consistency) -> None:
    engine = Engine(2, mode)
    number = engine.define(TableSpec.sparse("t", 1, optimizer=SGD(lr=1), initializer=Zeros()))
    engine.progress.resume([7, 7])
    engine.table(number).mode.resume(7)

    for step in (7, 8):
        for rank in (0, 1):
            assert engine.may_pull(number, rank, step)
            engine.push(number, rank, step, KEYS, np.ones((5, 1), F))
        position = engine.clock(number) + 1  # as workers that have pulled say
        for rank in (0, 1):
            engine.step(rank, step, position)

    engine.validate()
    np.testing.assert_array_equal(engine.pull(number, frozen(KEYS)), -4)
    assert engine.clock(number) == (9 if mode.holds else 11)
    if mode.holds:
        with pytest.raises(LatePushError):
            engine.push(number, 0, 8, KEYS, np.ones((5, 1), F))
