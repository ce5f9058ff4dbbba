"""Pulls that a dispatcher answers from what it has pulled for another worker."""

from __future__ import annotations

import numpy as np
import pytest

from kv.dispatcher.config import DispatcherConfig
from kv.optimizers import SGD
from kv.remote_worker import RemoteWorker
from tests.kv.dispatcher.test_pushes import digests
from tests.kv.dispatcher.tier import SEEDS, Tier, storm


def count_up(worker: RemoteWorker, steps: int, keys: np.ndarray) -> list[float]:
    """Push ones step by step; what the first row was before each push, and at the end."""
    table = worker.sparse_table("t", 1, optimizer=SGD(lr=1), initializer=None, missing="zeros")
    seen = []
    for _ in range(steps):
        seen.append(float(table.pull(keys)[0, 0]))
        worker.wait(table.push(keys, -np.ones((keys.size, 1))))
        worker.step()
    worker.finish()
    worker.barrier()
    return [*seen, float(table.pull(keys)[0, 0])]


@pytest.mark.parametrize("seed", SEEDS)
def test_workers_of_a_round_share_one_pull_and_see_the_round(seed: int) -> None:
    config = DispatcherConfig(round_interval=0.2)
    tier = Tier(seed, workers=4, mode="sync", config=config, plan=storm(seed))
    seen: list[list[float]] = []

    tier.train(lambda worker: seen.append(count_up(worker, 5, np.arange(7, dtype=np.uint64))))

    assert seen == [[0, 4, 8, 12, 16, 20]] * 4
    assert tier.counts["cache_hits"] >= 4 * 7  # of 2 · 5 · 7 that could be


def test_rounds_are_the_same_bits_without_a_cache() -> None:
    with_cache = digests(Tier(3, workers=4, mode="sync"))
    without = digests(Tier(3, workers=4, mode="sync", config=DispatcherConfig(cache_size=0)))

    assert with_cache == without


@pytest.mark.parametrize("mode", ["async", "ssp"])
@pytest.mark.parametrize("seed", SEEDS)
def test_a_worker_sees_the_pushes_that_it_has_waited_for(seed: int, mode: str) -> None:
    config = DispatcherConfig(cache_age=100.0, cache_staleness=1000)
    tier = Tier(seed, workers=4, mode=mode, config=config, plan=storm(seed))
    seen: list[list[float]] = []

    tier.train(lambda worker: seen.append(count_up(worker, 6, np.arange(5, dtype=np.uint64))))

    for values in seen:
        assert all(value >= step for step, value in enumerate(values)), values
        assert values[-1] == 24


def test_async_shares_nothing_unless_it_is_allowed() -> None:
    tier = Tier(0, workers=4)

    tier.train(lambda worker: count_up(worker, 3, np.arange(5, dtype=np.uint64)) and None)

    assert not tier.counts.get("cache_hits")


def test_rows_that_are_set_outright_are_seen_by_all_workers_of_the_dispatcher() -> None:
    tier = Tier(0, workers=2, dispatchers=1, mode="sync")
    seen: list[float] = []

    def program(worker: RemoteWorker) -> None:
        table = worker.sparse_table("t", 1, initializer=None)
        table.pull([3])
        worker.barrier("pulled")
        if worker.rank == 0:
            table.assign([3], [[7.0]])
        worker.barrier("assigned")
        seen.append(float(table.pull([3])[0, 0]))

    tier.train(program)

    assert seen == [7.0, 7.0]
