"""A sparse table in parts: the same values as in one, and whole under many threads."""

from __future__ import annotations

import threading
from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv.engine import Engine
from kv.errors import ArenaFullError, MissingKeyError
from kv.executor import run_through
from kv.fairlock import FairLock
from kv.initializers import Zeros
from kv.local import LocalCluster
from kv.optimizers import SGD, Adagrad, Adam, Optimizer
from kv.policies import AfterSightings
from kv.spec import TableSpec
from kv.store.parts import Parts

LIMIT = 60  # seconds after which a test has failed


def spec(dim: int = 3, **options: object) -> TableSpec:
    return TableSpec.sparse("t", dim, **options).resolved("async", 5)


def increasing(rng: np.random.Generator, count: int) -> np.ndarray:
    return np.unique(rng.integers(0, 2**64, count, dtype=np.uint64))


def contents(parts: Parts) -> dict[int, list[float]]:
    batches = list(parts.items(7))
    assert all((keys[1:] > keys[:-1]).all() for keys, _ in batches)
    return {int(k): row.tolist() for b in batches for k, row in zip(*b, strict=True)}


def pulled(parts: Parts, keys: np.ndarray, create: bool = True) -> np.ndarray:
    out = np.empty((keys.size, parts.dim), np.float32)
    run_through(parts.pull(keys, create, out, parts.cut(keys)))
    return out


@given(
    seed=st.integers(0, 2**32 - 1),
    counts=st.lists(st.integers(0, 40), min_size=1, max_size=5),
    parts=st.integers(1, 5),
    chunk=st.integers(1, 9),
    optimizer=st.sampled_from([SGD(lr=0.1), Adagrad(lr=0.1), Adam(lr=0.1)]),
)
def test_parts_and_chunks_change_no_value(
    seed: int, counts: list[int], parts: int, chunk: int, optimizer: Optimizer
) -> None:
    rng = np.random.default_rng(seed)
    whole, cut = (Parts(spec(optimizer=optimizer), count) for count in (1, parts))
    cut.chunk = chunk
    seen = np.empty(0, np.uint64)
    for clock, count in enumerate(counts):
        keys = np.union1d(increasing(rng, count), rng.permutation(seen)[: count // 2])
        grads = rng.standard_normal((keys.size, 3)).astype(np.float32)
        seen = np.union1d(seen, keys)
        for store in (whole, cut):
            run_through(store.push(keys, grads, clock, store.cut(keys)))
        gone = rng.permutation(seen)[: count // 3]
        gone.sort()
        deleted = [run_through(store.delete(gone)) for store in (whole, cut)]
        assert deleted[0] == deleted[1]
        probe = np.union1d(seen, increasing(rng, 5))
        np.testing.assert_array_equal(pulled(whole, probe, False), pulled(cut, probe, False))
    for store in (whole, cut):
        store.validate()
    tables = [
        {
            int(k): v.tolist()
            for keys, values in store.items(7)
            for k, v in zip(keys, values, strict=True)
        }
        for store in (whole, cut)
    ]
    assert tables[0] == tables[1]
    assert len(whole) == len(cut) == len(tables[0])


@pytest.mark.parametrize("parts", [1, 2, 4])
def test_pushes_of_ones_from_many_threads_add_up(parts: int) -> None:
    engine = Engine(4, parts=parts)
    table = engine.define(spec(optimizer=SGD(lr=1.0), initializer=Zeros()))
    engine.tables[table].store.chunk = 100
    keys = np.arange(0, 5000, dtype=np.uint64) * np.uint64(2**40)

    def act(rank: int) -> None:
        mine = keys[rank::2] if rank % 2 else keys[: 1000 + rank]
        for _ in range(20):
            engine.push(table, rank, 0, mine, np.ones((mine.size, 3), np.float32))
            engine.pull(table, mine[::3])

    in_threads([lambda rank=rank: act(rank) for rank in range(4)])

    expected = np.zeros(keys.size)
    for rank in range(4):
        mine = slice(rank, None, 2) if rank % 2 else slice(0, 1000 + rank)
        expected[mine] -= 20
    np.testing.assert_array_equal(engine.pull(table, keys), np.repeat(expected[:, None], 3, 1))
    assert engine.clock(table) == 80
    engine.validate()


def test_a_dense_pull_is_the_array_between_two_pushes() -> None:
    cluster = LocalCluster(3, threads=True)
    tables = [cluster.worker(r).dense_table("w", (40, 1000), optimizer=SGD(lr=1)) for r in range(3)]
    done = threading.Event()
    mixed: list[np.ndarray] = []

    def push(rank: int) -> None:
        for _ in range(60):
            tables[rank].push(np.ones((40, 1000)))
        if rank == 1:
            done.set()

    def look() -> None:
        while not done.is_set():
            seen = tables[0].pull()
            if (seen != seen[0, 0]).any():
                mixed.append(seen)

    in_threads([lambda: push(1), lambda: push(2), look])

    assert not mixed
    np.testing.assert_array_equal(tables[0].pull(), -120)


@pytest.mark.parametrize("parts", [1, 3])
@pytest.mark.parametrize("missing", ["init", "zeros", "error"])
def test_a_list_that_comes_again_has_the_values_of_one_that_does_not(
    parts: int, missing: str
) -> None:
    rng = np.random.default_rng(2)
    engine = Engine(1, parts=parts)
    names = ("remembered", "plain")
    specs = [TableSpec.sparse(n, 2, missing=missing, seed=3, initializer=Zeros()) for n in names]
    numbers = [engine.define(made) for made in specs]
    keys = increasing(rng, 60)
    keys.flags.writeable = False
    for number in numbers:
        engine.tables[number].store.chunk = 7
        if missing == "error":
            engine.assign(number, keys, np.ones((keys.size, 2), np.float32))
    engine.tables[0].remember(keys)

    for turn in range(6):
        grads = rng.standard_normal((keys.size, 2)).astype(np.float32)
        gone = keys[turn::11].copy() if turn % 2 else keys[:0]
        for number in numbers:
            given = keys if number == 0 else keys.copy()
            engine.push(number, 0, 0, given, grads)
            engine.delete(number, gone)
            if missing == "error":
                engine.assign(number, gone, np.zeros((gone.size, 2), np.float32))
        seen = [engine.pull(n, keys if n == 0 else keys.copy()) for n in numbers]
        np.testing.assert_array_equal(*seen)
    engine.validate()
    assert len(engine.tables[0]._cuts) == 1
    del keys, given
    assert not engine.tables[0]._cuts


@pytest.mark.parametrize("chunk", [7, 1000])
def test_a_push_learns_the_rows_of_a_list_that_may_come_again(chunk: int) -> None:
    engine = Engine(1)
    table = engine.define(spec())
    keys = increasing(np.random.default_rng(4), 30)
    keys.flags.writeable = False
    engine.tables[table].store.chunk = chunk
    engine.tables[table].remember(keys)
    ((_, (piece,)),) = engine.tables[table]._cuts.values()
    store, grads = piece.part.store, np.ones((30, 3), np.float32)

    def learned() -> np.ndarray:
        return np.concatenate([piece._known(keys[i : i + chunk], i) for i in range(0, 30, chunk)])

    engine.push(table, 0, 0, keys, grads)  # makes them

    np.testing.assert_array_equal(learned(), store.locate(keys))
    engine.delete(table, keys[5:9].copy())
    assert piece._known(keys[:chunk], 0) is None
    engine.push(table, 0, 0, keys, grads)  # makes those again that are gone
    np.testing.assert_array_equal(learned(), store.locate(keys))
    engine.push(table, 0, 0, keys, grads)
    shows = store.index.records[store.locate(keys), 2] >> np.uint64(32)
    once = np.isin(np.arange(30), np.arange(5, 9))
    np.testing.assert_array_equal(shows, np.where(once, 2, 3) * np.uint64(256))


def test_a_push_whose_keys_are_not_all_admitted_learns_no_rows() -> None:
    engine = Engine(1)
    table = engine.define(spec(admission=AfterSightings(2, expected=100)))
    keys = increasing(np.random.default_rng(5), 20)
    keys.flags.writeable = False
    engine.push(table, 0, 0, keys[::2].copy(), np.ones((10, 3), np.float32))
    engine.tables[table].remember(keys)
    ((_, (piece,)),) = engine.tables[table]._cuts.values()

    engine.push(table, 0, 0, keys, np.ones((20, 3), np.float32))

    assert len(piece.part.store) == 10
    assert piece._known(keys, 0) is None
    engine.push(table, 0, 0, keys, np.ones((20, 3), np.float32))
    np.testing.assert_array_equal(piece._known(keys, 0), piece.part.store.locate(keys))
    engine.validate()


def test_a_push_without_room_changes_nothing_and_gives_its_room_back() -> None:
    engine = Engine(1, parts=2)
    table = engine.define(spec())
    parts = engine.tables[table].store.parts
    keys = increasing(np.random.default_rng(1), 50)
    engine.push(table, 0, 0, keys[::2], np.ones((25, 3), np.float32))
    parts[1].store.limit.most = len(parts[1].store)

    with pytest.raises(ArenaFullError, match="use more servers"):
        engine.push(table, 0, 0, keys, np.ones((50, 3), np.float32))

    assert engine.size(table) == 25
    assert engine.clock(table) == 1
    engine.push(table, 0, 0, keys[::2], np.ones((25, 3), np.float32))  # it makes no row
    engine.validate()


def test_rows_deleted_while_a_push_is_under_way_stay_deleted() -> None:
    engine = Engine(1)
    table = engine.define(spec(missing="error", initializer=Zeros(), optimizer=SGD(lr=1.0)))
    engine.tables[table].store.chunk = 2
    keys = np.arange(6, dtype=np.uint64)
    engine.assign(table, keys, np.zeros((6, 3), np.float32))
    turns = engine.pushing(0, 0, [(table, keys, np.ones((6, 3), np.float32))])
    while engine.pull(table, keys)[0, 0] == 0:
        next(turns)  # up to its first chunk

    engine.delete(table, keys[4:])
    run_through(turns)

    np.testing.assert_array_equal(engine.pull(table, keys[:4]), -1)
    with pytest.raises(MissingKeyError):
        engine.pull(table, keys)


def test_a_fair_lock_is_handed_over_in_the_order_of_waiting() -> None:
    lock, log = FairLock(), list[int]()
    threads = []
    with lock:
        for number in range(3):
            threads.append(threading.Thread(target=lambda n=number: _note(lock, log, n)))
            threads[-1].start()
            wait_until(lambda n=number: lock.waiting == n + 1)
    with lock:  # after all of them, though this thread never slept
        log.append(99)
    for thread in threads:
        thread.join(LIMIT)

    assert log == [0, 1, 2, 99]


def _note(lock: FairLock, log: list[int], number: int) -> None:
    with lock:
        log.append(number)


def wait_until(holds: Callable[[], bool]) -> None:
    event = threading.Event()
    for _ in range(LIMIT * 1000):
        if holds():
            return
        event.wait(0.001)
    raise AssertionError("it never came to hold")


def in_threads(acts: list[Callable[[], None]]) -> None:
    errors: list[BaseException] = []

    def guarded(act: Callable[[], None]) -> None:
        try:
            act()
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=(act,)) for act in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(LIMIT)
    assert not errors
    assert not any(thread.is_alive() for thread in threads)


@pytest.mark.parametrize("parts", [1, 3])
def test_keys_of_one_part_take_no_turns_and_those_of_several_do(parts: int) -> None:
    store = Parts(spec(), parts)
    many, few = np.arange(50, dtype=np.uint64), np.array([7], np.uint64)

    assert store.quick(few, None) is not None
    assert (store.quick(many, None) is None) == (parts > 1)


def test_a_list_that_does_not_come_again_loses_its_rows_and_finds_them_anew() -> None:
    engine = Engine(num_workers=1, parts=1)
    number = engine.define(spec(optimizer=SGD(lr=1.0), initializer=Zeros()))
    table = engine.tables[number]
    lists = [np.arange(n, n + 20, dtype=np.uint64) for n in range(12)]
    for keys in lists:
        keys.flags.writeable = False
        table.remember(keys)
        engine.pull(number, keys)

    for keys in (*lists, *lists):
        engine.push(number, 0, 0, keys, np.ones((20, 3), np.float32))

    last = engine.pull(number, lists[-1])
    assert last[0, 0] == -24  # the first key of the last list is in all of them, pushed twice
