"""Rounds that do not wait for everybody, through dispatchers: nobody waits for ever."""

from __future__ import annotations

import numpy as np
import pytest

from kv.consistency.settings import SemiSync
from kv.initializers import Zeros
from kv.optimizers import SGD
from kv.remote_worker import RemoteWorker
from tests.kv.dispatcher.tier import Tier

KEYS = np.arange(30)


def descend(worker: RemoteWorker, steps: int) -> None:
    """Pull from and push to all servers; worker 0 is slow now and then, and 2 never pulls."""
    table = worker.sparse_table("t", 1, optimizer=SGD(lr=1), initializer=Zeros())
    for step in range(steps):
        if worker.rank == 0 and step % 3 == 1:
            worker.office.wait(lambda: False, 0.5)
        if worker.rank != 2:
            table.pull(KEYS)
        table.push(KEYS, -np.ones((KEYS.size, 1)))
        worker.step()


@pytest.mark.parametrize("dispatchers", [0, 2])
@pytest.mark.parametrize("mode", [SemiSync(), SemiSync(2), SemiSync(backup_workers=1)], ids=repr)
@pytest.mark.parametrize("seed", range(3))
def test_workers_never_all_wait_each_at_another_server(
    seed: int, mode: SemiSync, dispatchers: int
) -> None:
    tier = Tier(seed, servers=2 + seed % 2, workers=4, dispatchers=dispatchers, mode=mode)

    tier.train(lambda worker: descend(worker, 10 + worker.rank))

    engines = [server.engine for server in tier.servers.values()]
    dropped = sum(engine.stats(0)["dropped"] for engine in engines)
    assert (dropped > 0) <= (mode.backup_workers > 0)
    assert len({tuple(engine.progress.positions) for engine in engines}) == 1
    assert len({tuple(engine.progress.completed) for engine in engines}) == 1
