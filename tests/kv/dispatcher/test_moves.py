"""Workers that go another way while their pushes are under way: each push counts exactly once."""

from __future__ import annotations

import random

import numpy as np
import pytest

from kv.dispatcher.config import DispatcherConfig
from kv.optimizers import SGD
from kv.remote_worker import RemoteWorker
from tests.kv.dispatcher.moves import Mover
from tests.kv.dispatcher.test_pushes import check_ones, push_ones
from tests.kv.dispatcher.tier import SEEDS, Tier, storm


@pytest.mark.parametrize("mode", ["async", "ssp", "sync", "semi_sync"])
@pytest.mark.parametrize("seed", SEEDS)
def test_pushes_of_ones_add_up_in_a_storm_of_moves(seed: int, mode: str) -> None:
    config = DispatcherConfig(round_interval=0.2)
    plan = None if seed % 2 else storm(seed)
    tier = Tier(seed, workers=4, dispatchers=3, mode=mode, config=config, plan=plan)
    mover = Mover(tier, seed)
    seen: list[tuple[np.ndarray, np.ndarray]] = []

    def program(worker: RemoteWorker) -> None:
        mover.meet(worker)
        seen.append(push_ones(worker, 8))

    tier.meddle(mover.run)
    tier.train(program)

    assert mover.changes > 10
    assert len(seen) == 4
    check_ones(seen, 32)


@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize("seed", SEEDS)
def test_they_add_up_when_a_dispatcher_dies_in_the_midst(seed: int, mode: str) -> None:
    config = DispatcherConfig(round_interval=0.2)
    tier = Tier(seed, workers=4, dispatchers=3, mode=mode, config=config)
    mover = Mover(tier, seed)
    seen: list[tuple[np.ndarray, np.ndarray]] = []

    def program(worker: RemoteWorker) -> None:
        mover.meet(worker)
        seen.append(push_ones(worker, 10))

    def kill() -> None:
        tier.wait(lambda: tier.counts.get("pushes", 0) > 0)
        tier.wait_for_events(random.Random(seed).randint(1, 200))
        tier.kill_dispatcher(seed % 3)

    tier.meddle(mover.run)
    tier.meddle(kill)
    tier.train(program)

    assert len(seen) == 4
    check_ones(seen, 40)


def count_own(worker: RemoteWorker, mover: Mover, times: int) -> None:
    """Push ones to a row of this worker's own and pull it: each pull sees all pushes waited for."""
    mover.meet(worker)
    table = worker.sparse_table("t", 1, optimizer=SGD(lr=1), initializer=None, missing="zeros")
    for number in range(times):
        assert table.pull([worker.rank])[0, 0] == number
        worker.wait(table.push([worker.rank], [[-1.0]]))
        worker.step()
    worker.finish()


@pytest.mark.parametrize("mode", ["async", "ssp", "sync"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_pull_sees_its_workers_pushes_by_whatever_way_they_went(seed: int, mode: str) -> None:
    config = DispatcherConfig(round_interval=0.2, cache_age=100.0, cache_staleness=1000)
    tier = Tier(seed, workers=4, dispatchers=2, mode=mode, config=config)
    mover = Mover(tier, seed, pause=20)

    tier.meddle(mover.run)
    tier.train(lambda worker: count_own(worker, mover, 12))

    assert mover.changes > 10


@pytest.mark.parametrize("seed", SEEDS)
def test_a_pull_behind_a_change_sees_pushes_that_nobody_has_waited_for(seed: int) -> None:
    config = DispatcherConfig(flush_interval=5.0)  # longer than anything else takes
    tier = Tier(seed, workers=2, dispatchers=1, config=config)
    seen: list[float] = []

    def program(worker: RemoteWorker) -> None:
        table = worker.sparse_table("t", 1, optimizer=SGD(lr=1), missing="zeros")
        if worker.rank == 0:
            table.push([7], [[-1.0]])
            assert worker.way.used is not None
            worker.way.ask(worker.way.used, 1, True)
            seen.append(float(table.pull([7])[0, 0]))
        worker.barrier()

    tier.train(program)

    assert seen == [1.0]


@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize("seed", SEEDS)
def test_they_add_up_where_rows_move_too(seed: int, mode: str) -> None:
    config = DispatcherConfig(round_interval=0.2)
    tier = Tier(seed, workers=3, servers=2, replicas=1, mode=mode, config=config)
    mover = Mover(tier, seed)
    seen: list[tuple[np.ndarray, np.ndarray]] = []

    def program(worker: RemoteWorker) -> None:
        mover.meet(worker)
        seen.append(push_ones(worker, 12))

    tier.meddle(mover.run)
    tier.lose_a_server(random.Random(seed), 200)
    tier.train(program)

    assert len(seen) == 3
    check_ones(seen, 36)
