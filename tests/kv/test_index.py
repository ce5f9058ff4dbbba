"""The hash index against a dict, and how it grows."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv.kernels import hash as kernels
from kv.kernels import records
from kv.kernels.jit import frozen
from kv.placement import NUM_SLOTS, mix64, slot_of
from kv.store import arena
from kv.store.index import BEGIN, FULLEST, LEAST, ORDERS, RECORD_BYTES, STEP, Index

LAST = 2**64 - 1
SEED = 3
few_keys = st.one_of(st.integers(0, 40), st.integers(LAST - 40, LAST))
key_sets = st.sets(few_keys, max_size=60)


def as_array(keys: set[int]) -> np.ndarray:
    return frozen(np.array(sorted(keys), np.uint64))


def unmixed(hashed: int) -> int:
    """The key whose `mix64` this is."""
    hashed ^= (hashed >> 31) ^ (hashed >> 62)
    hashed = hashed * pow(0x94D049BB133111EB, -1, 1 << 64) % (1 << 64)
    hashed ^= (hashed >> 27) ^ (hashed >> 54)
    hashed = hashed * pow(0xBF58476D1CE4E5B9, -1, 1 << 64) % (1 << 64)
    return hashed ^ (hashed >> 30) ^ (hashed >> 60)


def crowded(fingerprint: int, number: int) -> int:
    """Key `number` of those that have this fingerprint in an index whose seed is SEED."""
    return unmixed(fingerprint << 32 | number) ^ SEED


def add(index: Index, keys: np.ndarray, first: int) -> int:
    """Give the keys without a row the rows first, first + 1, …; returns how many."""
    rows, absent, _ = index.find(keys)
    index.add(frozen(keys[rows == -1]), np.arange(first, first + absent))
    return absent


def agrees_with_a_dict(work: list[tuple[str, set[int]]], seed: int, everything: set[int]) -> None:
    """Do `work` to an index and to a dict; keys are redirected to records on disk and back."""
    index, model, next_row = Index(seed=seed), dict[int, int](), 0
    index.cold = np.zeros((2000, 5), np.uint64)
    for action, chosen in work:
        keys = as_array(chosen)
        if action == "insert":
            fresh = [key for key in keys.tolist() if key not in model]
            model.update((key, next_row + i) for i, key in enumerate(fresh))
            next_row += add(index, keys, next_row)
        elif action == "remove":
            removed = index.remove(keys)
            assert removed.tolist() == [model.pop(key, -1) for key in keys.tolist()]
        else:  # a row goes to disk under its own number, or comes back
            keys = as_array({key for key in chosen if key in model})
            old, _, _ = index.find(keys)
            new = -2 - old  # its own inverse
            index.cold[np.maximum(old, new), 0] = keys
            index.redirect(keys, old, new)
            model.update(zip(keys.tolist(), new.tolist(), strict=True))
        index.validate()

    wanted = as_array(everything)
    rows, absent, cold = index.find(wanted)
    assert rows.tolist() == [model.get(key, -1) for key in wanted.tolist()]
    assert absent == len(wanted) - len(model) == len(wanted) - len(index)
    assert cold == sum(row < -1 for row in model.values())


actions = st.sampled_from(["insert", "insert", "remove", "redirect"])


@given(st.lists(st.tuples(actions, key_sets), max_size=12), st.integers(0, 3))
def test_the_index_agrees_with_a_dict(work: list[tuple[str, set[int]]], seed: int) -> None:
    agrees_with_a_dict(work, seed, set(range(45)) | set(range(LAST - 44, LAST + 1)))


CROWD = [0, 1, 2**25, 2**26, 2**26 + 1, 2**31, 2**32 - 2**26, 2**32 - 2, 2**32 - 1]
crowds = st.sets(st.sampled_from([crowded(f, n) for f in CROWD for n in range(8)]), max_size=40)


@given(st.lists(st.tuples(actions, crowds), max_size=12))
def test_equal_fingerprints_and_runs_over_the_last_home_are_told_apart(
    work: list[tuple[str, set[int]]],
) -> None:
    agrees_with_a_dict(work, SEED, {crowded(f, n) for f in CROWD for n in range(8)})


def test_the_index_grows_and_keeps_every_key() -> None:
    rng = np.random.default_rng(0)
    keys = np.unique(rng.integers(0, LAST, 50_000, dtype=np.uint64, endpoint=True))
    rng.shuffle(keys)
    index = Index()

    for start in range(0, keys.size, 777):
        add(index, frozen(keys[start : start + 777]), start)
    index.validate()

    rows, absent, _ = index.find(frozen(keys))
    assert absent == 0
    np.testing.assert_array_equal(rows, np.arange(keys.size))


def test_keys_are_found_and_removed_in_either_table_while_the_index_grows() -> None:
    keys = frozen(np.arange(1, 40_000, dtype=np.uint64))
    index = Index(seed=1)
    done = seen = 0
    while done < keys.size:
        add(index, keys[done : done + 50], done)
        done += 50
        if index.is_growing:
            seen += 1
            step = 1 + done // 97
            some = keys[:done:step]
            rows = index.remove(some)
            assert rows.tolist() == list(range(0, min(done, keys.size), step))
            index.validate()
            assert index.find(some)[1] == some.size
            index.add(some, rows)

    assert seen > 40
    index.validate()


def test_growth_moves_a_few_buckets_for_each_key() -> None:
    rng = np.random.default_rng(1)
    keys = frozen(np.unique(rng.integers(0, LAST, 20_000, dtype=np.uint64)))
    index = Index(seed=0)
    before, most, fullest = 0, 0, 0.0

    for row in range(keys.size):
        index.add(keys[row : row + 1], np.array([row]))
        if index.is_growing:
            most = max(most, index.moved - before)
            size = 1 << (index.bits - 1)
            if index.moved < size:
                fullest = max(fullest, len(index) / size)
        before = index.moved
    assert STEP <= most <= STEP + 128, "the rest of a run, no more"
    assert BEGIN < fullest <= FULLEST + 0.01


@pytest.mark.parametrize("batch", [1000, 100_000])
def test_a_batch_larger_than_the_headroom_loops(batch: int) -> None:
    keys = frozen(np.arange(batch, dtype=np.uint64) * np.uint64(7919))
    index = Index()

    index.add(keys, np.arange(batch))

    index.validate()
    assert 1 / 3 < index.load <= FULLEST


def test_index_and_records_take_at_most_40_bytes_a_row_averaged_over_loads() -> None:
    rng = np.random.default_rng(2)
    keys = frozen(np.unique(rng.integers(0, LAST, 330_000, dtype=np.uint64)))
    index, sizes = Index(), []
    for rows in np.geomspace(160_000, 320_000, 400).astype(np.int64).tolist():  # one doubling
        have = len(index)
        index.add(keys[have:rows], np.arange(have, rows))
        sizes.append(index.nbytes / rows + RECORD_BYTES)

    assert np.mean(sizes) <= 40
    assert max(sizes) <= 46


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_released_memory_goes_back_and_reads_zero() -> None:
    array = arena.reserve((1 << 24,), np.uint32)
    array[:] = 1
    before = resident()

    stop = arena.release(array, 4096, array.nbytes - 4096)

    assert before - resident() > 40 << 20
    assert stop % arena.HUGE_PAGE == 0
    assert (array[: arena.HUGE_PAGE // 4] == 1).all()
    assert array[arena.HUGE_PAGE // 4] == array[stop // 4 - 1] == 0
    assert array[stop // 4] == 1
    assert arena.release(array, stop, stop + 4096) == stop, "less than a huge page stays"


def test_keys_of_one_slot_do_not_crowd_the_index() -> None:
    keys = np.arange(4_000_000, dtype=np.uint64)
    keys = keys[slot_of(keys) == NUM_SLOTS - 1]
    index = Index(expected=keys.size)
    add(index, frozen(keys), 0)

    taken = index.entries != 0
    ends = np.flatnonzero(~np.append(taken, False))
    longest = int(np.diff(np.concatenate([[-1], ends])).max()) - 1
    assert longest < 200, "a run of entries means that homes follow the slot's bits"


@pytest.mark.parametrize("key", [0, 1, LAST])
def test_compiled_and_plain_look_up_agree(key: int) -> None:
    keys = frozen(np.array([key, 12345], np.uint64))
    index = Index(seed=9)
    add(index, keys[:1], 4)
    plain = np.empty(2, np.int64)

    with np.errstate(over="ignore"):
        absent, _ = kernels.lookup.py_func(
            index.entries, index.where, index.records, index.cold, keys, plain
        )

    rows, expected, _ = index.find(keys)
    assert (absent, plain.tolist()) == (expected, rows.tolist()) == (1, [4, -1])


@given(key_sets, key_sets, key_sets, st.sampled_from([0, 7]), st.sampled_from([0.0, 0.01]))
def test_a_look_up_that_notes_is_a_look_up_and_then_a_note(
    known: set[int], spilled: set[int], wanted: set[int], now: int, rate: float
) -> None:
    index = Index(seed=2)
    index.cold = np.zeros((200, 5), np.uint64)
    add(index, as_array(known | spilled), 0)
    cold_keys = as_array(spilled)
    rows, _, _ = index.find(cold_keys)
    index.cold[rows, 0] = cold_keys
    index.redirect(cold_keys, rows, -2 - rows)
    index.records[:100, 1:] = np.arange(200).reshape(100, 2)
    keys, expected = as_array(wanted), index.records.copy()
    rows, *counts = index.find(keys)
    if now:
        records.see(expected, rows[rows >= 0], 5, 256, now, rate)

    found, *noted = index.find(keys, (5, 256, now, rate))

    assert noted == counts
    np.testing.assert_array_equal(found, rows)
    np.testing.assert_array_equal(index.records, expected)


def test_blocks_of_a_long_look_up_are_all_found_and_noted() -> None:
    keys = frozen(np.arange(1000, dtype=np.uint64))
    index = Index()
    add(index, keys[::2], 0)

    rows, absent, _ = index.find(keys, (5, 256, 9, 0.0))

    assert absent == 500
    np.testing.assert_array_equal(rows[::2], np.arange(500))
    assert (rows[1::2] == -1).all()
    assert (index.records[:500, 1] == 5).all()
    assert (index.records[:500, 2] == (256 << 32 | 9)).all()
    assert not index.records[500:].any()


@given(crowds, key_sets, st.integers(1, 7))
def test_a_scan_in_the_order_of_fingerprints_meets_each_row_once(
    crowd: set[int], others: set[int], count: int
) -> None:
    index = Index(seed=SEED)
    keys = as_array(crowd | others)
    add(index, keys, 0)
    place, met = 0, list[int]()

    while place < ORDERS:
        rows, stop = index.rows_from(place, count)
        assert stop > place
        assert rows.size <= max(count, 8), "more only if fingerprints are equal"
        met += rows.tolist()
        place = stop

    assert sorted(met) == list(range(keys.size))


@pytest.mark.parametrize("batch", [200, 777])
def test_a_scan_is_complete_while_the_index_grows(batch: int) -> None:
    keys = frozen(np.arange(1, 60_000, dtype=np.uint64))
    index = Index(seed=1)
    add(index, keys[:10_000], 0)
    place, met, growing, done = 0, list[int](), 0, 10_000

    while place < ORDERS:
        rows, place = index.rows_from(place, 500)
        met += rows.tolist()
        growing += index.is_growing
        add(index, keys[done : done + batch], done)
        done += batch

    assert growing
    assert len(set(met)) == len(met)
    assert set(range(10_000)) <= set(met)


@given(st.integers(0, LAST))
def test_mix64_is_the_same_everywhere(key: int) -> None:
    array = np.array([key], np.uint64)

    with np.errstate(over="ignore"):
        plain = int(kernels.mix64.py_func(np.uint64(key)))

    assert kernels.mix64(np.uint64(key)) == plain == int(mix64(array)[0])
    assert unmixed(plain) == key


def test_the_smallest_table_is_small() -> None:
    assert Index().nbytes < 8 * (LEAST + 200)
