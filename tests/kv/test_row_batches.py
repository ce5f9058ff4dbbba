"""Rows that leave a store and come back are the rows to the bit, wherever they lay."""

from __future__ import annotations

import itertools
from dataclasses import replace

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv.dense import share_of
from kv.errors import ArenaFullError, KeyListError, ValueShapeError
from kv.executor import run_through
from kv.initializers import Uniform
from kv.kernels import batches
from kv.kernels.jit import frozen
from kv.optimizers import Adam
from kv.placement import NUM_SLOTS, SlotMap, slot_of
from kv.policies import AfterSightings
from kv.spec import TableSpec
from kv.store.blocks import Blocks
from kv.store.parts import Parts
from kv.store.removals import Removals
from kv.store.rows import RowBatch
from kv.store.sparse import SparseStore

DIM = 3
LIMIT = 1 << 16


def spec_of(**options: object) -> TableSpec:
    settings: dict[str, object] = {"optimizer": Adam(lr=0.1), "initializer": Uniform(-1, 1)}
    return TableSpec.sparse("t", DIM, **{**settings, **options}, seed=1)  # type: ignore[arg-type]


def store_of(**options: object) -> SparseStore:
    clock = itertools.count(1000)
    return SparseStore(spec_of(**options), reserve=0, now=lambda: float(next(clock)))


def trained(store: SparseStore, count: int = 2000, pushes: int = 3) -> np.ndarray:
    """Keys of rows that some pushes have touched, a part of them each time."""
    rng = np.random.default_rng(0)
    keys = np.unique(rng.integers(0, 2**64, count, dtype=np.uint64))
    for clock in range(pushes):
        some = keys[rng.random(keys.size) < 0.7]
        grads = rng.standard_normal((some.size, DIM)).astype(np.float32)
        store.push(some, grads, clock, shows=rng.random(some.size).astype(np.float32) * 9)
    return keys


def everything(store: SparseStore, count: int = 100) -> RowBatch:
    start, found = 0, []
    while start < store.top:
        batch, start = store.export_scan(start, count)
        found.append(batch)
    return RowBatch.together(found)


def assert_equal(one: RowBatch, other: RowBatch) -> None:
    for mine, yours in zip(one.columns(), other.columns(), strict=True):
        np.testing.assert_array_equal(mine, yours)


KINDS: dict[str, dict[str, object]] = {
    "in memory": {},
    "float16": {"storage": "float16"},
    "on disk": {"memory_limit": LIMIT, "when_full": "spill"},
    "float16 on disk": {"memory_limit": LIMIT, "when_full": "spill", "storage": "float16"},
    "admission": {"admission": AfterSightings(2, 10_000)},
}


@pytest.mark.parametrize("kind", KINDS)
def test_a_store_filled_from_another_is_that_store(kind: str) -> None:
    source, target = store_of(**KINDS[kind]), store_of(**KINDS[kind])
    keys = trained(source)
    assert kind[-4:] != "disk" or source.stats().spilled > 0
    batch = everything(source)

    target.put(batch, keep_versions=True)

    target.validate()
    assert len(target) == len(source)
    assert target.version >= int(batch.versions.max())
    assert_equal(everything(target), batch)
    values = [store.pull(keys, create=False) for store in (source, target)]
    np.testing.assert_array_equal(values[0], values[1])
    for store in (source, target):
        store.push(batch.keys, np.ones((len(batch), DIM), np.float32), 7)
    after = [everything(store) for store in (source, target)]
    np.testing.assert_array_equal(after[0].data, after[1].data)


@pytest.mark.parametrize("kind", KINDS)
def test_keys_without_a_row_are_not_exported(kind: str) -> None:
    store = store_of(**KINDS[kind])
    trained(store)
    whole = everything(store)
    wanted = np.unique(np.concatenate([whole.keys[::3], np.arange(50, dtype=np.uint64)]))

    assert_equal(store.export(wanted), whole.take(np.isin(whole.keys, wanted)))


@pytest.mark.parametrize("kind", ["in memory", "on disk"])
def test_a_scan_gives_what_changed_in_the_slots_asked_for(kind: str) -> None:
    store = store_of(**KINDS[kind])
    trained(store)
    version, slots = store.version, np.arange(NUM_SLOTS) % 3 == 0
    before = everything(store)
    changed = before.keys[::7]
    store.push(changed, np.ones((changed.size, DIM), np.float32))

    start, found = 0, []
    while start < store.top:
        batch, start = store.export_scan(start, 64, slots, version)
        found.append(batch)

    expected = changed[slots[slot_of(changed)]]
    np.testing.assert_array_equal(RowBatch.together(found).keys, expected)


def test_rows_that_were_only_seen_are_found_by_when() -> None:
    store = store_of(memory_limit=LIMIT, when_full="evict")
    keys = np.arange(100, dtype=np.uint64)
    store.push(keys, np.ones((100, DIM), np.float32))
    version, second = store.version, int(store.export(keys).seen.max()) + 1
    store.pull(keys[:10])

    assert len(store.export_scan(0, 1000, None, version)[0]) == 0
    np.testing.assert_array_equal(
        store.export_scan(0, 1000, None, version, second)[0].keys, keys[:10]
    )


def test_a_put_that_keeps_no_versions_is_a_change() -> None:
    source, target = store_of(), store_of()
    batch = source.export(trained(source))
    target.push(batch.keys[:5], np.ones((5, DIM), np.float32))
    before = target.version

    target.put(batch, keep_versions=False)

    assert target.version == before + 1
    assert (target.export(batch.keys).versions == target.version).all()


def test_a_put_into_a_table_that_evicts_stays_within_its_limit() -> None:
    source = store_of()
    batch = source.export(trained(source, 5000))
    target = store_of(memory_limit=LIMIT, when_full="evict")

    target.put(batch, keep_versions=True)

    target.validate()
    assert 0 < len(target) < len(batch)
    assert target.stats().evicted == len(batch) - len(target)
    kept = target.export(batch.keys)
    assert_equal(kept, batch.take(np.isin(batch.keys, kept.keys)))


def test_a_put_into_a_full_table_is_refused() -> None:
    source = store_of()
    batch = source.export(trained(source, 5000))

    with pytest.raises(ArenaFullError, match="memory_limit"):
        store_of(memory_limit=LIMIT).put(batch, keep_versions=True)


def test_rows_of_another_size_or_order_are_refused() -> None:
    source = store_of()
    batch = source.export(trained(source))
    turned = RowBatch(*[column[::-1] for column in batch.columns()])
    unborn = replace(batch, versions=0 * batch.versions)

    with pytest.raises(ValueShapeError, match=r"rows of 40 bytes came, .* they have 36"):
        store_of(storage="float16").put(batch, keep_versions=True)
    with pytest.raises(ValueShapeError, match="do not increase"):
        store_of().put(turned, keep_versions=True)
    with pytest.raises(ValueShapeError, match="version 0"):
        store_of().put(unborn, keep_versions=True)


@pytest.mark.parametrize("kind", ["in memory", "on disk"])
def test_removed_keys_are_remembered_from_the_first_question_on(kind: str) -> None:
    store = store_of(**KINDS[kind])
    keys = trained(store)
    known = everything(store).keys
    store.delete(known[:5])
    removals = store.watch_removals()
    place = removals.place

    store.delete(np.unique(np.concatenate([known[:20], np.arange(9, dtype=np.uint64)])))

    np.testing.assert_array_equal(removals.since(place), known[5:20])
    assert keys.size >= known.size


def test_rows_that_are_evicted_count_as_removed() -> None:
    store = store_of(memory_limit=LIMIT, when_full="evict")
    removals = store.watch_removals()
    trained(store, 5000)

    assert removals.place == store.stats().evicted > 0
    gone = removals.since(0)
    assert len(store.export(gone)) < gone.size


@given(st.lists(st.lists(st.integers(0, 50), max_size=9, unique=True), max_size=9))
def test_removals_say_what_they_have_forgotten(added: list[list[int]]) -> None:
    removals, all_keys = Removals(most=12), []
    for some in added:
        removals.add(np.array(some, np.uint64))
        all_keys += some

        for place in range(len(all_keys) + 1):
            if removals.has(place):
                assert removals.since(place).tolist() == sorted(set(all_keys[place:]))
        assert removals.has(len(all_keys))
    removals.forget(len(all_keys))
    assert removals.since(len(all_keys)).size == 0


def test_parts_export_and_take_rows_in_turns() -> None:
    source, target = Parts(spec_of(), 3), Parts(spec_of(), 3)
    keys = np.arange(20_000, dtype=np.uint64)
    run_through(source.push(keys, np.ones((keys.size, DIM), np.float32), 0, source.cut(keys)))

    batch = run_through(source.export(keys))
    run_through(target.put(batch, keep_versions=True))

    target.validate()
    np.testing.assert_array_equal(batch.keys, keys)
    start, found = 0, []
    while start >= 0:
        some, start = target.export_scan(start, 1 << 20)
        found.append(some)
    assert_equal(RowBatch.together(found), batch)
    since = [part.store.version for part in target.parts]
    run_through(target.push(keys[7:8], np.ones((1, DIM), np.float32), 1, target.cut(keys[7:8])))
    start, changed = 0, []
    while start >= 0:
        some, start = target.export_scan(start, 1 << 20, None, since)
        changed += some.keys.tolist()
    assert changed == [7]
    assert run_through(target.remove(keys[:9])) == 9


def test_blocks_come_whole_and_into_another_server_as_copies() -> None:
    spec = TableSpec.dense("d", (64, 1024), optimizer=Adam(lr=0.1), seed=1)
    spec = spec.resolved("async", 0)
    here, there = SlotMap.even(2), 0
    source = Blocks(spec, share_of(spec, lambda keys: here.owner_of(keys) == there))
    target = Blocks(spec, share_of(spec, lambda keys: here.owner_of(keys) == there))
    other = Blocks(spec, share_of(spec, lambda keys: here.owner_of(keys) != there))
    source.push(np.ones(source.shape, np.float32), 0)

    batch, go_on = source.export_scan(0, 1)
    run_through(target.put(batch, keep_versions=True))

    assert go_on == -1
    assert len(batch) == len(source) > 0
    for blocks in (source, target):
        blocks.push(np.ones(source.shape, np.float32), 1)
    pulled = [blocks.pull(np.empty(source.shape, np.float32)) for blocks in (source, target)]
    np.testing.assert_array_equal(pulled[0], pulled[1])
    own = len(other)
    run_through(other.put(batch, keep_versions=True))
    assert (len(other), other.copies) == (own, len(batch))
    assert len(other.export_scan(0, 1)[0]) == own
    stranger = RowBatch(np.zeros(1, np.uint64), *[column[:1] for column in batch.columns()[1:]])
    with pytest.raises(KeyListError, match="none of the blocks of this table"):
        run_through(other.put(stranger, keep_versions=True))


@given(n=st.integers(0, 20), width=st.integers(1, 9), seed=st.integers(0, 2**32 - 1))
def test_the_kernels_do_as_numpy_does(n: int, width: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    words = rng.integers(0, 2**32, (40, width + 3), dtype=np.uint32)
    records = rng.integers(0, 2**63, (40, 3), dtype=np.uint64)
    places = rng.permutation(40)[:n]
    out, versions = np.empty((n, width), np.uint32), np.empty(n, np.int64)
    shows, seen = np.empty(n, np.uint32), np.empty(n, np.uint32)

    batches.take_batch(words, records, places, 2, out, versions, shows, seen)

    np.testing.assert_array_equal(out, words[places, 2 : 2 + width])
    np.testing.assert_array_equal(versions, records[places, 1].astype(np.int64))
    np.testing.assert_array_equal(shows, (records[places, 2] >> np.uint64(32)).astype(np.uint32))
    np.testing.assert_array_equal(seen, records[places, 2].astype(np.uint32))

    new_words, new_records = np.zeros_like(words), np.zeros_like(records)
    batches.put_batch(
        new_words, new_records, places, *[frozen(c) for c in (out, versions, shows, seen)]
    )

    expected, of_record = np.zeros_like(words), np.zeros_like(records)
    expected[places, :width] = out
    of_record[places, 1:] = records[places, 1:]
    np.testing.assert_array_equal(new_words, expected)
    np.testing.assert_array_equal(new_records, of_record)
