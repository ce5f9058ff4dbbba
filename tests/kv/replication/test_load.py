"""Copies under load: nodes that work hard still say that they live."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest

from kv.optimizers import SGD
from pslite import local_cluster

ROWS, DIM = 50_000, 64  # 12.8 MB of gradients a push


@pytest.mark.soak
def test_nobody_is_declared_dead_while_servers_copy_as_much_as_they_can() -> None:
    keys, grads = np.arange(ROWS, dtype=np.uint64), np.ones((ROWS, DIM), np.float32)
    silences: list[float] = []
    is_over = threading.Event()

    with local_cluster(servers=2, replicas=1) as nodes:
        (worker,) = nodes.workers
        scheduler = nodes.scheduler
        assert scheduler is not None

        def watch() -> None:
            while not is_over.wait(0.05):
                silences.extend(age for _, age in scheduler._facts()["heartbeats"])

        watcher = threading.Thread(target=watch)
        watcher.start()
        table = worker.sparse_table("t", DIM, optimizer=SGD(lr=1), missing="zeros")
        pushes, started = 0, time.monotonic()
        while time.monotonic() < started + 1.5 * scheduler.shape.heartbeat_timeout:
            requests = [table.push(keys, grads) for _ in range(4)]
            pushes += len(requests)
            for request in requests:
                worker.wait(request)
        seconds = time.monotonic() - started
        is_over.set()
        watcher.join()
        assert not scheduler.view.fenced
        np.testing.assert_array_equal(table.pull(keys[:100]), -pushes)

    rate = pushes * grads.nbytes / seconds / 1e6
    print(f"{rate:.0f} MB/s of gradients, longest silence {max(silences):.1f} s")
    assert max(silences) < scheduler.shape.heartbeat_timeout
