"""Pushes through dispatchers count exactly once, whatever the network does and whoever dies."""

from __future__ import annotations

import random

import numpy as np
import pytest

from kv.dispatcher.config import DispatcherConfig
from kv.optimizers import SGD
from kv.remote_worker import RemoteWorker
from tests.kv.dispatcher.tier import SEEDS, Tier, storm
from tests.kv.training import train

KEYS = np.arange(20, dtype=np.uint64)


def push_ones(worker: RemoteWorker, times: int) -> tuple[np.ndarray, np.ndarray]:
    """Push ones to a sparse and a dense table, together and alone; the values when all have."""
    table = worker.sparse_table("t", 1, optimizer=SGD(lr=1), initializer=None, missing="zeros")
    dense = worker.dense_table("d", [5000], optimizer=SGD(lr=1), initializer=None)
    for _ in range(times):
        worker.push_many([(table, KEYS, np.ones((20, 1))), (dense, np.ones(5000))])
        table.push(KEYS[::2], np.ones((10, 1)))
        worker.step()
    worker.finish()
    worker.barrier()
    return table.pull(KEYS), dense.pull()


def check_ones(seen: list[tuple[np.ndarray, np.ndarray]], pushes: int) -> None:
    for rows, array in seen:
        np.testing.assert_array_equal(rows[::2], -2 * pushes)
        np.testing.assert_array_equal(rows[1::2], -pushes)
        np.testing.assert_array_equal(array, -pushes)


@pytest.mark.parametrize("mode", ["async", "ssp", "sync", "semi_sync"])
@pytest.mark.parametrize("seed", SEEDS)
def test_pushes_of_ones_add_up_in_a_storm(seed: int, mode: str) -> None:
    tier = Tier(seed, workers=3, mode=mode, plan=storm(seed))
    seen: list[tuple[np.ndarray, np.ndarray]] = []

    tier.train(lambda worker: seen.append(push_ones(worker, 5)))

    assert len(seen) == 3
    check_ones(seen, 15)


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_pushes_of_several_workers_become_one(mode: str) -> None:
    tier = Tier(0, workers=4, mode=mode, config=DispatcherConfig(flush_interval=5.0))

    tier.train(lambda worker: push_ones(worker, 5))

    counts = tier.counts
    assert counts["pushes"] == 40
    assert counts["rows_in"] > 1.5 * counts["rows_out"]
    assert counts["merges"] < 40


@pytest.mark.parametrize("mode", ["async", "ssp", "sync", "semi_sync", "dc_async"])
@pytest.mark.parametrize("seed", SEEDS)
def test_no_push_is_lost_or_counted_twice_when_a_dispatcher_dies(seed: int, mode: str) -> None:
    calm = mode == "dc_async"  # gradients are corrected, so that only what is pulled is compared
    tier = Tier(seed, workers=3, mode=mode, plan=None if seed % 2 else storm(seed))
    seen: list[tuple[np.ndarray, np.ndarray]] = []

    def kill() -> None:
        tier.wait(lambda: len(tier.dispatchers) == 2 and tier.counts.get("pushes", 0) > 0)
        tier.wait_for_events(random.Random(seed).randint(1, 60))
        tier.kill_dispatcher(0)

    tier.meddle(kill)
    tier.train(lambda worker: seen.append(push_ones(worker, 8)))

    assert len(seen) == 3
    if not calm:
        check_ones(seen, 24)


def digests(tier: Tier) -> list[bytes]:
    found: list[bytes] = []
    tier.train(lambda worker: found.append(train(worker, 4)))
    return found


@pytest.fixture(scope="module")
def expected_bits() -> bytes:
    found = digests(Tier(0, workers=5, dispatchers=2, mode="sync"))
    assert len(set(found)) == 1
    return found[0]


@pytest.mark.parametrize("seed", SEEDS)
def test_rounds_give_the_same_bits_whatever_the_network_does(
    expected_bits: bytes, seed: int
) -> None:
    assert digests(Tier(seed, workers=5, mode="sync", plan=storm(seed))) == [expected_bits] * 5


@pytest.mark.parametrize("seed", SEEDS)
def test_rounds_give_the_same_bits_when_a_dispatcher_dies(expected_bits: bytes, seed: int) -> None:
    tier = Tier(seed, workers=5, mode="sync")

    def kill() -> None:
        tier.wait(lambda: tier.counts.get("pushes", 0) > 0)
        tier.wait_for_events(random.Random(seed).randint(1, 60))
        tier.kill_dispatcher(seed % 2)

    tier.meddle(kill)

    assert digests(tier) == [expected_bits] * 5
