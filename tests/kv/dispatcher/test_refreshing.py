"""Rows that a dispatcher has are refreshed: what has changed comes, and nothing else."""

from __future__ import annotations

import random
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kv.compression.kept import capacity_of
from kv.compression.settings import Rules
from kv.consistency.settings import SSP, Async, Consistency, SemiSync, Sync
from kv.dispatcher.config import DispatcherConfig
from kv.dispatcher.copies import Copy, Counted
from kv.errors import KVError
from kv.initializers import Uniform, Zeros
from kv.optimizers import SGD
from kv.placement import slot_of
from kv.refreshing import NOTHING, Origin, has_changed, known_rows, since_of
from kv.remote_worker import RemoteWorker
from tests.kv.dispatcher.test_pushes import digests
from tests.kv.dispatcher.tier import SEEDS, Tier, storm

DIM = 2
PARTS = 3
OWN = Origin(life=4, loads=2, map_version=7)
MODES = [Async(), SSP(2), Sync(), SemiSync(0.5)]

# -- copies against a dictionary ------------------------------------------------------------------

keys_of = st.sets(st.integers(0, 30), max_size=12).map(sorted)
steps = st.lists(
    st.tuples(st.sampled_from(["push", "pull", "late", "restart", "load", "move"]), keys_of),
    max_size=30,
)


class Model:
    """A server's rows and versions as a dictionary has them, and a copy of some of them."""

    def __init__(self, limit: int) -> None:
        self.rows = {key: (float(key), 1) for key in range(31)}  # value, version
        self.origin, self.versions = OWN, [1] * PARTS
        self.copy = Copy("t", DIM, limit)
        self.late: list[tuple[Counted, np.ndarray, np.ndarray]] = []

    def push(self, keys: list[int]) -> None:
        for key in keys:
            part = self.part(key)
            self.versions[part] += 1
            self.rows[key] = (self.rows[key][0] + 0.5, self.versions[part])

    @staticmethod
    def part(key: int) -> int:
        return int(slot_of(np.array([key], np.uint64))[0]) % PARTS

    def pull(self, keys: list[int], *, is_late: bool = False) -> int:
        """Refresh rows through the frames that travel; how many came."""
        names = np.array(keys, np.uint64)
        values, versions = self.copy.look(names)
        frame = self.copy.known(0, names, versions)
        since = since_of(frame, names, self.origin, PARTS)
        is_new = np.ones(len(keys), bool)
        if since is not None:
            is_new = np.array([self.rows[k][1] > s for k, s in zip(keys, since, strict=True)], bool)
        bits = np.packbits(is_new)
        came = has_changed(bits, len(keys))
        now = np.array([self.rows[key][0] for key in keys], np.float32)
        values[came] = now[came, None]
        np.testing.assert_array_equal(values[:, 0], now)
        counted = Counted(self.origin, tuple(self.versions))
        if is_late:
            self.late.append((counted, names, values))
        else:
            self.copy.fill(0, counted, names, values)
        return int(came.sum())

    def act(self, what: str, keys: list[int]) -> None:
        if what == "push":
            self.push(keys)
        elif what == "pull":
            self.pull(keys)
            while self.late:
                self.copy.fill(0, *self.late.pop())
        elif what == "late":
            self.pull(keys, is_late=True)
        elif what == "restart":  # from a checkpoint: versions begin anew
            self.origin = self.origin._replace(life=self.origin.life + 1, loads=0)
            self.versions = [1] * PARTS
            self.rows = {key: (value - 0.25, 1) for key, (value, _) in self.rows.items()}
        elif what == "load":  # rows are set with versions of before
            self.origin = self.origin._replace(loads=self.origin.loads + 1)
            self.rows |= {key: (self.rows[key][0] * 2, 1) for key in keys}
        elif what == "move":  # away and back: what another server has counted
            self.origin = self.origin._replace(map_version=self.origin.map_version + 2)
            self.rows |= {key: (self.rows[key][0] - 1, self.rows[key][1]) for key in keys}


@settings(max_examples=200, deadline=None)
@given(steps=steps, limit=st.sampled_from([600, 1500, 1 << 20]))
def test_what_is_refreshed_is_what_a_dictionary_has(
    steps: list[tuple[str, list[int]]], limit: int
) -> None:
    model = Model(limit)

    for what, keys in steps:
        model.act(what, keys)  # pulls compare

    model.pull(list(range(31)))
    assert model.copy.rows <= capacity_of(DIM, limit)


def test_only_what_has_changed_comes() -> None:
    model = Model(1 << 20)
    every = list(range(31))

    assert model.pull(every) == 31
    assert model.pull(every) == 0
    model.push([3, 4, 9])
    assert model.pull(every[:4]) == 1
    model.push([9])
    assert model.pull(every) == 2
    assert model.pull(every) == 0


def test_a_row_known_of_very_long_ago_comes_again() -> None:
    model = Model(1 << 20)
    model.pull([1, 2])
    model.versions = [70_000] * PARTS
    model.pull([2])

    assert model.pull([1]) == 1
    assert model.pull([1, 2]) == 0


@pytest.mark.parametrize(
    "frame",
    [
        np.zeros(40, np.uint8),
        np.zeros((2, 2), np.uint16),
        known_rows(OWN, [5] * PARTS, np.zeros(3, np.uint16)),
        known_rows(OWN, [5] * PARTS, np.zeros(1, np.uint16)),
    ],
)
def test_what_is_no_list_of_known_rows_is_refused(frame: np.ndarray) -> None:
    with pytest.raises(KVError):
        since_of(frame, np.array([4, 8], np.uint64), OWN, PARTS)


@pytest.mark.parametrize(
    ("origin", "parts"),
    [(OWN, PARTS + 1), *[(OWN._replace(**{field: 99}), PARTS) for field in OWN._fields]],
)
def test_versions_of_another_origin_mean_nothing(origin: Origin, parts: int) -> None:
    keys = np.array([4, 8], np.uint64)
    frame = known_rows(OWN, [5] * PARTS, np.zeros(2, np.uint16))

    assert since_of(frame, keys, OWN, PARTS) is not None
    assert since_of(frame, keys, origin, parts) is None
    assert since_of(NOTHING, keys, OWN, PARTS) is None


# -- on clusters ----------------------------------------------------------------------------------


def wander(worker: RemoteWorker, steps: int, pushes: int) -> list[tuple[np.ndarray, np.ndarray]]:
    """Pull many rows, push to few; what one pull says and, once all have pushed, each server."""
    table = worker.sparse_table("t", DIM, optimizer=SGD(lr=1), initializer=Uniform(-1, 1))
    dense = worker.dense_table("d", [40], optimizer=SGD(lr=1), initializer=None)
    rng, seen = np.random.default_rng(worker.rank), []
    for _ in range(steps):
        keys = rng.choice(200, 120, replace=False)
        worker.pull_many([(table, keys), dense])
        some = rng.choice(keys, pushes, replace=False)
        worker.push_many([(table, some, rng.standard_normal((pushes, DIM))), (dense, np.ones(40))])
        worker.step()
    worker.finish()
    worker.barrier("all have pushed")
    for _ in range(2):
        keys = np.arange(200)
        seen.append((table.pull(keys), table.pull(keys, create=False)))
    return seen


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("seed", SEEDS)
def test_rows_that_are_refreshed_are_those_of_the_servers(seed: int, mode: Consistency) -> None:
    tier = Tier(seed, workers=3, dispatchers=2, mode=mode, plan=storm(seed))
    seen: list[list[tuple[np.ndarray, np.ndarray]]] = []

    tier.train(lambda worker: seen.append(wander(worker, 6, 5)))

    for refreshed, pulled in [pair for pairs in seen for pair in pairs]:
        np.testing.assert_array_equal(refreshed, pulled)
    facts = [dispatcher.facts() for dispatcher in tier.dispatchers.values()]
    assert all(fact["unchanged_rows"] > 2 * fact["refreshed_rows"] > 0 for fact in facts)
    assert all(fact["refresh_bytes_saved"] > 0 for fact in facts)


def test_a_refresh_says_no_more_than_a_pull() -> None:
    seen: dict[bool, list[Any]] = {True: [], False: []}
    for is_on, found in seen.items():
        config = DispatcherConfig(cache_refresh=is_on)
        tier = Tier(4, workers=1, dispatchers=1, mode="async", config=config)
        tier.train(lambda worker, found=found: found.append(wander(worker, 9, 5)))

    np.testing.assert_array_equal(seen[True], seen[False])


def test_rounds_are_the_same_bits_without_refreshing() -> None:
    config = DispatcherConfig(cache_refresh=False)

    assert digests(Tier(3, workers=4, mode="sync", config=config)) == digests(
        Tier(3, workers=4, mode="sync")
    )


def test_rows_that_are_set_or_deleted_elsewhere_are_seen() -> None:
    tier = Tier(0, workers=2, dispatchers=2)
    seen: list[float] = []

    def program(worker: RemoteWorker) -> None:
        table = worker.sparse_table("t", 1, initializer=Zeros())
        for number in range(4):
            seen.append(float(table.pull(np.arange(50))[3, 0]))
            worker.barrier(f"pulled {number}")
            if worker.rank == 0 and number == 1:
                table.delete([3])
            elif worker.rank == 0:
                table.assign([3], [[7.0 + number]])
            worker.barrier(f"set {number}")

    tier.train(program)

    assert sorted(seen) == [0.0, 0.0, 0.0, 0.0, 7.0, 7.0, 9.0, 9.0]


@pytest.mark.parametrize("text", ["fp16", "int8+zstd"])
def test_rows_that_have_changed_come_packed(text: str) -> None:
    pytest.importorskip("zstandard")
    rules = Rules({"*@pull": text})
    tier, seen = Tier(1, workers=1, dispatchers=1, compression=rules, plan=storm(1)), []

    tier.train(lambda worker: seen.append(wander(worker, 6, 60)))

    for refreshed, pulled in seen[0]:
        np.testing.assert_allclose(refreshed, pulled, atol=0.05)
    assert tier.dispatchers[0].facts()["unchanged_rows"] > 100


@pytest.mark.parametrize("seed", SEEDS)
def test_rows_are_right_when_servers_change(seed: int) -> None:
    tier = Tier(seed, workers=3, servers=2, replicas=1)
    seen: list[list[tuple[np.ndarray, np.ndarray]]] = []

    def kill() -> None:
        tier.wait_until_copied()
        tier.wait_for_events(random.Random(seed).randint(1, 60))
        tier.network.kill("server 1")
        tier.start_server(1)

    tier.meddle(kill)
    tier.train(lambda worker: seen.append(wander(worker, 12, 5)))

    for refreshed, pulled in [pair for pairs in seen for pair in pairs]:
        np.testing.assert_array_equal(refreshed, pulled)
