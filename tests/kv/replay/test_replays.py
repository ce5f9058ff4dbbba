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
from kv.replay.errors import DivergenceError
from kv.replay.recordfile import RecordWriter, read_record, server_file
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


@pytest.mark.parametrize(
    ("mode", "faults"),
    [
        *(pytest.param(mode, SLOW, id=f"{mode}-slow") for mode in MODES),
        *(pytest.param(MODES[place], LOSSY, id=f"{MODES[place]}-lossy") for place in (1, 4, 6)),
    ],
)
def test_a_replay_gives_the_bits_of_the_recorded_run(
    tmp_path: Path, mode: Consistency, faults: Faults
) -> None:
    # A prefetch that was lost and is dropped before it is sent again never was, for the servers.
    program = partial(train, prefetches=faults is SLOW)
    first = Cluster(1, mode, recorded(tmp_path, mode), faults=faults)
    seen = first.run(program)

    for seed, other in ((2, faults), (3, None)):
        again = Cluster(seed, mode, replayed(tmp_path), faults=other)
        assert again.run(program) == seen
        assert again.state() == first.state()


def test_pushes_that_were_refused_as_too_stale_are_refused_again(tmp_path: Path) -> None:
    def program(worker: RemoteWorker) -> list[bytes]:
        table = worker.sparse_table("t", 2, optimizer=Adam(lr=0.1))
        seen = []
        for _ in range(6):
            rows = table.pull([1, 2])
            worker.wait(table.push([1, 2], rows * 0.3 + worker.rank))
            seen.append(rows.tobytes())
        return seen

    # No answer takes so long that what it answers is sent again: a worker cannot tell a copy of a
    # refusal from another one, and would count both as tries.
    faults = Faults(delay=0.5, delay_up_to=0.4)
    first = Cluster(1, Async(), recorded(tmp_path, Async()), faults=faults, max_staleness=0)
    seen = first.run(program)
    again = Cluster(2, Async(), replayed(tmp_path), max_staleness=0)

    assert again.run(program) == seen
    assert again.state() == first.state()
    entries = read_record(server_file(tmp_path, 0)).entries[["rank", "timestamp"]]
    assert len(set(entries.tolist())) < len(entries)  # some went more than once


def test_a_worker_that_leaves_a_request_out_is_found_out_after_the_limit(tmp_path: Path) -> None:
    def program(worker: RemoteWorker, pulls: int) -> None:
        table = worker.sparse_table("t", 2, optimizer=Adam(lr=0.1))
        for _ in range(pulls if worker.rank else 3):
            table.pull([1, 2])
        worker.barrier()

    Cluster(1, Async(), recorded(tmp_path, Async())).run(partial(program, pulls=3))

    with pytest.raises(DivergenceError, match=r"for 50 s .* the pull of worker 1 .* has not come"):
        Cluster(1, Async(), replayed(tmp_path, limit=50)).run(partial(program, pulls=2))


def test_a_run_that_ends_too_early_is_found_out_at_its_end(tmp_path: Path) -> None:
    def program(worker: RemoteWorker, pulls: int) -> None:
        table = worker.sparse_table("t", 2, optimizer=Adam(lr=0.1))
        for _ in range(pulls):
            table.pull([1, 2])

    alone = {"workers": 1, "servers": 1}
    Cluster(1, Async(), recorded(tmp_path, Async(), **alone), **alone).run(
        partial(program, pulls=3)
    )
    path = server_file(tmp_path, 0)
    lengthen(path)

    with pytest.raises(DivergenceError, match="it has ended, but 1 requests did not come"):
        Cluster(1, Async(), replayed(tmp_path), **alone).run(partial(program, pulls=3))


def lengthen(path: Path) -> None:
    """Let a record have its last request once more."""
    record = read_record(path)
    path.unlink()
    writer = RecordWriter(path, record.head)
    for names in record.lists:
        writer.number_of(names)
    for place in range(record.entries.size):
        writer.add(record.entry(place))
    last = record.entry(record.entries.size - 1)
    writer.add(last._replace(timestamp=last.timestamp + 1))
    writer.close()


def test_without_a_record_other_timing_gives_other_bits(tmp_path: Path) -> None:
    runs = [Cluster(seed, Async(), faults=SLOW) for seed in (1, 2)]
    seen: list[Any] = [run.run(train) for run in runs]

    assert seen[0] != seen[1]
    assert runs[0].state() != runs[1].state()
