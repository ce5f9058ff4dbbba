"""Steps under way: what they may lack, that nothing is lost, whose the errors are."""

from __future__ import annotations

import contextlib
import random
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from kv.consistency.seen import SeenValues
from kv.consistency.settings import SSP, Async, Consistency, DCAsync, Sync
from kv.errors import MissingKeyError, NonFiniteError, SettingError
from kv.initializers import Zeros
from kv.local import LocalCluster
from kv.optimizers import SGD, Adagrad
from kv.protocols import Worker
from kv.remote_worker import RemoteWorker
from kv.retrying import Retry
from postoffice.errors import ClusterStoppedError
from pslite import local_cluster
from tests.kv.replication.replicated import Replicated
from tests.kv.test_modes_on_loopback import MODES, Job, adds_up
from van.faults import Faults

STEPS = 9
Program = Callable[[Worker], Any]


def count_up(worker: Worker, depth: int, steps: int = STEPS) -> None:
    """Each step reads two keys and adds one to the first."""
    table = worker.sparse_table("t", 1, optimizer=SGD(lr=1), initializer=Zeros())
    pipeline = worker.pipeline(depth)
    for _ in pipeline.over(range(steps), lambda _: [(table, [0, 1])]):
        pipeline.push([(table, [0], [[-1.0]])])


def deepest(mode: Consistency) -> int:
    return 1 if isinstance(mode, DCAsync) else 3  # it remembers two pulls


@pytest.mark.parametrize("mode", MODES, ids=repr)
@pytest.mark.parametrize("seed", range(2))
def test_nothing_is_lost_in_any_mode(seed: int, mode: Consistency) -> None:
    job = Job(seed, mode, Faults.all(0.1) if seed else None)

    job.run(3, lambda worker: count_up(worker, deepest(mode), STEPS + 2 * worker.rank))

    if adds_up(mode):
        assert job.value() == 3 * STEPS + 6 - job.total("dropped")


def test_a_lone_workers_gradients_are_as_stale_as_the_pipeline_is_deep() -> None:
    reports: list[dict[str, int]] = []

    def program(worker: Worker) -> None:
        count_up(worker, 3)
        reports.append(worker.staleness(worker.sparse_table("t", 1, **SPEC)))

    Job(3, Async()).run(1, program, servers=1)
    program(LocalCluster().worker(0))

    # the first steps' values were asked for before there was anything to lack
    assert reports == 2 * [{"0": 1, "1": 1, "2": 1, "3": STEPS - 3}]


SPEC: dict[str, Any] = {"optimizer": SGD(lr=1), "initializer": Zeros()}


def learn(worker: Worker, depth: int, steps: int = STEPS) -> list[np.ndarray]:
    """Gradients that depend on all that was pulled; the rows in the end."""
    table = worker.sparse_table("emb", 3, optimizer=Adagrad(lr=0.3))
    dense = worker.dense_table("net", (5,), optimizer=Adagrad(lr=0.1))
    rng = np.random.default_rng(worker.rank)
    batches = [rng.integers(0, 12, size=rng.integers(1, 9)) for _ in range(steps)]
    pipeline = worker.pipeline(depth)
    for keys, (rows, net) in pipeline.over(batches, lambda keys: [(table, keys), dense]):
        pipeline.push([(table, keys, rows * 0.3 + net[:3] + 0.1), (dense, net - rows.sum() - 1)])
    worker.finish()
    worker.barrier()
    return [table.pull(np.arange(12), create=False), dense.pull()]


def on_nodes(workers: int, mode: str, program: Program, **how: Any) -> Any:
    with local_cluster(servers=2, workers=workers, mode=mode, seed=9, **how) as nodes:
        return nodes.run(program)[0]


def by_hand(worker: Worker) -> list[np.ndarray]:
    """`learn` without a pipeline."""
    table = worker.sparse_table("emb", 3, optimizer=Adagrad(lr=0.3))
    dense = worker.dense_table("net", (5,), optimizer=Adagrad(lr=0.1))
    rng = np.random.default_rng(worker.rank)
    for keys in [rng.integers(0, 12, size=rng.integers(1, 9)) for _ in range(STEPS)]:
        rows, net = worker.pull_many([(table, keys), dense])
        grads = rows * 0.3 + net[:3] + 0.1
        worker.wait(worker.push_many([(table, keys, grads), (dense, net - rows.sum() - 1)]))
        worker.step()
    worker.finish()
    worker.barrier()
    return [table.pull(np.arange(12), create=False), dense.pull()]


@pytest.mark.parametrize(("workers", "mode"), [(1, "async"), (3, "sync")])
def test_depth_0_is_pull_and_push_in_turn(workers: int, mode: str) -> None:
    found = on_nodes(workers, mode, lambda worker: learn(worker, 0))

    for values, expected in zip(found, on_nodes(workers, mode, by_hand), strict=True):
        np.testing.assert_array_equal(values, expected)


@pytest.mark.parametrize("depth", [1, 3])
def test_rounds_give_the_same_bits_at_any_depth(depth: int) -> None:
    expected = on_nodes(3, "sync", by_hand)

    for replicas in (0, 1):
        found = on_nodes(3, "sync", lambda worker: learn(worker, depth), replicas=replicas)
        for values, same in zip(found, expected, strict=True):
            np.testing.assert_array_equal(values, same)


def test_one_process_lacks_what_a_cluster_lacks() -> None:
    plain, deep = (
        on_nodes(1, "async", lambda worker, depth=depth: learn(worker, depth)) for depth in (0, 3)
    )

    here = learn(LocalCluster(seed=9).worker(0), 3)

    for values, expected, other in zip(here, deep, plain, strict=True):
        np.testing.assert_array_equal(values, expected)
        assert (values != other).any()


@pytest.mark.parametrize("depth", [1, 4])
def test_no_worker_leads_by_more_than_its_mode_lets_it(depth: int) -> None:
    job, leads = Job(5, SSP(2)), []
    done = [0, 0]

    def program(worker: RemoteWorker) -> None:
        table = worker.sparse_table("t", 1, **SPEC)
        pipeline = worker.pipeline(depth)
        for _ in pipeline.over(range(12), lambda _: [(table, [0])]):
            if worker.rank == 1:
                worker.office.wait(lambda: False, 1.0)  # a slow worker
            else:
                leads.append(done[0] - done[1])
            pipeline.push([(table, [0], [[-1.0]])])
            done[worker.rank] += 1

    job.run(2, program)

    assert max(leads) == 2
    assert job.value() == 24


def test_gradients_are_never_staler_than_the_job_allows() -> None:
    job, retry = Job(7, Async()), Retry(50, 1e-3, 1e-2)

    job.run(3, lambda worker: count_up(worker, 2), max_staleness=3, retry=retry)

    assert job.value() == 3 * STEPS  # what was refused came again
    assert max(server.engine.stats(0)["stalest"] for server in job.servers) <= 3


@pytest.mark.parametrize("mode", [*MODES, SSP(3)], ids=repr)
def test_a_pipeline_deeper_than_gradients_may_be_stale_is_refused(mode: Consistency) -> None:
    worker = LocalCluster(mode=DCAsync(memory=9) if isinstance(mode, DCAsync) else mode).worker(0)
    worker.engine.max_staleness = 2
    is_bounded = mode.holds or (isinstance(mode, SSP) and mode.staleness <= 2)

    if is_bounded:
        count_up(worker, 3)
    else:
        with pytest.raises(SettingError, match="makes each gradient 3 updates stale by itself"):
            count_up(worker, 3)
    count_up(worker, 2)


@pytest.mark.parametrize("depth", [0, 1, 3])
def test_no_more_steps_are_unanswered_than_the_pipeline_is_deep(depth: int) -> None:
    worker, unanswered, most = LocalCluster().worker(0), set[int](), []
    push_many, wait = worker.push_many, worker.wait

    def push(writes: Any, **how: Any) -> int:
        most.append(len(unanswered))
        unanswered.add(request := push_many(writes, **how))
        return request

    def answer(request: int, timeout: float | None = None) -> None:
        unanswered.discard(request)
        wait(request, timeout)

    worker.push_many, worker.wait = push, answer  # type: ignore[method-assign]

    count_up(worker, depth)

    assert most == [min(step, depth) for step in range(STEPS)]
    assert not unanswered


@pytest.mark.parametrize("depth", [-1, 257, 1.5, True, "2", None])
def test_a_wrong_depth_is_refused(depth: Any) -> None:
    with pytest.raises(SettingError, match="depth must be 0 to 256"):
        LocalCluster().worker(0).pipeline(depth)


@pytest.mark.parametrize("mode", [Async(), SSP(1), Sync()], ids=repr)
@pytest.mark.parametrize("seed", range(6))
def test_a_server_that_dies_loses_nothing_that_was_under_way(seed: int, mode: Consistency) -> None:
    cluster, found = Replicated(seed, workers=2, mode=mode), list[float]()
    chance = random.Random(seed)

    def program(worker: RemoteWorker) -> None:
        count_up(worker, 3, 14)
        worker.finish()
        worker.barrier()
        found.append(float(worker.sparse_table("t", 1, **SPEC).pull([0])[0, 0]))
        worker.barrier()

    def meddler() -> None:
        cluster.wait_until_copied()
        cluster.wait_for_events(chance.randrange(1, 150))
        if not cluster.network.is_over("worker 0"):
            victim = chance.randrange(2)
            cluster.network.kill(f"server {victim}")
            cluster.start_server(victim)

    for rank in range(2):
        cluster.start_worker(rank, program)
    cluster.meddle(meddler)
    cluster.run()

    assert found == [28, 28]


# -- errors -------------------------------------------------------------------------------------


def strict_run(worker: Worker, wrong: int, depth: int, reached: list[int]) -> None:
    """In step `wrong` a key is pushed that no server has."""
    table = worker.sparse_table("strict", 1, missing="error", optimizer=SGD(lr=1))
    if worker.rank == 0:
        table.assign([1], [[0.0]])
    worker.barrier()
    pipeline = worker.pipeline(depth)
    for step, _ in pipeline.over(range(STEPS), lambda _: [(table, [1])]):
        reached.append(step)
        pipeline.push([(table, [99 if step == wrong else 1], [[-1.0]])])


@pytest.mark.parametrize("depth", [0, 3])
@pytest.mark.parametrize("wrong", [0, 4, STEPS - 1])
@pytest.mark.parametrize("mode", [Async(), Sync()], ids=repr)
def test_the_error_of_a_push_is_raised_for_its_step(
    mode: Consistency, wrong: int, depth: int
) -> None:
    reached: list[int] = []
    found: list[MissingKeyError] = []

    def program(worker: RemoteWorker) -> None:
        try:
            strict_run(worker, wrong, depth, reached)
        except MissingKeyError as error:
            found.append(error)
        with contextlib.suppress(MissingKeyError):
            worker.finish()

    Job(1, mode).run(1, program)

    assert f"step {wrong}, worker 0" in str(found[0])
    assert "key 99 has no row" in str(found[0])
    assert max(reached) <= wrong + depth + 1


def test_an_error_that_nobody_waited_for_is_raised_at_the_end() -> None:
    def program(worker: RemoteWorker) -> None:
        table = worker.sparse_table("strict", 1, missing="error", optimizer=SGD(lr=1))
        worker.pipeline(5).push([(table, [7], [[1.0]])])

    with pytest.raises(ClusterStoppedError, match=r"key 7 has no row.*\(step 0, worker 0\)"):
        Job(2, Async()).run(1, program)  # in close, so that the servers hear of it


def test_the_error_of_a_pull_ahead_is_raised_in_its_step() -> None:
    reached: list[int] = []

    def program(worker: RemoteWorker) -> None:
        table = worker.sparse_table("strict", 1, missing="error")
        table.assign([1], [[0.0]])
        loop = worker.pipeline(2).over([1, 1, 5, 1], lambda key: [(table, [key])])
        with pytest.raises(MissingKeyError, match="key 5 has no row"):
            reached.extend(key for key, _ in loop)

    Job(2, Async()).run(1, program)

    assert reached == [1, 1]


def test_a_gradient_that_is_no_number_is_refused_in_its_own_step() -> None:
    worker = LocalCluster().worker(0)
    table = worker.sparse_table("t", 1)
    pipeline = worker.pipeline(2)

    def run() -> None:
        for step, _ in pipeline.over(range(5), lambda step: [(table, [step])]):
            pipeline.push([(table, [step], [[np.nan if step == 2 else 1.0]])])

    with pytest.raises(NonFiniteError, match=r"of key 2 is nan \(step 2, worker 0"):
        run()


def test_what_a_loop_that_was_left_had_asked_for_is_forgotten() -> None:
    def program(worker: RemoteWorker) -> None:
        table = worker.sparse_table("t", 1, **SPEC)
        pipeline = worker.pipeline(3)
        loop = pipeline.over(range(9), lambda _: [(table, [0])])
        for step, _ in loop:
            pipeline.push([(table, [0], [[-1.0]])])
            if step == 4:
                break
        loop.close()  # as Python does when it goes
        assert not pipeline.has_asked(1)
        pipeline.drain()
        assert worker.pull_many([(table, [0])])[0] == 5

    Job(4, Async()).run(1, program)


# -- delay compensation -------------------------------------------------------------------------


def test_what_a_gradient_saw_is_found_by_the_clock_of_its_pull() -> None:
    seen = SeenValues(1, 3)
    keys = np.array([4, 6], np.uint64)
    for clock in (0, 2, 5):
        seen.note(0, clock, keys, np.full((2, 1), clock, np.float32))

    found = {base: seen.find(0, base, keys, 1)[0][0, 0] for base in (0, 1, 2, 4, 5, 9, -1)}

    assert found == {0: 0, 1: 0, 2: 2, 4: 2, 5: 5, 9: 5, -1: 5}


@pytest.mark.parametrize("run", ["here", "on nodes"])
def test_delays_are_compensated_for_the_values_that_were_used(run: str) -> None:
    """Not for those that came meanwhile, for steps to come."""
    mode, depth, gradient = DCAsync(lam=0.5, memory=3), 2, 1.0

    def program(worker: Worker) -> list[float]:
        table = worker.dense_table("w", (16,), optimizer=SGD(lr=0.1), initializer=Zeros())
        pipeline, found = worker.pipeline(depth), []
        for _, (values,) in pipeline.over(range(6), lambda _: [table]):
            found.append(float(values[0]))
            pipeline.push([(table, np.full(16, gradient))])
        return [*found, float(table.pull()[0])]

    if run == "here":
        found = program(LocalCluster(mode=mode).worker(0))
    else:
        with local_cluster(mode=mode) as nodes:
            (found,) = nodes.run(program)

    weights = [0.0]
    for step in range(6):
        used = weights[max(0, step - depth)]
        corrected = gradient + 0.5 * gradient**2 * (weights[-1] - used)
        weights.append(weights[-1] - 0.1 * corrected)
    assert found == pytest.approx(
        [weights[max(0, step - depth)] for step in range(6)] + weights[-1:]
    )


def test_a_mode_that_remembers_too_few_pulls_is_named() -> None:
    worker = LocalCluster(mode="dc_async").worker(0)
    table = worker.sparse_table("t", 1)

    with pytest.raises(SettingError, match="pipeline of table t: depth 2 in mode dc_async needs"):
        next(worker.pipeline(2).over(range(5), lambda _: [(table, [1])]))
