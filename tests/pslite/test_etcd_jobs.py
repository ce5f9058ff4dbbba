"""Jobs that keep their books in etcd, one after the other under one name."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from postoffice.etcd import Etcd, EtcdJournal
from postoffice.node import Role
from pslite.config import parse_job
from pslite.environ import NodeSettings, from_environ, to_environ
from pslite.node import _journal
from pslite.recovery import Recovery

LIMIT = 120.0
PROGRAM = """
import sys, time
import numpy as np, pslite

with pslite.connect() as worker:
    table = worker.sparse_table("t", 2, optimizer=pslite.SGD(lr=1), initializer=pslite.Zeros())
    worker.wait(table.push([1, 2, 3], np.ones((3, 2))))
    print("pushed", flush=True)
    while len(sys.argv) > 1:
        time.sleep(1)
    assert (table.pull([1, 2, 3]) == -1).all()
"""


def leave_behind(etcd: str) -> EtcdJournal:
    """What a job called `local` has kept; its scheduler has gone."""
    former = EtcdJournal(Etcd(etcd), "local")
    assert former.campaign()
    former.load()
    former.append(b"nodes")
    former.close()
    return former


@pytest.mark.parametrize("begins", [True, False])
def test_only_a_scheduler_with_which_a_job_begins_forgets_what_is_there(
    etcd: str, begins: bool
) -> None:
    leave_behind(etcd)
    job = parse_job(f"[cluster]\netcd = {etcd}\nscheduler = 127.0.0.1:9\n")
    settings = NodeSettings(role=Role.SCHEDULER, job=job, begins=begins)

    journal = _journal(replace(from_environ(to_environ(settings)), job=job))

    assert journal is not None
    assert journal.load() == ([] if begins else [b"nodes"])
    journal.close()


def test_a_job_that_begins_again_leaves_nothing_for_a_standby_to_find(
    etcd: str, tmp_path: Path
) -> None:
    former = leave_behind(etcd)
    saved = tmp_path / "saved"
    job = parse_job(
        f"[cluster]\netcd = {etcd}\non_server_failure = restart\n[checkpoint]\ndir = {saved}\n"
    )

    _, whence = Recovery(job).job_again()

    assert "from its beginning" in whence
    assert former.load() == []


@pytest.mark.slow
def test_a_job_does_not_find_the_nodes_of_one_that_was_killed(
    etcd: str, tmp_path: Path, environment: Callable[..., dict[str, str]]
) -> None:
    (tmp_path / "worker.py").write_text(PROGRAM)
    (tmp_path / "local.ini").write_text("[run]\nseed = 9\n")
    command = [
        sys.executable,
        "-m",
        "pslite",
        "local",
        "local.ini",
        "--servers",
        "1",
        "--workers",
        "1",
    ]
    # So patient that the job would not end if it waited for nodes of the one before.
    command += ["--set", f"cluster.etcd={etcd}", "--set", "cluster.heartbeat_timeout=1000"]
    command += ["--", "python", "worker.py"]
    env, journal = environment(), EtcdJournal(Etcd(etcd), "local")
    first = subprocess.Popen(
        [*command, "stay"], cwd=tmp_path, env=env, stdout=subprocess.PIPE, text=True
    )
    assert first.stdout is not None
    assert any("pushed" in line for line in first.stdout)  # ends with the first such line
    os.kill(first.pid, signal.SIGKILL)
    first.wait(LIMIT)
    first.stdout.close()
    assert journal.load()

    second = subprocess.run(
        command, cwd=tmp_path, env=env, capture_output=True, text=True, timeout=LIMIT, check=False
    )

    print(second.stdout, second.stderr)
    assert second.returncode == 0
    assert "goes on with the cluster" not in second.stderr + second.stdout
    assert journal.load() == []
