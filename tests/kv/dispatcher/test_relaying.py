"""Requests that dispatchers pass on answer what they would without."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from kv.errors import MissingKeyError, TableConflictError
from kv.optimizers import SGD
from kv.remote_worker import RemoteWorker
from tests.kv.dispatcher.tier import Tier, storm


def use_everything(worker: RemoteWorker) -> dict[str, Any]:
    """What a table's other calls say."""
    table = worker.sparse_table("t", 2, optimizer=SGD(lr=1), initializer=None)
    dense = worker.dense_table("d", [3], optimizer=SGD(lr=1), initializer=None)
    keys = np.arange(50, dtype=np.uint64)
    table.assign(keys, np.repeat(keys[:, None], 2, axis=1))
    dense.assign([1, 2, 3])
    changed = table.pull_changed()
    worker.set_lr(table, 0.5)
    worker.wait(table.push(keys[:10], np.ones((10, 2))))
    later = table.pull_changed(changed.version)
    meta = table.get_meta(keys[:4])
    deleted = table.delete(keys[40:])
    rows = {int(k): v.tolist() for some in table.items() for k, v in zip(*some, strict=True)}
    return {
        "first": sorted(changed.keys.tolist()),
        "later": sorted(later.keys.tolist()),
        "clocks": meta.clocks,
        "deleted": deleted,
        "size": len(table),
        "rows": rows,
        "dense": dense.pull().tolist(),
        "servers": len(table.stats()),
        "both": table.push_pull(keys[:1], np.ones((1, 2))).tolist(),
    }


@pytest.mark.parametrize("seed", range(2))
def test_all_requests_answer_as_without_dispatchers(seed: int) -> None:
    said: list[dict[str, Any]] = []
    for dispatchers in (0, 1):
        tier = Tier(seed, workers=1, dispatchers=dispatchers, plan=storm(seed))
        tier.train(lambda worker: said.append(use_everything(worker)))

    assert said[0] == said[1]
    assert said[0]["later"] == list(range(10))


def test_errors_come_as_servers_have_put_them() -> None:
    def program(worker: RemoteWorker) -> None:
        worker.sparse_table("t", 2)
        with pytest.raises(TableConflictError, match="two definitions disagree"):
            worker.sparse_table("t", 3)
        strict = worker.sparse_table("s", 1, missing="error", initializer=None)
        with pytest.raises(MissingKeyError, match="table s"):
            strict.pull([4])

    Tier(0, workers=2, dispatchers=1).train(program)


def test_pushes_that_are_too_stale_are_tried_again_by_the_dispatcher() -> None:
    tier = Tier(0, workers=2, dispatchers=1)
    tier.max_staleness = 1
    seen: list[float] = []

    def program(worker: RemoteWorker) -> None:
        table = worker.sparse_table("t", 1, optimizer=SGD(lr=1), missing="zeros")
        table.pull([3])
        worker.barrier("pulled")
        for _ in range(4):
            worker.wait(table.push([3], [[-1.0]]))
        worker.barrier("pushed")
        seen.append(float(table.pull([3])[0, 0]))

    tier.train(program)

    assert seen == [8.0, 8.0]
