"""A training whose result shows each push that counts twice, not at all, or out of turn."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from kv.optimizers import Adam
from kv.remote_worker import RemoteWorker
from kv.tables import RemoteSparseTable


def train(
    worker: RemoteWorker,
    steps: int,
    after_step: Callable[[RemoteSparseTable, int], None] = lambda table, step: None,
) -> bytes:
    """Steps of a sparse and a dense table, by gradients of the rank's own; all that they hold."""
    table = worker.sparse_table("emb", 2, optimizer=Adam(lr=0.1))
    dense = worker.dense_table("bias", [4100], optimizer=Adam(lr=0.1))
    rng = np.random.default_rng(worker.rank)
    for step in range(steps):
        keys = rng.integers(0, 9, size=rng.integers(0, 6))
        rows, bias = worker.pull_many([(table, keys), dense])
        grads = rows * 0.3 + rng.normal(size=rows.shape)
        worker.push_many([(table, keys, grads), (dense, bias + step)])
        table.push(np.arange(step), np.full((step, 2), 0.5))
        worker.step()
        after_step(table, step)
    worker.finish()
    worker.barrier()
    return table.pull(np.arange(9), create=False).tobytes() + dense.pull().tobytes()
