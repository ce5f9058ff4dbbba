"""What a round's pushes become, against plain NumPy, and through an engine."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv.consistency.base import Update
from kv.consistency.rounds import AGGREGATORS, aggregated
from kv.engine import Engine
from kv.errors import SettingError
from kv.optimizers import SGD
from kv.spec import AGGREGATORS as NAMES
from kv.spec import TableSpec
from van.message import Meta

F = np.float32


def pushes_of(seed: int, workers: int, most: int, dim: int) -> dict[int, list[Update]]:
    """Pushes of some workers with keys below 12, each with a weight."""
    rng = np.random.default_rng(seed)
    found: dict[int, list[Update]] = {}
    for rank in rng.permutation(workers).tolist():
        for _ in range(rng.integers(1, most + 1)):
            keys = np.sort(rng.choice(12, rng.integers(0, 7), replace=False)).astype(np.uint64)
            grads = rng.standard_normal((keys.size, dim)).astype(F)
            grads.flags.writeable = False
            found.setdefault(rank, []).append(Update(keys, grads, float(rng.integers(0, 4))))
    return found


def dense(update: Update, dim: int) -> np.ndarray:
    out = np.zeros((12, dim))
    out[update.keys.astype(int)] = update.grads
    return out


def in_numpy(name: str, pushes: dict[int, list[Update]], workers: int, dim: int) -> np.ndarray:
    """The same over whole arrays, float64."""
    parts = [sum(dense(push, dim) for push in pushes[rank]) for rank in sorted(pushes)]
    if name == "max_norm":
        lengths = [np.linalg.norm(part, axis=1) for part in parts]
        return np.array(parts)[np.argmax(lengths, axis=0), np.arange(12)]
    if name == "weighted_mean":
        every = [push for rank in sorted(pushes) for push in pushes[rank]]
        total = sum(push.weight for push in every)
        return sum(push.weight * dense(push, dim) for push in every) / (total or 1)
    return sum(parts) / (workers if name == "mean" else 1)


def test_every_aggregator_of_a_definition_exists() -> None:
    assert tuple(AGGREGATORS) == NAMES


@pytest.mark.parametrize("name", NAMES)
@given(
    seed=st.integers(0, 2**32 - 1),
    workers=st.integers(1, 4),
    most=st.integers(1, 3),
    dim=st.integers(1, 9),
)
def test_aggregates_match_their_formula(
    name: str, seed: int, workers: int, most: int, dim: int
) -> None:
    pushes = pushes_of(seed, workers, most, dim)

    update = aggregated(name, pushes, workers, clock=7)

    keys = np.unique(np.concatenate([p.keys for each in pushes.values() for p in each]))
    np.testing.assert_array_equal(update.keys, keys)
    assert update.grads.dtype == np.float32
    assert update.clock == 7
    np.testing.assert_allclose(
        dense(update, dim), in_numpy(name, pushes, workers, dim), rtol=1e-5, atol=1e-6
    )


@pytest.mark.parametrize("name", NAMES)
def test_aggregates_do_not_depend_on_who_came_first(name: str) -> None:
    pushes = pushes_of(3, 4, 2, 5)

    there = aggregated(name, pushes, 4, 0)
    back = aggregated(name, dict(reversed(pushes.items())), 4, 0)

    assert there.grads.tobytes() == back.grads.tobytes()


def test_of_gradients_of_one_length_the_lower_ranks_is_kept() -> None:
    key = np.array([5], np.uint64)
    pushes = {1: [Update(key, np.array([[3.0]], F))], 0: [Update(key, np.array([[-3.0]], F))]}

    assert aggregated("max_norm", pushes, 2, 0).grads.tolist() == [[-3.0]]


def test_large_gradients_have_a_length() -> None:
    key = np.array([5], np.uint64)
    parts = [np.array([[3e38]], F), np.array([[-3.2e38]], F)]
    pushes = {rank: [Update(key, part)] for rank, part in enumerate(parts)}

    assert aggregated("max_norm", pushes, 2, 0).grads.tolist() == parts[1].tolist()


def engine_of(aggregator: str, workers: int) -> Engine:
    engine = Engine(workers, "sync")
    engine.define(TableSpec.sparse("t", 1, optimizer=SGD(1.0), aggregator=aggregator))
    engine.assign(0, keys(1, 2), np.zeros((2, 1), F))
    return engine


def keys(*wanted: int) -> np.ndarray:
    return np.array(wanted, np.uint64)


def ones(count: int, value: float) -> np.ndarray:
    return np.full((count, 1), value, F)


@pytest.mark.parametrize(
    ("aggregator", "moved"),
    [
        ("sum", [7.0, 4.0]),
        ("mean", [7.0 / 3, 4.0 / 3]),
        ("weighted_mean", [(3 * 2.0 + 1 * 1.0 + 4.0 * 2) / 6, 8.0 / 6]),
        ("max_norm", [4.0, 4.0]),
    ],
)
def test_a_table_applies_what_its_aggregator_makes(aggregator: str, moved: list[float]) -> None:
    engine = engine_of(aggregator, 3)

    engine.push_many(0, 0, [(0, keys(1), ones(1, 2.0))], weight=3.0)
    engine.push_many(0, 0, [(0, keys(1), ones(1, 1.0))], weight=1.0)
    engine.push_many(1, 0, [(0, keys(1, 2), ones(2, 4.0))], weight=2.0)
    for rank in range(3):
        engine.step(rank, 0)

    np.testing.assert_allclose(-engine.pull(0, keys(1, 2))[:, 0], moved, rtol=1e-6)


def test_an_empty_push_counts_by_its_weight() -> None:
    engine = engine_of("weighted_mean", 2)

    engine.push_many(0, 0, [(0, keys(1), ones(1, 4.0))], weight=1.0)
    engine.push_many(1, 0, [(0, keys(), ones(0, 0.0))], weight=3.0)
    for rank in range(2):
        engine.step(rank, 0)

    assert engine.pull(0, keys(1)).tolist() == [[-1.0]]


def test_a_worker_that_has_finished_before_does_not_count_in_a_mean() -> None:
    engine = engine_of("mean", 2)
    engine.finish(1)

    engine.push(0, 0, 0, keys(1), ones(1, 4.0))
    engine.step(0, 0)

    assert engine.pull(0, keys(1)).tolist() == [[-4.0]]


def test_a_push_in_pieces_has_one_weight() -> None:
    whole = Update(keys(1, 2, 3), ones(3, 4.0), 3.0)
    pieces = [Update(keys(1), ones(1, 4.0), 3.0), Update(keys(2, 3), ones(2, 4.0), 3.0, 0, True)]
    other = Update(keys(2), ones(1, 8.0), 1.0)

    one = aggregated("weighted_mean", {0: [whole], 1: [other]}, 2, 0)
    cut = aggregated("weighted_mean", {0: pieces, 1: [other]}, 2, 0)

    assert one.grads.tolist() == cut.grads.tolist() == [[3.0], [5.0], [3.0]]


def test_weights_of_zero_alone_move_nothing() -> None:
    engine = engine_of("weighted_mean", 1)

    engine.push_many(0, 0, [(0, keys(1), ones(1, 4.0))], weight=0.0)
    engine.step(0, 0)

    assert engine.pull(0, keys(1)).tolist() == [[0.0]]


@pytest.mark.parametrize("name", NAMES)
def test_in_async_mode_a_push_is_its_own_aggregate(name: str) -> None:
    engine = Engine(2, "async")
    engine.define(TableSpec.sparse("t", 1, optimizer=SGD(1.0), aggregator=name))
    engine.assign(0, keys(1), np.zeros((1, 1), F))

    engine.push_many(0, 0, [(0, keys(1), ones(1, 4.0))], weight=0.5)

    assert engine.pull(0, keys(1)).tolist() == [[-4.0]]


@pytest.mark.parametrize("weight", [-1.0, float("nan"), float("inf")])
def test_a_wrong_weight_is_refused(weight: float) -> None:
    engine = engine_of("weighted_mean", 1)

    with pytest.raises(SettingError, match="weight must be a finite number"):
        engine.push_many(0, 0, [], weight=weight)


@pytest.mark.parametrize("name", NAMES)
def test_a_workers_pushes_count_in_the_order_in_which_it_made_them(name: str) -> None:
    made = pushes_of(3, workers=3, most=4, dim=2)
    stamped = {
        rank: [push._replace(push=Meta(timestamp=n)) for n, push in enumerate(pushes)]
        for rank, pushes in made.items()
    }
    shuffled = {rank: pushes[::-1] for rank, pushes in stamped.items()}

    expected, got = aggregated(name, made, 3, 0), aggregated(name, shuffled, 3, 0)

    assert got.grads.tobytes() == expected.grads.tobytes()
    assert got.keys.tobytes() == expected.keys.tobytes()
