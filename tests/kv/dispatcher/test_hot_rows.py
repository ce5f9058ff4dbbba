"""Rows of frequent keys leave ahead of the rest of their push, and count once all the same."""

from __future__ import annotations

import random
from collections import Counter

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv.dispatcher.config import DispatcherConfig
from kv.dispatcher.hotkeys import HotKeys, keys_within, masks_of
from kv.optimizers import SGD
from kv.remote_worker import RemoteWorker
from tests.kv.dispatcher.test_pushes import check_ones, push_ones
from tests.kv.dispatcher.tier import SEEDS, Tier, storm

KEY_LISTS = st.lists(st.sets(st.integers(0, 40), min_size=1), min_size=1, max_size=12)


@given(KEY_LISTS, st.integers(1, 5))
def test_a_key_is_hot_from_its_uses_on(lists: list[set[int]], least: int) -> None:
    hot, uses = HotKeys(least), Counter[int]()

    for keys in map(sorted, lists):
        found = hot.note(np.array(keys, np.uint64))

        uses.update(keys)
        # So few keys in a sketch of a megabyte do not meet.
        assert found.tolist() == [uses[key] >= least for key in keys]


def test_a_key_that_is_used_no_more_cools_down() -> None:
    hot = HotKeys(4, period=100)
    for _ in range(10):
        hot.note(np.arange(3, dtype=np.uint64))

    for start in range(0, 4000, 50):
        hot.note(np.arange(1000 + start, 1050 + start, dtype=np.uint64))

    assert not hot.note(np.arange(3, dtype=np.uint64)).any()


@given(KEY_LISTS)
def test_the_bits_of_merged_rows_say_which_list_has_them(lists: list[set[int]]) -> None:
    arrays = [np.array(sorted(keys), np.uint64) for keys in lists]
    merged = np.unique(np.concatenate(arrays))

    masks = masks_of(merged, arrays)

    for place, keys in enumerate(arrays):
        np.testing.assert_array_equal(keys_within(merged, masks, place), keys)


HOT = DispatcherConfig(hot_uses=4)


@pytest.mark.parametrize("mode", ["async", "ssp"])
@pytest.mark.parametrize("seed", SEEDS)
def test_pushes_of_ones_add_up_in_a_storm(seed: int, mode: str) -> None:
    tier = Tier(seed, workers=3, mode=mode, config=HOT, plan=storm(seed))
    seen: list[tuple[np.ndarray, np.ndarray]] = []

    tier.train(lambda worker: seen.append(push_ones(worker, 5)))

    assert tier.counts["rows_ahead"] > 0
    check_ones(seen, 15)


def push_mixed(worker: RemoteWorker, times: int) -> np.ndarray:
    """Push ones to a few keys each time, to others now and then; the rows when all have."""
    table = worker.sparse_table("t", 1, optimizer=SGD(lr=1), initializer=None, missing="zeros")
    for number in range(times):
        keys = np.concatenate([np.arange(6), [100 + number]])
        table.push(keys, np.ones((7, 1)))
        worker.step()
    worker.finish()
    worker.barrier()
    return table.pull(np.concatenate([np.arange(6), 100 + np.arange(times)])).ravel()


@pytest.mark.parametrize("mode", ["async", "ssp"])
@pytest.mark.parametrize("seed", SEEDS)
def test_no_row_is_lost_or_counted_twice_when_a_dispatcher_dies(seed: int, mode: str) -> None:
    tier = Tier(seed, workers=3, mode=mode, config=HOT, plan=storm(seed) if seed % 2 else None)
    seen: list[np.ndarray] = []

    def kill() -> None:
        tier.wait(lambda: tier.counts.get("rows_ahead", 0) > 0)
        tier.wait_for_events(random.Random(seed).randint(1, 25))
        tier.kill_dispatcher(0)

    tier.meddle(kill)
    tier.train(lambda worker: seen.append(push_mixed(worker, 20)))

    assert len(seen) == 3
    for rows in seen:
        np.testing.assert_array_equal(rows[:6], -60)
        np.testing.assert_array_equal(rows[6:], -3)
