"""The engine's contract: what it takes, what it refuses, and that a refusal changes nothing."""

from __future__ import annotations

import itertools
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv.engine import Engine
from kv.errors import (
    ArenaFullError,
    KeyListError,
    KVError,
    LatePushError,
    MissingKeyError,
    NonFiniteError,
    RankError,
    SettingError,
    TableConflictError,
    UnknownTableError,
    UnsortedKeysError,
    ValueShapeError,
)
from kv.initializers import Zeros
from kv.optimizers import SGD, Adagrad, Adam, Momentum, Nesterov, Optimizer
from kv.placement import SlotMap
from kv.spec import TableSpec, dense_keys

LAST = 2**64 - 1
OPTIMIZERS = [SGD(lr=0.1), Momentum(lr=0.1), Nesterov(lr=0.1), Adagrad(lr=0.1), Adam(lr=0.1)]


def keys_of(*keys: int) -> np.ndarray:
    return np.array(keys, np.uint64)


def ones(n: int, dim: int = 2) -> np.ndarray:
    return np.ones((n, dim), np.float32)


def spec(name: str = "t", mode: str | None = None, **options: object) -> TableSpec:
    defaults = {"optimizer": SGD(lr=1.0), "initializer": Zeros(), "mode": mode}
    return TableSpec.sparse(name, 2, **{**defaults, **options})


def state(engine: Engine) -> list[object]:
    """Everything a refused call must not change."""
    engine.validate()
    return [
        (
            table.mode.clock,
            table.store.version,
            [(keys.tolist(), values.tolist()) for keys, values in table.store.items()],
            {n: sorted(r) for n, r in getattr(table.mode, "rounds", {}).items()},
        )
        for table in engine.tables
    ]


def test_a_table_is_made_once_and_found_again() -> None:
    engine = Engine(1)

    number = engine.define(spec("a"))

    assert engine.define(spec("b")) != number
    assert engine.define(spec("a", mode="async", seed=0)) == number  # the job's own, spelt out
    assert engine.number_of("a") == number


def test_two_definitions_that_disagree_are_both_named() -> None:
    engine = Engine(1)
    engine.define(spec("a", optimizer=SGD(lr=0.1)))

    with pytest.raises(TableConflictError) as caught:
        engine.define(spec("a", optimizer=Adagrad(lr=0.1), mode="sync"))

    for part in ("table a", "SGD(lr=0.1)", "Adagrad(lr=0.1", "mode async here, sync there"):
        assert part in str(caught.value)


@pytest.mark.parametrize("number", [-1, 1, 99])
def test_an_unknown_table_is_refused(number: int) -> None:
    engine = Engine(1)
    engine.define(spec())

    with pytest.raises(UnknownTableError, match="define it first"):
        engine.pull(number, keys_of(1))
    with pytest.raises(UnknownTableError, match="define it first"):
        engine.number_of("nowhere")


def test_an_unknown_mode_is_refused() -> None:
    with pytest.raises(SettingError, match="unknown name 'bsp'; did you mean ssp"):
        Engine(1, "bsp")


BAD_KEYS = [
    (np.array([1, 2]), KeyListError, "must be uint64"),
    (np.array([[1]], np.uint64), KeyListError, "of shape (1, 1)"),
    (keys_of(1, 1), UnsortedKeysError, "key 1 at position 1 follows 1"),
    (keys_of(0, LAST, 5), UnsortedKeysError, f"key 5 at position 2 follows {LAST}"),
]
BAD_GRADS = [
    (ones(1), ValueShapeError, "gradients have shape (1, 2), not (2, 2)"),
    (ones(2, 3), ValueShapeError, "gradients have shape (2, 3), not (2, 2)"),
    (np.ones((2, 2), complex), ValueShapeError, "real numbers"),
    (np.array([[0, 0], [0, np.nan]], "f4"), NonFiniteError, "of key 9 is nan"),
    (np.array([[np.inf, 0], [0, 0]], "f4"), NonFiniteError, "of key 3 is inf"),
    (np.array([[1e300, 0], [0, 0]]), NonFiniteError, "of key 3 is inf"),
]
BAD_PUSHES = [(0, 0, k, ones(k.shape[0]), e, t) for k, e, t in BAD_KEYS] + [
    *((0, 0, keys_of(3, 9), g, e, t) for g, e, t in BAD_GRADS),
    (2, 0, keys_of(3, 9), ones(2), RankError, "no worker 2"),
    (1, 0, keys_of(3, 9), ones(2), RankError, "worker 1 has finished"),
]


@pytest.mark.parametrize("mode", ["async", "sync"])
@pytest.mark.parametrize(("rank", "clock", "keys", "grads", "error", "text"), BAD_PUSHES)
def test_a_wrong_push_is_refused_and_changes_nothing(
    mode: str,
    rank: int,
    clock: int,
    keys: np.ndarray,
    grads: np.ndarray,
    error: type[KVError],
    text: str,
) -> None:
    engine = Engine(2, mode)
    table, other = engine.define(spec()), engine.define(spec("other"))
    engine.push(table, 0, 0, keys_of(1), ones(1))
    engine.finish(1)
    before = state(engine)

    with pytest.raises(error) as alone:
        engine.push(table, rank, clock, keys, grads)
    with pytest.raises(error):
        engine.push_many(rank, clock, [(other, keys_of(5), ones(1)), (table, keys, grads)])

    assert text in str(alone.value)
    assert state(engine) == before


@pytest.mark.parametrize(("keys", "error", "text"), BAD_KEYS)
def test_wrong_keys_are_refused_by_every_call(
    keys: np.ndarray, error: type[KVError], text: str
) -> None:
    engine = Engine(1)
    table = engine.define(spec())
    before = state(engine)

    for call in (
        lambda: engine.pull(table, keys),
        lambda: engine.delete(table, keys),
        lambda: engine.assign(table, keys, ones(keys.shape[0])),
    ):
        with pytest.raises(error) as caught:
            call()
        assert text in str(caught.value)

    assert state(engine) == before


def test_assigned_values_must_be_finite() -> None:
    engine = Engine(1)
    table = engine.define(spec())

    with pytest.raises(NonFiniteError, match="value of key 4 is nan"):
        engine.assign(table, keys_of(4), np.full((1, 2), np.nan, np.float32))

    assert engine.size(table) == 0


def test_an_async_push_is_seen_by_the_next_pull_whoever_asks() -> None:
    engine = Engine(2)
    table = engine.define(spec())

    assert engine.push(table, 1, 0, keys_of(0, LAST), ones(2)) == 1
    assert engine.push(table, 1, 0, keys_of(), ones(0)) == 2  # an empty push counts, too

    assert engine.may_pull(table, 0, 5)
    np.testing.assert_array_equal(
        engine.pull(table, keys_of(0, 1, LAST)), [[-1, -1], [0, 0], [-1, -1]]
    )
    assert engine.size(table) == 3


def test_a_sync_pull_waits_for_the_round_it_needs() -> None:
    engine = Engine(2, "sync")
    table = engine.define(spec())
    engine.push(table, 0, 0, keys_of(1), ones(1))
    engine.push(table, 1, 0, keys_of(1), ones(1))

    assert not engine.step(0, 0)
    assert not engine.may_pull(table, 0, 1)
    assert engine.waits_for(table, 0, 1) == [1]
    assert engine.may_pull(table, 1, 0)
    np.testing.assert_array_equal(engine.pull(table, keys_of(1)), [[0, 0]])

    assert engine.step(1, 0)
    assert engine.may_pull(table, 0, 1)
    assert engine.clock(table) == 1
    np.testing.assert_array_equal(engine.pull(table, keys_of(1)), [[-2, -2]])


def test_a_late_push_is_refused_for_all_its_tables() -> None:
    engine = Engine(2)
    rounds, free = engine.define(spec("rounds", "sync")), engine.define(spec("free", "async"))
    engine.step(0, 0)
    before = state(engine)

    with pytest.raises(LatePushError, match="table rounds: worker 0 pushed for step 0"):
        engine.push_many(0, 0, [(free, keys_of(1), ones(1)), (rounds, keys_of(1), ones(1))])

    assert state(engine) == before


def test_a_step_said_twice_counts_once() -> None:
    engine = Engine(2, "sync")
    table = engine.define(spec())
    for _ in range(3):
        engine.step(0, 0)

    assert engine.clock(table) == 0
    assert engine.step(1, 0)
    assert not engine.step(1, 0)
    assert engine.clock(table) == 1


def test_finishing_advances_the_clocks_of_those_who_go_on() -> None:
    engine = Engine(3, "sync")
    table = engine.define(spec())
    engine.step(0, 0)
    engine.step(0, 1)
    engine.finish(2)

    assert engine.finish(1)
    assert engine.clock(table) == 2
    assert not engine.finish(1)
    assert not engine.finish(0)


def test_a_steps_updates_come_in_the_order_of_their_rounds() -> None:
    engine = Engine(2, "sync")
    table = engine.define(spec(optimizer=Momentum(lr=1.0, momentum=0.5)))
    for step, value in enumerate((1.0, 10.0)):
        engine.push(table, 0, step, keys_of(1), ones(1) * value)
        engine.step(0, step)

    engine.finish(1)

    # v: 1, then 0.5 + 10; w: -1, then -11.5
    np.testing.assert_array_equal(engine.pull(table, keys_of(1)), [[-11.5, -11.5]])


@pytest.mark.parametrize("end", [lambda e: e.step(1, 0), lambda e: e.finish(1)])
def test_a_round_without_room_is_dropped_whole_and_the_clocks_of_all_tables_move(
    end: Callable[[Engine], bool],
) -> None:
    engine = Engine(2, "sync")
    small = engine.define(spec("small", memory_limit=4000))
    other = engine.define(spec("other"))
    engine.assign(small, keys_of(1), ones(1))
    many = np.arange(1000, dtype=np.uint64)
    engine.push_many(0, 0, [(small, many, ones(1000)), (other, many, ones(1000))])
    engine.step(0, 0)

    with pytest.raises(ArenaFullError, match=r"table small: .*\(when_full\)"):
        end(engine)

    assert engine.clock(small) == engine.clock(other) == 1
    assert engine.size(small) == 1
    np.testing.assert_array_equal(engine.pull(small, keys_of(1)), ones(1))
    np.testing.assert_array_equal(engine.pull(other, keys_of(1)), -ones(1))
    engine.validate()


@pytest.mark.parametrize("optimizer", OPTIMIZERS, ids=lambda o: o.name)
def test_a_round_has_one_result_to_the_bit_in_any_order_of_arrival(optimizer: Optimizer) -> None:
    rng = np.random.default_rng(4)
    pushes = []
    for rank in range(3):
        keys = np.sort(rng.choice(30, 20, replace=False)).astype(np.uint64)
        pushes.append((rank, keys, rng.standard_normal((20, 2)).astype(np.float32)))
    alone = Engine(1, "sync")
    expected = alone.define(spec(optimizer=optimizer))
    everything = np.arange(30, dtype=np.uint64)
    total = np.zeros((30, 2), np.float32)
    for _, keys, grads in pushes:  # one process that adds the parts in rank order
        total[keys.astype(np.int64)] += grads
    touched = np.unique(np.concatenate([keys for _, keys, _ in pushes]))
    alone.push(expected, 0, 0, touched, total[touched.astype(np.int64)])
    alone.step(0, 0)

    for order in itertools.permutations(pushes):
        engine = Engine(3, "sync")
        table = engine.define(spec(optimizer=optimizer))
        for rank, keys, grads in order:
            engine.push(table, rank, 0, keys, grads)
        for rank, _, _ in reversed(order):
            engine.step(rank, 0)

        assert (
            engine.pull(table, everything).tobytes() == alone.pull(expected, everything).tobytes()
        )


@given(st.lists(st.integers(0, 4), min_size=2, max_size=4))
def test_workers_with_unequal_numbers_of_steps_never_block(steps: list[int]) -> None:
    engine = Engine(len(steps), "sync")
    table = engine.define(spec())
    done = [0] * len(steps)
    for _ in range(2 * sum(steps) + 2 * len(steps)):
        for rank, count in enumerate(steps):
            if done[rank] > count or not engine.may_pull(table, rank, done[rank]):
                continue
            if done[rank] == count:
                engine.finish(rank)
            else:
                engine.pull(table, keys_of(1))
                engine.push(table, rank, done[rank], keys_of(1), ones(1))
                engine.step(rank, done[rank])
            done[rank] += 1

    assert done == [count + 1 for count in steps]
    assert engine.pull(table, keys_of(1))[0, 0] == -sum(steps)
    assert engine.clock(table) == max(steps)


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_table_without_missing_rows_takes_only_known_keys(mode: str) -> None:
    engine = Engine(1, mode)
    table = engine.define(spec(missing="error"))
    engine.assign(table, keys_of(1, 2), ones(2))
    before = state(engine)

    with pytest.raises(MissingKeyError, match="key 7 has no row"):
        engine.push(table, 0, 0, keys_of(1, 7), ones(2))
    with pytest.raises(MissingKeyError, match="key 0 has no row"):
        engine.pull(table, keys_of(0, 1))

    assert state(engine) == before


def test_a_row_deleted_while_its_push_was_held_stays_deleted() -> None:
    engine = Engine(1, "sync")
    table = engine.define(spec(missing="error"))
    engine.assign(table, keys_of(1, 2), ones(2))
    engine.push(table, 0, 0, keys_of(1, 2), ones(2))

    assert engine.delete(table, keys_of(2, 3)) == 1
    engine.step(0, 0)

    assert engine.size(table) == 1
    np.testing.assert_array_equal(engine.pull(table, keys_of(1)), [[0, 0]])
    engine.validate()


def test_missing_zeros_reads_zeros_and_makes_rows_by_pushing_only() -> None:
    engine = Engine(1)
    table = engine.define(spec(missing="zeros"))

    np.testing.assert_array_equal(engine.pull(table, keys_of(4)), [[0, 0]])
    assert engine.size(table) == 0
    engine.push(table, 0, 0, keys_of(4), ones(1))
    np.testing.assert_array_equal(engine.pull(table, keys_of(3, 4)), [[0, 0], [-1, -1]])
    assert engine.size(table) == 1


def test_a_dense_table_holds_the_blocks_of_its_server_and_no_others() -> None:
    dense = TableSpec.dense("w", (10, 4096))
    slots = SlotMap.even(2)
    keys = dense_keys(dense).keys
    engines = [Engine(1, owner_filter=lambda k, s=s: slots.owner_of(k) == s) for s in range(2)]

    sizes = [engine.size(engine.define(dense)) for engine in engines]

    assert sum(sizes) == 10
    assert min(sizes) > 0
    for server, engine in enumerate(engines):
        engine.validate()
        own = keys[slots.owner_of(keys) == server]
        assert engine.pull(0).shape == (own.size, 4096)
        with pytest.raises(ValueShapeError, match="its values come without keys"):
            engine.pull(0, keys)
        with pytest.raises(ValueShapeError, match=r"shape \(1, 4096\), not"):
            engine.push(0, 0, 0, None, np.ones((1, 4096), np.float32))


def test_keys_of_another_server_are_found_by_validation() -> None:
    engine = Engine(1, owner_filter=lambda keys: keys < 10)
    table = engine.define(spec())
    engine.pull(table, keys_of(3))
    engine.validate()

    engine.pull(table, keys_of(11))

    with pytest.raises(AssertionError, match="keys of another server"):
        engine.validate()


@pytest.mark.parametrize("batch", [1, 3, 100])
def test_scanning_in_parts_reads_each_row_once(batch: int) -> None:
    engine = Engine(1)
    table = engine.define(spec())
    everything = np.arange(0, 50, 5, dtype=np.uint64)
    engine.assign(table, everything, np.repeat(everything[:, None], 2, 1).astype(np.float32))
    engine.delete(table, keys_of(10))

    seen, start = [], 0
    while start >= 0:
        keys, values, start = engine.scan(table, start, batch)
        assert (values == keys[:, None]).all()
        seen += keys.tolist()

    assert sorted(seen) == [key for key in everything.tolist() if key != 10]
    assert sorted(np.concatenate([k for k, _ in engine.items(table, batch)])) == sorted(seen)


@pytest.mark.parametrize(("start", "count"), [(-7, 3), (0, -1), (0, 2**62), (2**62, 5)])
def test_scanning_out_of_range_is_brought_into_it(start: int, count: int) -> None:
    engine = Engine(1)
    table = engine.define(spec())
    engine.pull(table, keys_of(1, 2, 3, 4))

    keys, values, go_on = engine.scan(table, start, count)

    assert keys.size == len(values) <= 4
    assert go_on == -1 or 0 < go_on < 4


def test_answers_are_the_callers_to_keep() -> None:
    engine = Engine(1)
    table = engine.define(spec())
    values = engine.pull(table, keys_of(1))

    values[:] = 99
    engine.push(table, 0, 0, keys_of(1), ones(1))

    np.testing.assert_array_equal(engine.pull(table, keys_of(1)), [[-1, -1]])
