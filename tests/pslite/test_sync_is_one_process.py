"""In mode sync W workers equal, to the bit, one process that adds W parts in rank order.

The one process is a local store and a sum in NumPy: no worker, server or round of ours adds there.
"""

from __future__ import annotations

import hashlib
import subprocess
from collections.abc import Callable, Sequence
from functools import cache, partial
from typing import Any, NamedTuple

import numpy as np
import pytest

from kv.local import LocalCluster
from kv.optimizers import Optimizer
from kv.protocols import Worker
from pslite import local_cluster

F = np.float32
OPTIMIZERS = sorted(Optimizer.members)
KEYS, DIM, WIDTH, STEPS = 24, 3, 10, 200


class Shape(NamedTuple):
    workers: int
    servers: int
    threads: int  # of each server
    storage: str
    kinds: tuple[str, ...]  # of tables


SPARSE, DENSE = "sparse", "dense"
SHAPES = [
    Shape(2, 2, 3, "float32", (SPARSE, DENSE)),
    Shape(3, 1, 1, "float16", (SPARSE, DENSE)),
    Shape(4, 1, 1, "float32", (SPARSE,)),
]
Tables = list[Any]


def tables_of(worker: Worker, shape: Shape) -> Tables:
    """For each optimiser a table of each kind, the sparse ones first."""
    found: Tables = []
    for kind in shape.kinds:
        for name in OPTIMIZERS:
            made = {"optimizer": Optimizer.by_name(name, lr=0.05), "storage": shape.storage}
            if kind == SPARSE:
                found.append(worker.sparse_table(f"s-{name}", DIM, **made))
            else:
                found.append(worker.dense_table(f"d-{name}", (WIDTH,), **made))
    return found


def reads_of(tables: Tables, keys: np.ndarray) -> list[Any]:
    return [(t, keys) if place < len(OPTIMIZERS) else t for place, t in enumerate(tables)]


def writes_of(tables: Tables, keys: np.ndarray, grads: Sequence[np.ndarray]) -> list[Any]:
    reads = reads_of(tables, keys)
    return [
        (*read, grad) if isinstance(read, tuple) else (read, grad)
        for read, grad in zip(reads, grads, strict=True)
    ]


def keys_of(rank: int, step: int) -> np.ndarray:
    """What a worker is about in a step; some of it others are, too."""
    return np.random.default_rng([rank, step]).choice(KEYS, 6, replace=False)


def gradients(values: Sequence[np.ndarray], rank: int, step: int) -> list[np.ndarray]:
    """A worker's gradients, which depend on all that it has pulled."""
    rng = np.random.default_rng([rank, step, 1])
    noise = {shape: rng.normal(size=shape).astype(F) / 10 for shape in ((6, DIM), (WIDTH,))}
    return [v * F(0.3) + noise[v.shape] for v in values]


def train(worker: Worker, shape: Shape) -> list[np.ndarray]:
    tables = tables_of(worker, shape)
    for step in range(STEPS):
        keys = keys_of(worker.rank, step)
        grads = gradients(worker.pull_many(reads_of(tables, keys)), worker.rank, step)
        worker.push_many(writes_of(tables, keys, grads))
        worker.step()
    worker.barrier()
    return worker.pull_many(reads_of(tables, np.arange(KEYS)), create=False)


@cache
def one_process(shape: Shape) -> list[np.ndarray]:
    """The reference."""
    (worker,) = LocalCluster(1, mode="async", seed=7).workers
    tables = tables_of(worker, shape)
    for step in range(STEPS):
        all_keys = [keys_of(rank, step) for rank in range(shape.workers)]
        totals = [
            np.zeros((KEYS, DIM) if place < len(OPTIMIZERS) else WIDTH, F)
            for place in range(len(tables))
        ]
        for rank, keys in enumerate(all_keys):
            part = gradients(worker.pull_many(reads_of(tables, keys)), rank, step)
            for total, grad in zip(totals, part, strict=True):
                total[keys if total.ndim == 2 else slice(None)] += grad
        touched = np.unique(np.concatenate(all_keys))
        grads = [total[touched] if total.ndim == 2 else total for total in totals]
        worker.push_many(writes_of(tables, touched, grads))
    return worker.pull_many(reads_of(tables, np.arange(KEYS)), create=False)


@pytest.fixture(scope="module", params=SHAPES, ids=str)
def results(request: pytest.FixtureRequest) -> tuple[Shape, list[list[np.ndarray]]]:
    """What each worker of a cluster sees in the end."""
    shape: Shape = request.param
    nodes = local_cluster(
        shape.servers, shape.workers, "sync", seed=7, server_threads=shape.threads
    )
    with nodes as cluster:
        return shape, cluster.run(partial(train, shape=shape))


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_workers_in_sync_equal_one_process_that_adds_in_rank_order(
    results: tuple[Shape, list[list[np.ndarray]]], name: str
) -> None:
    shape, seen = results
    expected = one_process(shape)

    for values in seen:
        for place in range(OPTIMIZERS.index(name), len(values), len(OPTIMIZERS)):
            assert values[place].tobytes() == expected[place].tobytes()


PROGRAM = """
    import pslite
    from tests.pslite.test_sync_is_one_process import SHAPES, digest_of, train

    with pslite.connect() as worker:
        print("digest", digest_of(train(worker, SHAPES[0])))
"""


def digest_of(values: Sequence[np.ndarray]) -> str:
    return hashlib.sha256(b"".join(value.tobytes() for value in values)).hexdigest()


@pytest.mark.slow
def test_two_processes_in_sync_equal_one_that_adds_in_rank_order(
    run_job: Callable[..., subprocess.CompletedProcess[str]],
) -> None:
    shape = SHAPES[0]
    options = ["param_sync.mode=sync", "run.deterministic=yes", "run.seed=7"]
    settings = (word for option in options for word in ("--set", option))

    result = run_job(PROGRAM, shape.servers, shape.workers, *settings)

    assert result.returncode == 0
    seen = [line.split()[-1] for line in result.stdout.splitlines() if "digest" in line]
    assert seen == [digest_of(one_process(shape))] * 2
