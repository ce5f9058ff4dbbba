"""A worker that is started again behind a dispatcher goes on at the step that is known of it, and
workers come back to a dispatcher that is."""

from __future__ import annotations

import functools
import random

import numpy as np
import pytest

from kv.consistency.base import Update
from kv.consistency.progress import Progress
from kv.consistency.rounds import is_made_again
from kv.consistency.settings import SSP, Consistency, SemiSync, Sync
from kv.dispatcher.config import DispatcherConfig
from kv.dispatcher.dispatcher import Dispatcher
from kv.optimizers import SGD
from kv.remote_worker import RemoteWorker
from postoffice.node import Role, node_id
from postoffice.view import ClusterView
from tests.kv.dispatcher.moves import Mover
from tests.kv.dispatcher.tier import SEEDS, Tier, storm
from tests.kv.replication.test_worker_restarts import KEYS, STEPS, train
from van.message import Meta

WORKERS = 4


@functools.cache
def undisturbed() -> bytes:
    found: list[bytes] = []
    Tier(0, workers=WORKERS, mode="sync").train(lambda worker: found.append(train(worker)))
    assert len(set(found)) == 1
    return found[0]


def kill_amid(tier: Tier, chance: random.Random) -> bool:
    """Wait for some moment of a job and kill worker 1; False: it was too late."""
    tier.wait(lambda: len(tier.dispatchers) == 2 and tier.counts.get("pushes", 0) > 0)
    tier.wait_for_events(chance.randrange(1, 500))
    if any(tier.network.is_over(f"worker {rank}") for rank in range(WORKERS)):
        return False
    tier.network.kill("worker 1")
    return True


@pytest.mark.parametrize("seed", SEEDS)
def test_rounds_give_the_same_bits_though_a_worker_is_killed(seed: int) -> None:
    plan = storm(seed) if seed % 2 else None
    tier = Tier(seed, workers=WORKERS, mode="sync", on_worker="restart", plan=plan)
    found: list[bytes] = []
    began: list[int] = []

    def meddler() -> None:
        if kill_amid(tier, random.Random(seed)):
            tier.start_worker(1, lambda worker: found.append(train(worker, began)))

    tier.meddle(meddler)
    tier.train(lambda worker: found.append(train(worker)))

    assert len(found) == WORKERS
    assert set(found) == {undisturbed()}
    assert all(0 <= step <= STEPS for step in began)


@pytest.mark.parametrize("interval", [0.2, 60.0])
def test_what_was_pushed_in_the_open_step_is_pushed_again_and_counts_once(interval: float) -> None:
    """It is dropped from the dispatcher's round, and from the servers', to which it has gone on."""
    config = DispatcherConfig(round_interval=interval)
    tier = Tier(0, workers=WORKERS, mode="sync", on_worker="restart", config=config)
    found: list[bytes] = []
    began: list[int] = []
    is_amid: list[int] = []

    def dies(worker: RemoteWorker) -> None:
        def amid(step: int) -> None:
            if step == 3:
                worker.office.wait(lambda: False, 2.0)  # its pushes are somewhere by now
                is_amid.append(step)
                worker.office.wait(lambda: False)

        train(worker, amid=amid)

    def meddler() -> None:
        tier.wait(lambda: bool(is_amid))
        tier.network.kill("worker 1")
        tier.start_worker(1, lambda worker: found.append(train(worker, began)))

    tier.meddle(meddler)
    for rank in range(WORKERS):
        program = dies if rank == 1 else lambda worker: found.append(train(worker))
        tier.start_worker(rank, program)
    tier.run()

    assert began == [3]
    assert found == [undisturbed()] * WORKERS


def push_ones_by_step(worker: RemoteWorker) -> np.ndarray:
    """Push ones in each step that is to do, and pull when all have."""
    table = worker.sparse_table("t", 1, optimizer=SGD(lr=1), initializer=None, missing="zeros")
    for _ in range(worker.steps, STEPS):
        table.pull(KEYS)
        table.push(KEYS, np.ones((KEYS.size, 1)))
        worker.step()
    worker.finish()
    worker.barrier()
    return np.array(table.pull(KEYS))


@pytest.mark.parametrize("mode", [SSP(1), SemiSync(2), SemiSync(4)], ids=str)
@pytest.mark.parametrize("seed", SEEDS)
def test_no_push_is_lost_and_only_those_of_the_open_step_may_count_twice(
    seed: int, mode: Consistency
) -> None:
    tier = Tier(seed, workers=WORKERS, mode=mode, on_worker="restart")
    values: list[np.ndarray] = []

    def program(worker: RemoteWorker) -> None:
        values.append(push_ones_by_step(worker))

    def meddler() -> None:
        if kill_amid(tier, random.Random(seed)):
            tier.start_worker(1, program)

    tier.meddle(meddler)
    tier.train(program)

    pushes = -np.array(values)
    assert len(values) == WORKERS
    assert ((pushes == WORKERS * STEPS) | (pushes == WORKERS * STEPS + 1)).all()


@pytest.mark.parametrize("mode", ["async", "ssp", "sync", "semi_sync"])
@pytest.mark.parametrize("seed", SEEDS)
def test_workers_come_back_to_a_dispatcher_that_is_started_again(seed: int, mode: str) -> None:
    tier = Tier(seed, workers=WORKERS, mode=mode, plan=storm(seed) if seed % 2 else None)
    values: list[np.ndarray] = []
    ways: list[bool] = []
    lives: list[Dispatcher] = []

    def program(worker: RemoteWorker) -> None:
        table = worker.sparse_table("t", 1, optimizer=SGD(lr=1), initializer=None, missing="zeros")
        for _ in range(3 * STEPS):
            table.pull(KEYS)
            table.push(KEYS, np.ones((KEYS.size, 1)))
            worker.step()
        worker.finish()
        worker.barrier()
        values.append(table.pull(KEYS))
        ways.append(worker.way.is_open)

    def meddler() -> None:
        tier.wait(lambda: len(tier.dispatchers) == 2 and tier.counts.get("pushes", 0) > 8)
        tier.wait_for_events(random.Random(seed).randrange(1, 50))
        tier.kill_dispatcher(0)
        lives.append(tier.dispatchers[0])
        tier.start_dispatcher(0)

    tier.meddle(meddler)
    tier.train(program)

    np.testing.assert_array_equal(np.array(values), -WORKERS * 3 * STEPS)
    assert ways == [True] * WORKERS
    assert tier.dispatchers[0] is not lives[0]
    assert tier.dispatchers[0].counts["pushes"] > 0


@pytest.mark.parametrize("dispatchers", [1, 2])
@pytest.mark.parametrize("seed", SEEDS)
def test_rounds_give_the_same_bits_though_a_dispatcher_is_started_again(
    seed: int, dispatchers: int
) -> None:
    """With one dispatcher some of its workers are back before the others."""
    expected: list[bytes] = []
    Tier(0, workers=WORKERS, dispatchers=dispatchers, mode="sync").train(
        lambda worker: expected.append(train(worker))
    )
    tier, found = Tier(seed, workers=WORKERS, dispatchers=dispatchers, mode="sync"), list[bytes]()
    is_amid: list[int] = []

    def meddler() -> None:
        tier.wait(lambda: bool(is_amid))
        tier.wait_for_events(random.Random(seed).randrange(1, 100))
        tier.kill_dispatcher(0)
        tier.start_dispatcher(0)

    def note(step: int) -> None:
        if step == 2:
            is_amid.append(step)

    tier.meddle(meddler)
    tier.train(lambda worker: found.append(train(worker, amid=note)))

    assert found == expected
    assert tier.dispatchers[0].counts["merges"] > 0


@pytest.mark.parametrize("seed", SEEDS)
def test_rounds_keep_their_bits_while_some_are_back_and_others_are_not(seed: int) -> None:
    expected: list[bytes] = []
    Tier(0, workers=WORKERS, dispatchers=1, mode="sync").train(
        lambda worker: expected.append(train(worker))
    )
    tier, found = Tier(seed, workers=WORKERS, dispatchers=1, mode="sync"), list[bytes]()
    steps: list[int] = []

    def late(worker: RemoteWorker) -> None:
        """Asked to stay away from the next life for some steps."""

        def see(old: ClusterView, new: ClusterView) -> None:
            if worker.way.wanted is not None and not worker.way.is_open:
                worker.way.ask(worker.way.wanted, 1, True)

        def amid(step: int) -> None:
            steps.append(step)
            if step == 5:
                worker.way.ask(next(iter(worker.way._asked)), 2, False)

        worker.office.on_view.append(see)
        found.append(train(worker, amid=amid))
        assert worker.way.is_open

    def meddler() -> None:
        tier.wait(lambda: 1 in steps)
        tier.kill_dispatcher(0)
        tier.start_dispatcher(0)

    tier.meddle(meddler)
    for rank in range(WORKERS):
        tier.start_worker(rank, late if rank == 1 else lambda worker: found.append(train(worker)))
    tier.run()

    assert found == expected
    assert tier.dispatchers[0].workers == list(range(WORKERS))


def test_what_a_former_life_left_with_another_dispatcher_counts_once() -> None:
    """It was about to be moved. Its step is complete, though no server knows that yet."""
    config = DispatcherConfig(flush_interval=60.0)
    tier = Tier(0, workers=3, mode=SSP(8), on_worker="restart", config=config)
    values: list[np.ndarray] = []
    began: list[int] = []
    is_over: list[bool] = []

    def dies(worker: RemoteWorker) -> None:
        table = worker.sparse_table("t", 1, optimizer=SGD(lr=1), initializer=None, missing="zeros")
        table.push(KEYS, np.ones((KEYS.size, 1)))
        worker.step()
        worker.office.wait(lambda: False, 2.0)
        is_over.append(True)
        worker.office.wait(lambda: False)

    def program(worker: RemoteWorker) -> None:
        if worker.rank == 0:  # its pushes would take along those of its neighbour
            worker.office.wait(lambda: bool(is_over) and len(began) == 2)
        began.append(worker.steps)
        values.append(push_ones_by_step(worker))

    def meddler() -> None:
        tier.wait(lambda: bool(is_over) and tier.app is not None)
        assert tier.app is not None
        tier.app.office.redirect({node_id(Role.WORKER, 1): 1})
        tier.network.kill("worker 1")
        tier.start_worker(1, program)

    tier.meddle(meddler)
    for rank, each in enumerate([program, dies, program]):
        tier.start_worker(rank, each)
    tier.run()

    assert sorted(began) == [0, 0, 1]
    np.testing.assert_array_equal(np.array(values), -3 * STEPS)


@pytest.mark.parametrize("mode", [SSP(1), Sync(), SemiSync(2)], ids=str)
@pytest.mark.parametrize("seed", SEEDS)
def test_a_worker_that_is_started_again_need_not_know_where_it_was(
    seed: int, mode: Consistency
) -> None:
    """Beside moves: what its former life left with any dispatcher goes on before it begins."""
    config = DispatcherConfig(round_interval=60.0)  # nobody may be waited for who goes elsewhere
    tier = Tier(seed, workers=WORKERS, mode=mode, on_worker="restart", config=config)
    mover = Mover(tier, seed)
    values: list[np.ndarray] = []

    def program(worker: RemoteWorker) -> None:
        mover.meet(worker)
        values.append(push_ones_by_step(worker))

    def meddler() -> None:
        if kill_amid(tier, random.Random(seed)):
            tier.start_worker(1, program)

    tier.meddle(mover.run)
    tier.meddle(meddler)
    tier.train(program)

    pushes = -np.array(values)
    assert len(values) == WORKERS
    most = WORKERS * STEPS + (mode != Sync())
    assert ((pushes >= WORKERS * STEPS) & (pushes <= most)).all()


def test_what_is_pulled_ahead_keeps_nobody_from_coming_back() -> None:
    tier, ways = Tier(0, workers=2, dispatchers=1, mode="sync"), list[bool]()

    def program(worker: RemoteWorker) -> None:
        table = worker.sparse_table("t", 1, optimizer=SGD(lr=1), initializer=None, missing="zeros")
        table.push(KEYS, np.ones((KEYS.size, 1)))
        ahead = worker.pull_ahead([(table, KEYS)])  # waits for the end of this worker's step
        worker.barrier("under way")
        if worker.rank == 0:
            tier.kill_dispatcher(0)
            tier.start_dispatcher(0)
        worker.office.wait(lambda: not worker.way.is_open and worker.way.wanted is not None)
        if worker.rank == 1:
            worker.office.wait(lambda: bool(ways))
        worker.step()
        later = worker.pull_ahead([(table, KEYS)], steps=1)
        ways.append(worker.way.is_open)  # of worker 0 before its first pull has an answer
        (rows,) = ahead.values()
        np.testing.assert_array_equal(rows, -2)
        worker.step()
        np.testing.assert_array_equal(later.values()[0], -2)
        worker.finish()

    tier.train(program)

    assert ways == [True, True]


def test_a_push_is_of_the_life_that_made_it_not_of_the_dispatcher_that_has_sent_it() -> None:
    progress = Progress(2)
    progress.begin_again(1, 7, 3)

    def kept(*lives: int) -> Update:
        inside = tuple((11, life, 0, 0, n, 0, ()) for n, life in enumerate(lives))
        header = Meta(sender=1 << 20, incarnation=2, constituents=inside)
        return Update(np.empty(0, np.uint64), np.empty((0, 1), np.float32), push=header, step=3)

    assert is_made_again(progress, 1, kept(6))
    assert not is_made_again(progress, 1, kept(7))
    assert not is_made_again(progress, 1, kept(6, 6))  # merged: all have ended their step
