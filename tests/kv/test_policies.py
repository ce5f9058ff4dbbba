"""Admission and expiry: their settings, and how a definition carries them."""

from __future__ import annotations

import math
from typing import Any

import msgpack
import numpy as np
import pytest

from kv.engine import Engine
from kv.errors import ArenaFullError, SettingError, TableConflictError
from kv.local import LocalCluster
from kv.policies import Admission, AfterSightings, ByAge, ByScore, Expiry, WithProbability
from kv.spec import TableSpec
from kv.store import arena
from kv.store.lifecycle import HALVE_AFTER, Counter, Dice, gate_of
from kv.store.sparse import SparseStore


def test_a_definition_carries_its_policies() -> None:
    spec = TableSpec.sparse(
        "user",
        8,
        admission=AfterSightings(3),
        expiry=ByScore(0.5),
        memory_limit=1 << 30,
        when_full="spill",
    )

    arrived = TableSpec.from_dict(msgpack.unpackb(msgpack.packb(spec.to_dict())))

    assert arrived == spec
    other = TableSpec.sparse("user", 8, expiry=ByAge(60))
    assert "admission AfterSightings(" in spec.difference(other)
    assert "when_full spill here, refuse there" in spec.difference(other)


def test_a_score_falls_by_its_decay_every_period() -> None:
    unseen, rate, least = ByScore(0.5, decay=0.9, period=100, grace=7).terms()

    assert math.exp(-rate * 100) == pytest.approx(0.9)
    assert (unseen, least) == (7, 0.5)
    assert ByAge(60).terms() == (60, 0.0, math.inf)


@pytest.mark.parametrize(
    ("make", "text"),
    [
        (lambda: AfterSightings(0), "sightings must be a whole number from 1 to 250, not 0"),
        (lambda: AfterSightings(1.5), "sightings must be a whole number"),
        (lambda: AfterSightings(2, expected=0), "expected must be 1 to 2^34"),
        (lambda: WithProbability(0), "p must be above 0 and at most 1"),
        (lambda: ByAge(10**400), "seconds must be a finite number"),
        (lambda: ByAge(0), "seconds must be above 0"),
        (lambda: ByScore(0), "threshold must be above 0"),
        (lambda: ByScore(1, decay=1), "decay must be between 0 and 1"),
        (lambda: ByScore(1, period=0), "period must be above 0"),
        (lambda: ByScore(1, grace=-1), "grace must be 0 or more"),
        (lambda: Admission.by_name("after_sighting"), "did you mean after_sightings?"),
        (lambda: Expiry.by_name("by_age"), "expiry by_age: seconds must be given"),
        (lambda: sparse(admission=ByAge(3)), "admission must be one of kv.policies, not ByAge"),
        (lambda: sparse(expiry=0.5), "expiry must be one of kv.policies, not 0.5"),
        (lambda: sparse(missing="error", admission=AfterSightings(2)), "with missing=error none"),
        (lambda: sparse(memory_limit=-1), "memory_limit must be 0 or more, not -1"),
        (lambda: sparse(memory_limit=1 << 64), "memory_limit must fit 64 bits"),
        (lambda: sparse(memory_limit=0.5), "memory_limit must be an integer, not 0.5"),
        (lambda: sparse(memory_limit="1 Gb of it"), "memory_limit: expected a size such as"),
        (lambda: sparse(memory_limit="7 parsec"), "memory_limit: unknown unit 'parsec'"),
        (lambda: sparse(when_full="spill"), "when_full=spill needs a memory_limit, such as 1GiB"),
        (lambda: sparse(when_full="drop"), "when_full must be refuse or evict or spill, not 'drop"),
        (lambda: TableSpec("a", "dense", 16, (3,), memory_limit=9), "a dense table is always who"),
        (lambda: TableSpec.from_dict({**sparse().to_dict(), "expiry": 3}), "a name is missing in"),
    ],
)
def test_wrong_settings_are_named(make: Any, text: str) -> None:
    with pytest.raises(SettingError) as caught:
        make()

    assert text in str(caught.value)


def test_tables_of_a_local_cluster_take_policies() -> None:
    worker = LocalCluster(1).worker(0)
    table = worker.sparse_table(
        "t",
        4,
        missing="zeros",
        admission=AfterSightings(2),
        expiry=ByAge(3600),
        memory_limit=1 << 20,
        when_full="evict",
    )
    for _ in range(2):
        assert len(table) == 0
        table.push([1, 2, 3], np.ones((3, 4)))

    assert len(table) == 3
    with pytest.raises(TableConflictError, match="memory_limit 1048576 here, 0 there"):
        worker.sparse_table("t", 4, missing="zeros")


def sparse(**settings: Any) -> TableSpec:
    return TableSpec.sparse("a", 4, **settings)


def test_the_counters_are_halved_so_that_they_do_not_fill_up() -> None:
    counter = Counter("t", AfterSightings(2, expected=100), seed=1, parts=1)
    rng = np.random.default_rng(0)
    for _ in range(200):
        counter.admit(rng.integers(0, 2**63, HALVE_AFTER * 10, np.uint64), 0)

    strangers = rng.integers(0, 2**63, 1000, np.uint64)
    assert counter.admit(strangers[:100], 0).mean() < 0.5


def test_parts_share_the_counters() -> None:
    policy = AfterSightings(2, expected=64_000)

    assert Counter("t", policy, 0, parts=1).nbytes == 512_000
    assert Counter("t", policy, 0, parts=4).nbytes == 128_000


def test_counters_that_do_not_fit_into_memory_are_refused_by_name(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(arena, "physical_memory", lambda: 1 << 30)
    with pytest.raises(ArenaFullError, match=r"table t: .*after_sightings.*lower `expected`"):
        Counter("t", AfterSightings(2, expected=2**34), 0, parts=1)


@pytest.mark.parametrize("expiry", [ByAge(1e30), ByScore(1e30, grace=1e30)])
def test_rows_that_may_be_older_than_time_stay(expiry: Expiry) -> None:
    store = SparseStore(sparse(expiry=expiry))

    store.push(np.arange(9, dtype=np.uint64), np.ones((9, store.dim), np.float32))

    assert store.expire() == 0


def test_every_admission_has_a_gate() -> None:
    assert isinstance(gate_of("t", AfterSightings(2), 0, 1), Counter)
    assert isinstance(gate_of("t", WithProbability(0.5), 0, 1), Dice)
    with pytest.raises(TypeError, match="Admission has no gate"):
        gate_of("t", Admission(), 0, 1)


def test_the_same_clock_and_seed_throw_the_same_dice() -> None:
    keys = np.arange(1000, dtype=np.uint64)
    first, again, other = (
        Dice(WithProbability(0.3), 5),
        Dice(WithProbability(0.3), 5),
        Dice(WithProbability(0.3), 6),
    )

    np.testing.assert_array_equal(first.admit(keys, 7), again.admit(keys, 7))
    assert (first.admit(keys, 8) != first.admit(keys, 7)).any()
    assert (other.admit(keys, 7) != first.admit(keys, 7)).any()
    assert Dice(WithProbability(1), 5).admit(keys, 0).all()


@pytest.mark.parametrize("parts", [1, 3])
def test_a_server_with_parts_spills_and_reads_back(parts: int) -> None:
    small = TableSpec.sparse("t", 60, memory_limit=600 << 10, when_full="spill")
    large = TableSpec.sparse("t", 60)
    engines = [Engine(1, parts=parts), Engine(1)]
    for engine, spec in zip(engines, (small, large), strict=True):
        engine.define(spec)
    rng = np.random.default_rng(0)
    for clock in range(12):
        keys = np.unique(rng.integers(0, 9000, 3000, np.uint64))
        grads = rng.standard_normal((keys.size, 60)).astype(np.float32)
        pulled = []
        for engine in engines:
            pulled.append(engine.pull(0, keys))
            engine.push(0, 0, clock, keys, grads)
        np.testing.assert_array_equal(*pulled)

    assert 256 * engines[1].size(0) > 3 * small.memory_limit
    assert engines[0].size(0) == engines[1].size(0)
    for engine in engines:
        engine.validate()


def test_a_full_table_of_an_engine_names_its_limit() -> None:
    engine = Engine(1, parts=2)
    engine.define(TableSpec.sparse("t", 60, memory_limit=64 << 10))
    keys = np.arange(1000, dtype=np.uint64)

    with pytest.raises(ArenaFullError, match="32768 bytes of memory_limit that this part of"):
        engine.push(0, 0, 0, keys, np.ones((1000, 60), np.float32))

    assert engine.size(0) == 0


def test_a_memory_limit_may_be_written_with_its_unit() -> None:
    assert sparse(memory_limit="1GiB") == sparse(memory_limit=1 << 30)
