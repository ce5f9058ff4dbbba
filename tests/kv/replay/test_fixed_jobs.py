"""What a job that is to repeat does and does not do while it runs."""

from __future__ import annotations

import errno
import os
import subprocess
import sys
import textwrap
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from kv.consistency.settings import Async, Sync
from kv.errors import KVError, SettingError
from kv.optimizers import Adam
from kv.placement_app import PlacementApp
from kv.remote_worker import RemoteWorker
from kv.replay.errors import RecordError
from kv.replay.recordfile import read_record, server_file
from postoffice.head import SchedulerOffice
from postoffice.postoffice import ClusterShape
from tests.kv.replay.cluster import Cluster, recorded
from van.faults import Faults
from van.loopback import LoopbackNetwork

ROOT = Path(__file__).resolve().parents[3]


def test_its_scheduler_moves_no_rows_to_other_servers() -> None:
    shape = ClusterShape(servers=2, workers=1, scheduler="scheduler")
    office = SchedulerOffice(LoopbackNetwork(1).van(), shape, incarnation=1)
    app = PlacementApp(office, why_fixed="it is recorded")
    app._has_started = True

    with pytest.raises(KVError, match="this job cannot be scaled: it is recorded"):
        app.scale(3)


def test_rows_come_by_their_keys_whoever_made_them_first() -> None:
    def program(worker: RemoteWorker) -> list[Any]:
        table = worker.sparse_table("t", 2, optimizer=Adam(lr=0.1))
        for key in np.random.default_rng(worker.rank).permutation(40):
            table.pull([key])
        worker.step()
        worker.barrier()
        batches = list(table.items())
        changed = table.pull_changed()
        return [[keys.tolist() for keys, _ in batches], changed.keys.tolist()]

    for seed in (1, 2):
        job = Cluster(seed, Sync(), faults=Faults(delay=0.5), is_deterministic=True)
        for batches, changed in job.run(program).values():
            assert [key for batch in batches for key in batch] == list(range(40))
            assert changed == list(range(40))


def test_it_has_no_prefetch_beside_other_workers() -> None:
    def program(worker: RemoteWorker) -> None:
        table = worker.sparse_table("t", 2, optimizer=Adam(lr=0.1))
        if worker.num_workers == 1:
            table.prefetch([1])
            table.pull([1])
        else:
            with pytest.raises(SettingError, match=r"prefetch .* \[run\] deterministic"):
                table.prefetch([1])

    for workers in (1, 2):
        Cluster(1, Sync(), workers=workers, is_deterministic=True).run(program)


def test_a_record_that_cannot_be_written_ends_the_server_with_the_file(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    write, written = os.write, list[int]()

    def full(file: int, data: bytes) -> int:
        if data[:4] == b"TURN":
            raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
        written.append(len(data))
        return write(file, data)

    def program(worker: RemoteWorker) -> None:
        table = worker.sparse_table("t", 2, optimizer=Adam(lr=0.1))
        table.pull([1])

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(RecordError, match=r"server-\d\.record: cannot be written: No space left"):
        Cluster(1, Async(), recorded(tmp_path, Async())).run(program)
    assert written


def test_a_record_is_whole_after_a_signal(tmp_path: Path) -> None:
    program = """
        import os, signal, sys
        from pathlib import Path
        from kv.replay.entry import Entry
        from kv.replay.recordfile import Head, RecordWriter, server_file
        from pslite.ordering import whole_at_signal
        head = Head(server=0, servers=1, workers=1, mode="async", seed=1, threads=1)
        writer = RecordWriter(server_file(Path(sys.argv[1]), 0), head)
        writer.number_of([])
        with whole_at_signal(writer.close):
            writer.add(Entry(1, 2, 0, 0, 4))
            os.kill(os.getpid(), signal.SIGTERM)
        print("still there")
    """
    command = [sys.executable, "-c", textwrap.dedent(program), str(tmp_path)]

    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=120, check=False
    )

    assert (result.returncode, result.stdout) == (-15, ""), result.stderr
    record = read_record(server_file(tmp_path, 0))
    assert record.ended == "its node got SIGTERM"
    assert record.entries["timestamp"].tolist() == [1]
