"""What callers give by mistake is refused by an error of pslite's, before anything changes."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

import numpy as np
import pytest

import pslite
from kv.gather import sendable
from kv.leases.pieces import MOST_SPANS, DataSet
from kv.local import LocalCluster

ONE = np.ones((2, 3), np.float32)
WAYS = ["local", "servers", "dispatcher"]


@pytest.fixture(params=WAYS, scope="module")
def job(request: pytest.FixtureRequest) -> Iterator[tuple[Any, Any, Any]]:
    """A worker, a sparse and a dense table."""
    if request.param == "local":
        yield made_by(LocalCluster(1).worker(0))
        return
    with pslite.local_cluster(2, 1, dispatchers=int(request.param == "dispatcher")) as cluster:
        yield made_by(cluster.workers[0])


def made_by(worker: Any) -> tuple[Any, Any, Any]:
    sgd, zeros = pslite.SGD(lr=1), pslite.Zeros()
    table = worker.sparse_table("t", 3, optimizer=sgd, initializer=zeros)
    return worker, table, worker.dense_table("d", (4, 3), optimizer=sgd, initializer=zeros)


Call = Callable[[Any, Any, Any], object]
MISTAKES: dict[str, Call] = {
    "reads are no list": lambda w, t, d: w.pull_many(5),
    "reads are nothing": lambda w, t, d: w.pull_many(None),
    "one read without a list": lambda w, t, d: w.pull_many((t, [1, 2])),
    "a read of nothing": lambda w, t, d: w.pull_many([()]),
    "a read without keys": lambda w, t, d: w.pull_many([(t,)]),
    "a sparse table is no read": lambda w, t, d: w.pull_many([t]),
    "a read too long": lambda w, t, d: w.pull_many([(t, [1], 1)]),
    "a dense read with keys": lambda w, t, d: w.pull_many([(d, [1])]),
    "a read of something else": lambda w, t, d: w.pull_many(["t"]),
    "ahead of something else": lambda w, t, d: w.pull_ahead(["t"]),
    "half a step ahead": lambda w, t, d: w.pull_ahead([d], steps=1.5),
    "a step behind": lambda w, t, d: w.pull_ahead([d], steps=-1),
    "very far ahead": lambda w, t, d: w.pull_ahead([d], steps=1 << 40),
    "steps as text": lambda w, t, d: w.pull_ahead([d], steps="1"),
    "writes are no list": lambda w, t, d: w.push_many(5),
    "one write without a list": lambda w, t, d: w.push_many((t, [1, 2], ONE)),
    "an empty write": lambda w, t, d: w.push_many([()]),
    "a write of a number": lambda w, t, d: w.push_many([3]),
    "a write too long": lambda w, t, d: w.push_many([(t, [1, 2], ONE, 1)]),
    "push and pull of a number": lambda w, t, d: w.push_pull_many(3),
    "clipping is a number": lambda w, t, d: w.push_many([(t, [1, 2], ONE)], clipping=1.0),
    "clipping of no table": lambda w, t, d: w.push_many(
        [("t", [1, 2], ONE)], clipping=pslite.Clipping(clip_norm=1)
    ),
    "weight is text": lambda w, t, d: t.push([1, 2], ONE, weight="heavy"),
    "weight is nothing": lambda w, t, d: t.push([1, 2], ONE, weight=None),
    "weight is nan": lambda w, t, d: t.push([1, 2], ONE, weight=float("nan")),
    "rate of no table": lambda w, t, d: w.set_lr("t", 0.1),
    "staleness of no table": lambda w, t, d: w.staleness(None),
    "request is text": lambda w, t, d: w.wait("1"),
    "request is a list": lambda w, t, d: w.wait([1]),
    "timeout is text": lambda w, t, d: w.wait(t.push([1, 2], 0 * ONE), timeout="1 s"),
    "timeout is nan": lambda w, t, d: w.wait(t.push([1, 2], 0 * ONE), timeout=float("nan")),
    "since is a number": lambda w, t, d: t.pull_changed(3),
    "since has half a version": lambda w, t, d: t.pull_changed({0: (1.5,)}),
    "gather of an object": lambda w, t, d: w.gather(object()),
    "gather of times": lambda w, t, d: w.gather([np.zeros(1, "M8[s]")]),
    "gather of large numbers": lambda w, t, d: w.gather({"a": 1 << 64}),
    "gather of half a character": lambda w, t, d: w.gather("\ud800"),
    "too many epochs": lambda w, t, d: w.shards("x", 10, epochs=1 << 31),
    "too many records": lambda w, t, d: w.shards("y", 1 << 61, epochs=8),
}


@pytest.mark.parametrize("mistake", MISTAKES)
def test_a_mistake_is_an_error_of_ours_and_changes_nothing(
    job: tuple[Any, Any, Any], mistake: str
) -> None:
    _, table, dense = job
    before = table.pull([1, 2]), dense.pull()

    with pytest.raises(pslite.PsliteError) as error:
        MISTAKES[mistake](*job)

    assert len(str(error.value)) < 500
    np.testing.assert_array_equal(table.pull([1, 2]), before[0])
    np.testing.assert_array_equal(dense.pull(), before[1])


def test_nothing_that_contains_itself_is_sent() -> None:
    ring: list[Any] = []
    ring.append(ring)

    with pytest.raises(pslite.KVError, match="contains itself"):
        sendable(ring)


def test_a_data_set_may_have_many_epochs_but_not_any_number() -> None:
    DataSet(name="a", records=10, epochs=MOST_SPANS)

    with pytest.raises(pslite.LeaseError, match="fewer epochs"):
        DataSet(name="a", records=10, epochs=MOST_SPANS, parts=2)


AFTER: dict[str, Call] = {
    "step": lambda w, t, d: w.step(),
    "barrier": lambda w, t, d: w.barrier(),
    "gather": lambda w, t, d: w.gather(1),
    "shards": lambda w, t, d: w.shards("x", 3),
    "has_begun": lambda w, t, d: w.has_begun("x"),
    "pull": lambda w, t, d: t.pull([1]),
    "push": lambda w, t, d: d.push(np.ones((4, 3))),
    "table": lambda w, t, d: w.sparse_table("u", 3),
}


@pytest.mark.parametrize("way", WAYS[:2])
def test_a_closed_worker_says_so_at_once(way: str) -> None:
    if way == "local":
        job = made_by(LocalCluster(1).worker(0))
        job[0].close()
    else:
        with pslite.local_cluster(1, 1) as cluster:
            job = made_by(cluster.workers[0])
            pieces = job[0].shards("begun", 10)
        with pytest.raises(pslite.KVError, match="closed"):
            next(pieces)
    for call in AFTER.values():
        if way == "local" and call is AFTER["has_begun"]:
            continue  # it needs nobody
        with pytest.raises(pslite.KVError, match="closed"):
            call(*job)


@pytest.mark.parametrize(
    ("mode", "workers"), list(itertools.product(("async", "sync", "semi_sync"), (1, 2)))
)
@pytest.mark.parametrize("dispatchers", [0, 1])
def test_a_table_may_stand_twice_in_a_request(mode: str, workers: int, dispatchers: int) -> None:
    """Through a dispatcher it got memory that nobody had written, and killed the dispatcher."""
    first, second = np.arange(2000), np.arange(1000, 3000)
    grads, square = np.ones((2000, 3), np.float32), np.ones((4, 3), np.float32)

    def program(worker: Any) -> None:
        _, table, dense = made_by(worker)
        worker.barrier()
        for step in range(3):
            writes = [(table, first, grads), (dense, square), (table, second, 2 * grads)]
            if step == 1:
                worker.push_pull_many([*writes, (dense, square)])
            else:
                worker.wait(worker.push_many([*writes, (dense, square)]))
            worker.step()
        worker.barrier()
        one, flat, other, again = worker.pull_many([(table, first), dense, (table, second), dense])
        worker.barrier()
        wanted = np.repeat([-3.0, -9.0, -6.0], 1000) * workers
        np.testing.assert_array_equal(one[:, 0], wanted[:2000])
        np.testing.assert_array_equal(other[:, 0], wanted[1000:])
        np.testing.assert_array_equal(flat, -6.0 * workers * square)
        np.testing.assert_array_equal(again, flat)

    with pslite.local_cluster(2, workers, mode, dispatchers=dispatchers) as cluster:
        cluster.run(program)
