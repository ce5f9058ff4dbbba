"""The store against a dict of rows, whatever is done to it and in whatever order."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import (
    RuleBasedStateMachine,
    initialize,
    invariant,
    rule,
)

import kv.store.space
from kv.errors import ArenaFullError, MissingKeyError, ScanError
from kv.initializers import Constant, Normal, Uniform
from kv.kernels.records import VERSION
from kv.optimizers import SGD, Adagrad, Adam, Momentum, Optimizer
from kv.placement import NUM_SLOTS, slot_of
from kv.spec import TableSpec
from kv.store import arena
from kv.store.formats import stride_of
from kv.store.sparse import SparseStore

LAST = 2**64 - 1
DIM = 3
key_sets = st.sets(st.one_of(st.integers(0, 25), st.integers(LAST - 25, LAST)), max_size=20)


def as_array(keys: set[int]) -> np.ndarray:
    return np.array(sorted(keys), np.uint64)


def make(missing: str = "init", optimizer: Optimizer | None = None, **options: int) -> SparseStore:
    spec = TableSpec.sparse(
        "t",
        DIM,
        optimizer=optimizer or Adagrad(lr=0.5, initial_accumulator=0.1),
        initializer=Uniform(-1, 1),
        missing=missing,
        seed=1,
    )
    return SparseStore(spec, **options)


class StoreMachine(RuleBasedStateMachine):
    """A store beside a dict from key to (weights, sums of squares, version)."""

    @initialize(missing=st.sampled_from(["init", "zeros", "error"]))
    def start(self, missing: str) -> None:
        self.missing = missing
        self.store = make(missing, reserve=0)
        self.model: dict[int, list[np.ndarray | int]] = {}
        self.fresh = make()  # says what a key's initial weights are
        self.rng = np.random.default_rng(0)

    def initial(self, key: int) -> np.ndarray:
        return self.fresh.pull(as_array({key}), create=True)[0]

    def new_row(self, key: int) -> list[np.ndarray | int]:
        return [self.initial(key), np.full(DIM, 0.1, np.float32), self.store.version]

    def numbers(self, count: int) -> np.ndarray:
        return self.rng.standard_normal((count, DIM)).astype(np.float32)

    @rule(chosen=key_sets, create=st.booleans())
    def pull(self, chosen: set[int], create: bool) -> None:
        unknown = [key for key in sorted(chosen) if key not in self.model]
        if unknown and self.missing == "error":
            with pytest.raises(MissingKeyError, match=f"key {unknown[0]} has no row"):
                self.store.pull(as_array(chosen), create)
            return

        values = self.store.pull(as_array(chosen), create)

        if create and self.missing == "init":
            self.model.update((key, self.new_row(key)) for key in unknown)
        default = np.zeros(DIM) if self.missing == "zeros" else None
        for key, value in zip(sorted(chosen), values, strict=True):
            absent = self.initial(key) if default is None else default
            np.testing.assert_array_equal(value, self.model.get(key, [absent])[0])

    @rule(chosen=key_sets)
    def push(self, chosen: set[int]) -> None:
        grads = self.numbers(len(chosen))
        unknown = [key for key in chosen if key not in self.model]
        if unknown and self.missing == "error":
            before = self.store.version
            with pytest.raises(MissingKeyError):
                self.store.push(as_array(chosen), grads)
            assert self.store.version == before
            return

        self.store.push(as_array(chosen), grads)

        lr, eps = np.float32(0.5), np.float32(1e-10)
        for key, g in zip(sorted(chosen), grads, strict=True):
            weights, squares, _ = self.model.get(key) or self.new_row(key)
            squares = squares + g * g
            weights = weights - lr * g / (np.sqrt(squares) + eps)
            self.model[key] = [weights, squares, self.store.version]

    @rule(chosen=key_sets)
    def assign(self, chosen: set[int]) -> None:
        values = self.numbers(len(chosen))

        self.store.assign(as_array(chosen), values)

        for key, value in zip(sorted(chosen), values, strict=True):
            self.model[key] = [value, np.full(DIM, 0.1, np.float32), self.store.version]

    @rule(chosen=key_sets)
    def delete(self, chosen: set[int]) -> None:
        known = [key for key in chosen if self.model.pop(key, None)]

        assert self.store.delete(as_array(chosen)) == len(known)

    @rule(most=st.integers(1, 7))
    def pack(self, most: int) -> None:
        self.store.pack(most, quiet=0)

    @rule()
    def pack_all(self) -> None:
        while self.store.pack(3, quiet=0):
            self.store.validate()

        assert self.store.space.numbers.top == len(self.model)

    @rule(batch=st.integers(1, 7))
    def read_everything(self, batch: int) -> None:
        seen: dict[int, np.ndarray] = {}
        for keys, values in self.store.items(batch):
            assert 0 < keys.size <= batch
            assert keys.tolist() == sorted(set(keys.tolist()))
            seen.update(zip(keys.tolist(), values, strict=True))

        assert seen.keys() == self.model.keys()
        for key, value in seen.items():
            np.testing.assert_array_equal(value, self.model[key][0])

    @invariant()
    def versions_and_counts_agree(self) -> None:
        self.store.validate()
        assert len(self.store) == len(self.model)
        keys = as_array(set(self.model))
        keys.flags.writeable = False
        rows = self.store.locate(keys)
        assert rows is not None
        expected = [self.model[key][2] for key in keys.tolist()]
        assert self.store.index.records[rows, VERSION].tolist() == expected


StoreMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=16, deadline=None)


class TestTheStoreAgreesWithADict(StoreMachine.TestCase):  # type: ignore[misc, name-defined]
    @pytest.fixture(autouse=True)
    def few_places_at_a_time(self, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr(kv.store.space, "WINDOW", 2)


def test_packing_gives_the_memory_of_removed_rows_back() -> None:
    spec = TableSpec.sparse("t", 16, optimizer=SGD(), seed=1)
    store = SparseStore(spec)
    keys = np.arange(600_000, dtype=np.uint64)
    kept = keys[slot_of(keys) >= 256]
    store.pull(keys)
    expected, before = store.pull(kept), store.nbytes
    gone = np.arange(NUM_SLOTS) < 256

    start, turns = 0, 0
    while start < store.top:
        start = store.remove_slots(gone, start, 4096)
    store.pack(4096, quiet=0)
    memory = resident()
    while store.pack(4096, quiet=0):
        turns += 1

    assert resident() < memory - (before - store.nbytes) + 3 * arena.HUGE_PAGE
    store.validate()
    assert turns > 5  # each moves 4096 rows or fewer
    np.testing.assert_array_equal(store.pull(kept, create=False), expected)
    index = store.index.nbytes
    assert (store.nbytes - index) / (before - index) == len(kept) / len(keys)


def test_rows_that_come_while_others_are_packed_take_free_places() -> None:
    store = make(optimizer=SGD())
    keys = np.arange(5000, dtype=np.uint64)
    store.pull(keys)
    store.delete(np.ascontiguousarray(keys[::2]))
    rng = np.random.default_rng(0)

    come = 10_000
    while store.pack(100, quiet=0):
        count = int(rng.integers(1, 30))
        store.pull(np.arange(come, come + count, dtype=np.uint64))
        come += count
        store.delete(np.sort(rng.choice(keys[1::2], 10, replace=False)))
        store.validate()
        assert store.space.numbers.top <= 5000


def test_a_scan_that_slept_while_rows_were_packed_is_told_so() -> None:
    store = make(optimizer=SGD())
    keys = np.arange(100, dtype=np.uint64)
    store.pull(keys)
    _, _, place = store.scan(0, 30)
    store.delete(np.ascontiguousarray(keys[:50]))

    assert store.pack(100, quiet=60) is None  # not yet: somebody scans
    assert store.scan(place, 30)[0].size == 10  # 50 to 59
    while store.pack(100, quiet=0):
        pass

    with pytest.raises(ScanError, match="scan again"):
        store.scan(place, 30)
    assert store.scan(0, 100)[0].tolist() == list(range(50, 100))


@pytest.mark.parametrize("optimizer", [SGD(), Momentum(), Adagrad(), Adam()], ids=lambda o: o.name)
def test_the_order_of_arrival_changes_no_row(optimizer: Optimizer) -> None:
    rng = np.random.default_rng(0)
    keys = np.unique(rng.integers(0, LAST, 300, dtype=np.uint64))
    grads = rng.standard_normal((keys.size, DIM)).astype(np.float32)
    straight, mixed = make(optimizer=optimizer), make(optimizer=optimizer)

    straight.pull(keys)
    straight.push(keys, grads)
    for half in (slice(1, None, 2), slice(0, None, 2)):
        mixed.push(keys[half], grads[half])

    np.testing.assert_array_equal(straight.pull(keys), mixed.pull(keys))


def test_reading_for_evaluation_makes_no_rows_and_reads_what_training_would() -> None:
    store = make()
    keys = as_array({0, 5, LAST})
    store.push(as_array({5}), np.ones((1, DIM), np.float32))
    version = store.version

    before = store.pull(keys, create=False)

    assert (len(store), store.version) == (1, version)
    np.testing.assert_array_equal(store.pull(keys, create=True), before)
    assert len(store) == 3


def test_rows_given_out_again_start_afresh() -> None:
    store = make(optimizer=Adam())
    keys = as_array(set(range(10)))
    initial = store.pull(keys)
    store.push(keys, np.ones((10, DIM), np.float32))
    first = store.pull(keys)

    store.delete(keys)
    store.push(keys, np.ones((10, DIM), np.float32))

    np.testing.assert_array_equal(store.pull(keys), first)
    assert store.top == 10, "freed rows were not used again"
    assert (first != initial).all()


def test_assigning_resets_the_optimizers_state() -> None:
    store = make(optimizer=Momentum(lr=1.0, momentum=0.5))
    keys, ones = as_array({7}), np.ones((1, DIM), np.float32)
    store.push(keys, ones)

    store.assign(keys, 5 * ones)
    store.push(keys, ones)

    np.testing.assert_array_equal(store.pull(keys), 4 * ones)


def test_read_only_and_scattered_arrays_are_taken() -> None:
    store = make(optimizer=SGD(lr=1.0))
    keys = np.array([1, 99, 2, 99, 3], np.uint64)[::2]
    wide = np.arange(18, dtype=np.float32).reshape(3, 6)[:, ::2]
    misaligned = np.frombuffer(b"\0" + wide.tobytes(), np.float32, offset=1).reshape(3, 3)
    assert not misaligned.flags.aligned

    store.assign(keys, misaligned)
    store.push(keys, wide)

    assert (store.pull(keys) == 0).all()
    np.testing.assert_array_equal(wide, [[0, 2, 4], [6, 8, 10], [12, 14, 16]])


def test_a_full_arena_refuses_new_rows_and_keeps_the_old(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena, "LEAST", 16 * 8)
    store = make(reserve=0)  # rows of 8 floats: room for 4
    assert store.capacity == 4
    store.pull(as_array({1, 2, 3}))
    kept = store.pull(as_array({1, 2, 3}))
    version, records = store.version, store.index.records.copy()

    with pytest.raises(ArenaFullError, match="5 rows of 32 bytes do not fit into the 4"):
        store.push(as_array({3, 4, 5}), np.ones((3, DIM), np.float32))

    store.validate()
    assert (len(store), store.version) == (3, version)
    np.testing.assert_array_equal(store.index.records, records)
    np.testing.assert_array_equal(store.pull(as_array({1, 2, 3})), kept)
    store.delete(as_array({1, 2}))
    store.pull(as_array({4, 5, 6}))  # freed rows make room
    store.validate()


def test_less_address_space_is_taken_where_the_system_grants_no_more(
    monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    whole = arena.reserve

    def limited(shape: tuple[int, ...], dtype: object) -> np.ndarray:
        if np.prod(shape, dtype=np.int64) * np.dtype(dtype).itemsize > 1 << 30:
            raise OSError(12, "Cannot allocate memory")
        return whole(shape, dtype)

    monkeypatch.setattr(arena, "reserve", limited)

    store = make(reserve=1 << 40)

    assert store.capacity * 4 * store.stride <= 1 << 30
    assert "cannot be reserved" in caplog.text
    store.pull(as_array({1}))


def test_more_rows_than_memory_are_refused_at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(arena, "physical_memory", lambda: 1 << 20)

    with pytest.raises(ArenaFullError, match="40000 rows of 32 bytes are more than this machine"):
        make(capacity=40_000)


def test_a_table_that_gets_no_address_space_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(shape: tuple[int, ...], dtype: object) -> np.ndarray:
        raise OSError(12, "Cannot allocate memory")

    monkeypatch.setattr(arena, "reserve", refused)

    with pytest.raises(ArenaFullError, match="see ulimit -v"):
        make()


def resident() -> int:
    """Bytes of this process that are in memory."""
    return int(Path("/proc/self/statm").read_text().split()[1]) * mmap.PAGESIZE


def test_reserved_memory_is_zero_aligned_and_taken_only_by_touch() -> None:
    before = resident()

    array = arena.reserve((1 << 33,), np.float32)  # 32 GiB
    array[1 << 32] = 1.0

    assert resident() - before < 64 << 20
    assert array.ctypes.data % mmap.PAGESIZE == 0
    assert array[(1 << 32) - 1000 : 1 << 32].sum() == 0.0


@pytest.mark.parametrize(
    ("floats", "stride"),
    [(1, 1), (2, 2), (3, 4), (8, 8), (9, 16), (16, 16), (17, 20), (25, 32), (33, 36), (128, 128)],
)
def test_rows_are_aligned_where_that_costs_little(floats: int, stride: int) -> None:
    assert stride_of(floats) == stride


def test_constant_rows_and_wide_ones_work() -> None:
    spec = TableSpec.sparse("w", 4096, initializer=Constant(2.0), optimizer=SGD(lr=1.0), seed=0)
    store = SparseStore(spec)
    keys = as_array({0, LAST})

    store.push(keys, np.ones((2, 4096), np.float32))

    assert (store.pull(keys) == 1.0).all()
    assert store.nbytes >= 2 * 4096 * 4
    assert "rows=2" in repr(store)


def test_normal_rows_differ_between_seeds_and_names() -> None:
    keys = as_array({1, 2})
    values = [
        SparseStore(TableSpec.sparse(name, 4, initializer=Normal(), seed=seed)).pull(keys)
        for name, seed in [("a", 0), ("b", 0), ("a", 1)]
    ]

    assert len(np.unique(values)) == 3 * 8
