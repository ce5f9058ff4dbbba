"""A worker that never ends a step, though its tables count them."""

from __future__ import annotations

import numpy as np
import pytest

from pslite.session import local_cluster

KEYS = np.arange(4, dtype=np.uint64)
ONES = np.ones((4, 2), np.float32)


@pytest.mark.parametrize(
    ("mode", "pushes", "steps", "is_told"),
    [
        ("sync", 1, 0, True),
        ("semi_sync", 1, 0, True),
        ("sync", 1, 1, False),
        ("sync", 0, 0, False),
        ("async", 1, 0, False),
    ],
)
def test_it_is_told_so_where_that_matters(
    mode: str, pushes: int, steps: int, is_told: bool, caplog: pytest.LogCaptureFixture
) -> None:
    with local_cluster(servers=1, workers=1, mode=mode) as nodes:
        (worker,) = nodes.workers
        table = worker.sparse_table("t", 2)
        for _ in range(pushes):
            worker.wait(table.push(KEYS, ONES))
        for _ in range(steps):
            worker.step()

    assert any("without ever having called step()" in line for line in caplog.messages) == is_told
