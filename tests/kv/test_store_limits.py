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
from kv.optimizers import SGD, Adagrad
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
