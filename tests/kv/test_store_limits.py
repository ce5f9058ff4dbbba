"""Stores with policies and little memory against a dict of rows, whatever is done in what order."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable
from pathlib import Path

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kv.errors import ArenaFullError, MissingKeyError
from kv.initializers import Uniform
from kv.kernels.records import HALF, SECONDS, USE, VERSION
from kv.optimizers import Adagrad
from kv.policies import Admission, AfterSightings, ByAge, ByScore, Expiry, WithProbability
from kv.spec import TableSpec
from kv.store.sparse import SparseStore

DIM = 60  # with Adagrad a row has 512 bytes
LIMIT = 16 << 10  # some 25 of them, 20 when the index has grown
LR, EPS = np.float32(0.5), np.float32(1e-10)
key_sets = st.sets(st.integers(0, 80), max_size=25)


def as_array(keys: Iterable[int]) -> np.ndarray:
    return np.array(sorted(keys), np.uint64)


class Clock:
    """The time, as told."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


def make(
    when_full: str = "refuse",
    limit: int = 0,
    *,
    now: Clock | None = None,
    admission: Admission | None = None,
    expiry: Expiry | None = None,
    missing: str = "init",
    dim: int = DIM,
    parts: int = 1,
    spill_dir: str = "",
) -> SparseStore:
    spec = TableSpec.sparse(
        "t",
        dim,
        optimizer=Adagrad(lr=0.5, initial_accumulator=0.1),
        initializer=Uniform(-1, 1),
        missing=missing,
        seed=1,
        admission=admission,
        expiry=expiry,
        memory_limit=limit,
        when_full=when_full,
    )
    return SparseStore(spec, parts=parts, now=now or Clock(), spill_dir=spill_dir)


class Row:
    """What the model knows of a row."""

    def __init__(self, weights: np.ndarray, version: int, seen: int) -> None:
        self.weights, self.squares = weights, np.full(DIM, 0.1, np.float32)
        self.version, self.shows, self.seen = version, 0, seen

    def decayed(self, now: int, rate: float) -> float:
        return self.shows * math.exp(-rate * max(now - self.seen, 0))

    def see(self, now: int, rate: float, version: int = 0, show: int = 0) -> None:
        self.shows = int(self.decayed(now, rate)) + show if rate else self.shows + show
        self.seen, self.version = now, version or self.version


class LimitMachine(RuleBasedStateMachine):
    """A store that evicts or spills, and whose rows expire, beside a dict from key to row."""

    @initialize(
        when_full=st.sampled_from(["evict", "spill", "spill"]),
        expiry=st.sampled_from([None, ByAge(50), ByScore(1.5, 0.5, 20, 10)]),
    )
    def start(self, when_full: str, expiry: Expiry | None) -> None:
        self.clock = Clock()
        self.when_full, self.expiry = when_full, expiry
        self.store = make(when_full, LIMIT, now=self.clock, expiry=expiry)
        self.unseen, self.rate, self.least = expiry.terms() if expiry else (0.0, 0.0, 0.0)
        self.model: dict[int, Row] = {}
        self.fresh = make()  # says what a key's initial weights are
        self.rng = np.random.default_rng(0)

    def now(self) -> int:
        return int(self.clock.now)

    def new_row(self, key: int) -> Row:
        return Row(self.fresh.pull(as_array({key}))[0], self.store.version, self.now())

    def may_expire(self, row: Row) -> bool:
        is_old = row.seen < self.now() - self.unseen
        return (
            self.expiry is not None
            and is_old
            and row.decayed(self.now(), self.rate) / 256 < (self.least)
        )

    def forget_what_went(self, evicted: int, expired: int) -> None:
        """Rows that left the store by themselves: as many as it counts, and for a good reason."""
        gone = set(self.model) - set(np.concatenate([k for k, _ in self.store.items()] or [[]]))
        after = self.store.stats()
        went = after.evicted - evicted + after.expired - expired
        assert len(gone) <= went, "rows are lost"
        if self.when_full == "spill":
            assert after.evicted == 0
            assert len(gone) == went
            assert all(self.may_expire(self.model[key]) for key in gone)
        for key in gone:
            del self.model[key]

    @rule(chosen=key_sets, create=st.booleans())
    def pull(self, chosen: set[int], create: bool) -> None:
        before = self.store.stats()

        values = self.store.pull(as_array(chosen), create)

        for key, value in zip(sorted(chosen), values, strict=True):
            known = self.model.get(key)
            np.testing.assert_array_equal(value, (known or self.new_row(key)).weights)
            if create:
                self.model.setdefault(key, self.new_row(key)).see(self.now(), self.rate)
        self.forget_what_went(before.evicted, before.expired)

    @rule(chosen=key_sets, shows=st.sampled_from([None, 0.5, 3.0]))
    def push(self, chosen: set[int], shows: float | None) -> None:
        before = self.store.stats()
        grads = self.rng.standard_normal((len(chosen), DIM)).astype(np.float32)
        counts = None if shows is None else np.full(len(chosen), shows, np.float32)

        self.store.push(as_array(chosen), grads, shows=counts)

        expired = self.store.stats().expired - before.expired
        version = self.store.version - bool(expired)
        for key, g in zip(sorted(chosen), grads, strict=True):
            row = self.model.setdefault(key, self.new_row(key))
            row.squares = row.squares + g * g
            row.weights = row.weights - LR * g / (np.sqrt(row.squares) + EPS)
            row.see(self.now(), self.rate, version, int(256 * (1 if shows is None else shows)))
        self.forget_what_went(before.evicted, before.expired)

    @rule(chosen=key_sets)
    def push_rows_that_are_known(self, chosen: set[int]) -> None:
        keys = as_array(chosen & set(self.model))
        rows = self.store.locate(keys)
        if rows is None:
            assert self.store.space.cold is not None
            return
        generation, before = self.store.generation, self.store.stats()

        values = self.store.pull(keys, rows=rows)
        self.store.push(keys, np.zeros((keys.size, DIM), np.float32), rows=rows)

        for key, value in zip(keys.tolist(), values, strict=True):
            np.testing.assert_array_equal(value, self.model[key].weights)
            expired = self.store.generation != generation
            self.model[key].see(self.now(), self.rate, self.store.version - expired, 256)
        self.forget_what_went(before.evicted, before.expired)

    @rule(chosen=key_sets)
    def assign(self, chosen: set[int]) -> None:
        before = self.store.stats()
        values = self.rng.standard_normal((len(chosen), DIM)).astype(np.float32)

        self.store.assign(as_array(chosen), values)

        for key, value in zip(sorted(chosen), values, strict=True):
            row = self.model.setdefault(key, self.new_row(key))
            row.weights, row.squares = value, np.full(DIM, 0.1, np.float32)
            row.see(self.now(), self.rate, self.store.version)
        self.forget_what_went(before.evicted, before.expired)

    @rule(chosen=key_sets)
    def delete(self, chosen: set[int]) -> None:
        known = [key for key in chosen if self.model.pop(key, None)]

        assert self.store.delete(as_array(chosen)) == len(known)

    @rule(seconds=st.integers(1, 60))
    def wait(self, seconds: int) -> None:
        self.clock.now += seconds

    @rule()
    def expire(self) -> None:
        gone = [key for key, row in self.model.items() if self.may_expire(row)]

        assert self.store.expire() == len(gone)

        for key in gone:
            del self.model[key]

    @rule(batch=st.integers(1, 7))
    def reload(self, batch: int) -> None:
        again = make("spill", LIMIT)
        for keys, values in self.store.items(batch):
            assert 0 < keys.size <= batch
            assert keys.tolist() == sorted(keys.tolist())
            again.assign(keys, values)

        assert len(again) == len(self.model)
        keys = as_array(self.model)
        for key, value in zip(keys.tolist(), again.pull(keys, create=False), strict=True):
            np.testing.assert_array_equal(value, self.model[key].weights)

    @invariant()
    def records_and_counts_agree(self) -> None:
        self.store.validate()
        assert len(self.store) == len(self.model) == self.store.stats().rows
        assert self.store.nbytes <= LIMIT
        keys = as_array(self.model)
        keys.flags.writeable = False
        index = self.store.index
        rows, _, _ = index.find(keys)
        for key, row in zip(keys.tolist(), rows.tolist(), strict=True):
            record = index.records[row] if row >= 0 else index.cold[-2 - row]
            known = self.model[key]
            use = (int(record[USE] >> HALF), int(record[USE] & SECONDS))
            assert (int(record[VERSION]), *use) == (known.version, known.shows, known.seen)


LimitMachine.TestCase.settings = settings(max_examples=40, stateful_step_count=15, deadline=None)
test_a_store_with_little_memory_agrees_with_a_dict = LimitMachine.TestCase


def ones(count: int, dim: int = DIM) -> np.ndarray:
    return np.ones((count, dim), np.float32)


def push_in_fives(store: SparseStore, first: int, last: int) -> None:
    for start in range(first, last, 5):
        store.push(as_array(range(start, start + 5)), ones(5))


def test_a_table_four_times_its_limit_trains_like_one_in_memory(tmp_path: Path) -> None:
    rng = np.random.default_rng(4)
    small, large = make("spill", 280 << 10, spill_dir=str(tmp_path)), make()
    for _ in range(40):
        keys = np.unique(rng.integers(0, 2400, 300, dtype=np.uint64))
        grads = rng.standard_normal((keys.size, DIM)).astype(np.float32)
        np.testing.assert_array_equal(small.pull(keys), large.pull(keys))
        small.push(keys, grads)
        large.push(keys, grads)
        small.validate()

    stats = small.stats()
    assert 512 * len(large) > 4 * small.spec.memory_limit
    assert stats.nbytes <= small.spec.memory_limit
    assert stats.rows == len(large)
    assert 0 < stats.hot_rows < stats.rows / 4
    assert stats.hot_hits > 0
    assert stats.hot_misses > 1000
    assert stats.spilled > 1000
    assert stats.disk_nbytes >= (stats.rows - stats.hot_rows) * (512 + 24)
    keys = np.sort(np.concatenate([keys for keys, _ in large.items()]))
    np.testing.assert_array_equal(small.pull(keys), large.pull(keys))
    assert list(tmp_path.iterdir()) == [], "the file has no name that could be left behind"


def test_hot_rows_stay_in_memory_while_others_pass_through() -> None:
    store = make("spill", 300 << 10)
    hot = np.arange(100, dtype=np.uint64)
    store.push(hot, ones(100))
    for start in range(1000, 4000, 100):
        cold = np.arange(start, start + 100, dtype=np.uint64)
        store.push(np.concatenate([hot, cold]), ones(200))

    stats = store.stats()
    assert stats.hot_misses < 100, "of 3000"
    assert stats.spilled > 2000
    assert store.locate(hot) is not None


def test_row_numbers_are_known_until_the_generation_changes() -> None:
    store = make("spill", LIMIT)
    keys = as_array(range(5))
    assert store.locate(keys) is None
    store.push(keys, ones(5))
    rows, generation = store.locate(keys), store.generation
    assert rows is not None
    assert rows.tolist() == [0, 1, 2, 3, 4]

    store.push(as_array(range(10, 15)), ones(5))
    assert store.generation == generation, "rows that are added change no other row's number"

    push_in_fives(store, 20, 60)
    assert store.generation != generation
    assert store.locate(keys) is None, "they are on disk"


@pytest.mark.parametrize("batch", [1, 7, 40])
def test_a_scan_meets_each_row_once_while_rows_go_to_disk_and_come_back(batch: int) -> None:
    store = make("spill", 4 * LIMIT)
    push_in_fives(store, 0, 300)
    rng, met = np.random.default_rng(batch), list[int]()

    for round_, (keys, values) in enumerate(store.items(batch)):
        assert keys.size <= batch
        assert (np.diff(keys.astype(np.int64)) > 0).all()
        np.testing.assert_array_equal(values, store.pull(keys, create=False))
        met += keys.tolist()
        store.pull(as_array(set(rng.integers(0, 300, 5).tolist())))
        if round_ < 80:
            push_in_fives(store, 300 + 5 * round_, 305 + 5 * round_)  # and the index grows

    assert store.stats().spilled > 200
    there = [key for key in met if key < 300]
    assert sorted(there) == list(range(300))
    assert len(set(met)) == len(met)
    store.validate()


def test_values_are_written_where_the_caller_wants_them() -> None:
    store = make()
    keys, out = as_array({3, 4}), np.empty((2, DIM), np.float32)

    assert store.pull(keys, out=out) is out

    np.testing.assert_array_equal(out, store.pull(keys))
    np.testing.assert_array_equal(out, store.pull(keys, rows=store.locate(keys)))


def test_a_full_disk_is_an_error_that_changes_nothing(monkeypatch: pytest.MonkeyPatch) -> None:
    store = make("spill", LIMIT)
    held = as_array(range(24))
    store.assign(held[:12], 2 * ones(12))
    store.assign(held[12:], 3 * ones(12))

    def full(descriptor: int, start: int, count: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "posix_fallocate", full)
    with pytest.raises(ArenaFullError, match=r"No space left on device.*\[server\] spill_dir"):
        push_in_fives(store, 100, 200)
    monkeypatch.undo()

    store.validate()
    values = store.pull(held)
    assert values[0, 0] == 2
    assert values[-1, 0] == 3
    store.push(as_array(range(100, 200)), ones(100))
    store.validate()


def test_a_directory_that_cannot_be_written_to_is_named() -> None:
    with pytest.raises(ArenaFullError, match=r"cannot keep rows on disk in /nonexistent/dir"):
        make("spill", LIMIT, spill_dir="/nonexistent/dir")


def test_a_memory_limit_refuses_and_names_what_to_do() -> None:
    store = make("refuse", LIMIT)
    keys = as_array(range(40))

    with pytest.raises(
        ArenaFullError, match=f"{LIMIT} bytes of memory_limit .* raise it, use more"
    ):
        push_in_fives(store, 0, 40)

    kept = len(store)
    assert kept == 25
    store.validate()
    store.push(keys[:kept], ones(kept))
    store.delete(keys[:5])
    store.push(keys[35:], ones(5))


def test_the_parts_of_a_table_share_its_limit() -> None:
    whole, half = make("evict", 1 << 20), make("evict", 1 << 20, parts=2)

    assert half.limit.most == pytest.approx(whole.limit.most / 2, rel=0.02)


def test_a_limit_too_small_for_a_row_is_refused() -> None:
    with pytest.raises(ArenaFullError, match="no row fits into the 1000 bytes of memory_limit"):
        make("spill", 1000)


def test_an_index_that_fills_the_memory_is_named() -> None:
    store = make("spill", LIMIT)
    with pytest.raises(ArenaFullError, match="keys leave room for"):
        push_in_fives(store, 0, 4000)
    store.validate()


def test_evicted_rows_are_those_not_used_for_long() -> None:
    store = make("evict", LIMIT)
    hot = as_array(range(5))
    for start in range(10, 200, 10):
        store.push(hot, ones(5))
        store.push(as_array(range(start, start + 10)), ones(10))

    assert not store.absent(hot).size
    assert store.stats().evicted <= 200 - len(store), "no hot row went twice"


def test_a_key_is_admitted_with_its_third_push() -> None:
    store = make(admission=AfterSightings(3))
    keys = as_array({1, 2})
    default = make().pull(keys)

    for _ in range(2):
        store.push(keys, ones(2))
        np.testing.assert_array_equal(store.pull(keys), default)
        assert len(store) == 0
    store.push(as_array({1}), ones(1))

    assert store.absent(keys).tolist() == [2]
    assert (store.pull(keys)[0] != default[0]).all()
    np.testing.assert_array_equal(store.pull(keys)[1], default[1])
    stats = store.stats()
    assert (stats.admitted, stats.denied, stats.dropped_gradients) == (1, 4, 4)
    store.assign(as_array({9}), ones(1))
    assert len(store) == 2, "assigning is not asking"


def test_admitted_and_known_keys_of_one_push_get_their_own_gradients() -> None:
    store, plain = make(admission=AfterSightings(2), missing="zeros"), make(missing="zeros")
    grads = np.arange(1, 7, dtype=np.float32)[:, None] * ones(6)
    store.push(as_array({1, 3, 5}), ones(3))
    store.push(as_array({1, 3}), grads[[1, 3]], shows=np.array([2, 5], np.float32))
    store.push(as_array(range(6)), grads, shows=np.arange(6, dtype=np.float32))
    plain.push(as_array({1, 3}), grads[[1, 3]])
    plain.push(as_array({1, 3, 5}), grads[[1, 3, 5]])

    np.testing.assert_array_equal(store.pull(as_array(range(6))), plain.pull(as_array(range(6))))
    assert store.stats().top == [(3, 8.0), (5, 5.0), (1, 3.0)]


def test_the_dice_admit_about_their_share_and_the_same_keys_again() -> None:
    keys = np.arange(20_000, dtype=np.uint64)
    admitted = []
    for _ in range(2):
        store = make(dim=1, admission=WithProbability(0.25))
        store.push(keys, ones(keys.size, 1), clock=0)
        first = len(store)
        store.push(keys, ones(keys.size, 1), clock=1)
        admitted.append(np.sort(np.concatenate([keys for keys, _ in store.items()])))

    assert first == pytest.approx(5000, rel=0.05)
    assert admitted[0].size == pytest.approx(20_000 * (1 - 0.75**2), rel=0.05)
    np.testing.assert_array_equal(*admitted)


def test_a_push_goes_on_with_the_sweep() -> None:
    clock = Clock()
    store = make(dim=1, now=clock, expiry=ByAge(100))
    old = np.arange(10_000, dtype=np.uint64)
    store.push(old, ones(10_000, 1))
    clock.now += 101
    store.push(as_array({7}), ones(1, 1))
    assert len(store) > 9_000, "no push looks at all rows"
    pushes = 0
    while len(store) > 1 and pushes < 1000:
        clock.now += 1
        store.push(as_array({7}), ones(1, 1))
        pushes += 1

    assert 100 < pushes < 300
    assert store.stats().expired == 9_999
    store.validate()


def test_reading_for_training_keeps_a_row_young_and_reading_for_evaluation_does_not() -> None:
    clock = Clock()
    store = make(now=clock, expiry=ByAge(100))
    store.push(as_array({1, 2}), ones(2))
    clock.now += 60
    store.pull(as_array({1}))
    store.pull(as_array({2}), create=False)
    clock.now += 60

    assert store.expire() == 1
    assert store.absent(as_array({1, 2})).tolist() == [2]


def test_a_push_for_keys_that_must_exist_is_refused_as_a_whole() -> None:
    store = make("spill", LIMIT, missing="error")
    keys = as_array(range(30))
    store.assign(keys, ones(30))
    before = store.pull(keys)

    with pytest.raises(MissingKeyError, match="key 77 has no row"):
        store.push(np.append(keys, np.uint64(77)), ones(31))
    with pytest.raises(MissingKeyError, match="key 77 has no row"):
        store.pull(np.append(keys, np.uint64(77)))

    np.testing.assert_array_equal(store.pull(keys), before)


def test_a_push_that_is_refused_leaves_no_trace_in_records() -> None:
    store = make(missing="error", dim=2)
    keys = as_array(range(5))
    store.assign(keys, ones(5, 2))
    before = store.index.records[:5].copy()

    with pytest.raises(MissingKeyError, match="key 77 has no row"):
        store.push(as_array({1, 2, 77}), ones(3, 2))

    np.testing.assert_array_equal(store.index.records[:5], before)
    store.push(keys, ones(5, 2))
    assert (store.index.records[:5, VERSION] > before[:, VERSION]).all()
    assert (store.index.records[:5, USE] >> HALF == 256).all()


def test_known_and_new_rows_of_one_push_are_seen_once() -> None:
    store = make(dim=2)
    store.push(as_array({1, 3}), ones(2, 2))

    store.push(as_array(range(5)), ones(5, 2))
    store.push(as_array({2, 9}), ones(2, 2), shows=np.array([0.5, 3], np.float32))

    keys = as_array({0, 1, 2, 3, 4, 9})
    rows = store.locate(keys)
    records = store.index.records[rows]
    assert (records[:, USE] >> HALF).tolist() == [256, 512, 384, 512, 256, 768]
    assert records[:, VERSION].tolist() == [2, 2, 3, 2, 2, 3]


def test_the_most_used_keys_are_found_a_piece_a_call(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("kv.store.stats.LOOK", 100)
    store = make(dim=1)
    keys = np.arange(1000, dtype=np.uint64)
    store.push(keys, ones(1000, 1), shows=(keys % 97).astype(np.float32))
    for _ in range(11):
        top = store.stats().top

    assert [count for _, count in top] == [96.0] * 10
    assert [key % 97 for key, _ in top] == [96] * 10
    store.delete(as_array(key for key, _ in top))
    assert store.stats().top[0][1] == 95.0


def test_a_dense_tables_blocks_are_numbered_in_the_order_of_creation() -> None:
    store = make()
    keys = np.sort(np.random.default_rng(0).integers(0, 2**63, 5000, dtype=np.uint64))

    store.create(keys)

    rows = store.locate(keys)
    assert rows is not None
    np.testing.assert_array_equal(rows, np.arange(keys.size))
