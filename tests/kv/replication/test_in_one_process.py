"""Copies in a cluster whose nodes are threads of one process."""

from __future__ import annotations

import time

import numpy as np
import pytest

from kv.optimizers import SGD
from kv.remote_worker import RemoteWorker
from pslite import local_cluster
from van.errors import ConfigError

KEYS = np.arange(300, dtype=np.uint64)


def test_a_local_cluster_keeps_copies_if_asked() -> None:
    def program(worker: RemoteWorker) -> int:
        table = worker.sparse_table("t", 2, optimizer=SGD(lr=1), initializer=None, missing="zeros")
        pushes, deadline = 0, time.monotonic() + 60
        while time.monotonic() < deadline:
            worker.wait(table.push(KEYS, np.ones((KEYS.size, 2))))
            pushes += 1
            if sum(stats["copies"] for stats in table.stats()) == KEYS.size:
                break
        np.testing.assert_array_equal(table.pull(KEYS), -pushes)
        return sum(stats["copies"] for stats in table.stats())

    with local_cluster(servers=2, replicas=1) as nodes:
        assert nodes.run(program) == [KEYS.size]


def test_copies_of_a_local_cluster_need_a_second_server() -> None:
    with pytest.raises(ConfigError, match="at least two servers"):
        local_cluster(servers=1, replicas=1)
