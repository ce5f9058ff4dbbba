"""A run whose order was written down is run again under other timing, to the same bits."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kv.consistency.settings import SSP, Async, Consistency, DCAsync, SemiSync, Sync
from kv.optimizers import Adagrad, Adam
from kv.remote_worker import RemoteWorker
from tests.kv.replay.cluster import Cluster, recorded, replayed
from van.faults import Faults

MODES = [
    Async(),
    Async(lr_by_staleness=1),
    DCAsync(lam=0.5),
    SSP(0),
    SSP(2),
    Sync(),
    SemiSync(0.5),
    SemiSync(backup_workers=1),
]
SLOW = Faults(delay=0.5, delay_up_to=3.0)
LOSSY = Faults(drop=0.1, duplicate=0.1, delay=0.3, delay_up_to=2.0, reorder=0.2)


def train(worker: RemoteWorker, *, prefetches: bool = True) -> list[bytes]:
    """Some steps whose gradients depend on what was pulled; all that this worker saw."""
    adam = worker.sparse_table("adam", 3, optimizer=Adam(lr=0.1))
    half = worker.sparse_table("half", 2, optimizer=Adagrad(lr=0.3), storage="float16")
    dense = worker.dense_table("dense", (5000,), optimizer=Adam(lr=0.1))
    rng, seen = np.random.default_rng(worker.rank), []
    for step in range(6):
        keys = rng.integers(0, 12, size=rng.integers(1, 8))
        rows, short, w = worker.pull_many([(adam, keys), (half, keys), dense])
        seen += [rows.tobytes(), short.tobytes(), w[:9].tobytes()]
        noise = rng.normal(size=rows.shape)
        request = worker.push_many([(adam, keys, rows * 0.3 + noise), (dense, w * 0.1 + 1)])
        if prefetches and step % 3 == 1:
            half.prefetch(keys)
        if step % 2:
            worker.wait(request)
        half.push(keys, short * 0.5 + noise[:, :2])
        worker.step()
    worker.finish()
    worker.barrier()
    final = worker.pull_many([(adam, np.arange(12)), (half, np.arange(12)), dense], create=False)
    return [*seen, *(values.tobytes() for values in final)]


@pytest.mark.parametrize("mode", MODES, ids=str)
@pytest.mark.parametrize("faults", [SLOW, LOSSY], ids=["slow", "lossy"])
def test_a_replay_gives_the_bits_of_the_recorded_run(
    tmp_path: Path, mode: Consistency, faults: Faults
) -> None:
    # A prefetch that was lost and is dropped before it is sent again never was, for the servers.
    program = partial(train, prefetches=faults is SLOW)
    first = Cluster(1, mode, recorded(tmp_path, mode), faults=faults)
    seen = first.run(program)

    for seed, other in ((2, faults), (3, SLOW)):
        again = Cluster(seed, mode, replayed(tmp_path), faults=other)
        assert again.run(program) == seen
        assert again.state() == first.state()


def test_without_a_record_other_timing_gives_other_bits(tmp_path: Path) -> None:
    runs = [Cluster(seed, Async(), faults=SLOW) for seed in (1, 2)]
    seen: list[Any] = [run.run(train) for run in runs]

    assert seen[0] != seen[1]
    assert runs[0].state() != runs[1].state()
