"""What a definition says of optimiser, aggregator and storage reaches the servers whole."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from kv.local import LocalCluster
from kv.optimizers import FTRL, Adagrad, AdamW
from kv.protocols import Worker
from kv.schedules import CosineDecay, StepDecay, Warmup
from pslite import local_cluster

SETTINGS: list[dict[str, Any]] = [
    {
        "optimizer": FTRL(lr=0.3, l1=0.05, schedule=Warmup(3, then=CosineDecay(20))),
        "aggregator": "mean",
    },
    {
        "optimizer": Adagrad(lr=0.3, clip_norm=1.0, weight_decay=0.01),
        "aggregator": "max_norm",
        "storage": "float16",
    },
    {"optimizer": Adagrad(lr=0.3), "aggregator": "weighted_mean"},
    {"optimizer": AdamW(lr=0.1, clip_value=0.5, schedule=StepDecay(4, 0.5)), "storage": "float16"},
]


def train(worker: Worker, settings: dict[str, Any]) -> np.ndarray:
    """A few steps whose gradients depend on rank and on what was pulled."""
    table = worker.sparse_table("emb", 3, **settings)
    rng = np.random.default_rng(worker.rank)
    for _ in range(12):
        keys = rng.integers(0, 12, size=rng.integers(0, 9))
        rows = table.pull(keys)
        grads = rows * 0.3 + rng.normal(size=rows.shape)
        worker.push_many([(table, keys, grads)], weight=1.0 + worker.rank)
        worker.step()
    worker.barrier()
    return table.pull(np.arange(12), create=False)


@pytest.mark.parametrize("settings", SETTINGS, ids=str)
def test_servers_do_to_the_bit_what_one_process_does(settings: dict[str, Any]) -> None:
    with local_cluster(servers=2, workers=3, mode="sync", seed=9) as nodes:
        remote = nodes.run(lambda worker: train(worker, settings))
    local = LocalCluster(3, mode="sync", seed=9, threads=True)
    here: dict[int, np.ndarray] = {}
    threads = [
        threading.Thread(
            target=lambda rank=rank: here.update({rank: train(local.worker(rank), settings)})
        )
        for rank in range(3)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()

    for rank in range(3):
        np.testing.assert_array_equal(remote[rank], here[0])
