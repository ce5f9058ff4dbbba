"""Workers as processes that die amid their pieces: the accounts balance all the same."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from functools import partial
from pathlib import Path

import pytest
from click.testing import CliRunner

from pslite import cli, local_cluster
from pslite.audit import audit

RunJob = Callable[..., subprocess.CompletedProcess[str]]

# Adds 1 for each record; rank 1 dies in its first piece, once.
COUNTS = """
    import os, signal, sys
    import numpy as np
    import pslite

    with pslite.connect() as worker:
        table = worker.sparse_table("counts", 1, optimizer=pslite.SGD(lr=1.0), missing="zeros")
        shards = worker.shards("numbers", 2000, epochs=2, unit=10)
        if not shards.has_begun:
            worker.barrier("all are there")
        for piece in shards:
            for start in range(piece.start, piece.stop, 10):
                worker.wait(table.push([piece.epoch], [[-10.0]]))
                shards.seen(start + 10 - piece.start)
                if worker.rank == 1 and not os.path.exists("died"):
                    open("died", "w").close()
                    {death}
        worker.barrier("all is read")
        if worker.rank == 0:
            print("sums", table.pull([1, 2]).ravel().astype(int).tolist())
"""
KILL = "os.kill(os.getpid(), signal.SIGKILL)"
KILL_SCHEDULER = """
                    import json
                    for node in json.load(open("run/cluster.json"))["nodes"]:
                        if node["role"] == "scheduler":
                            os.kill(node["pid"], signal.SIGKILL)
"""


def sums(result: subprocess.CompletedProcess[str]) -> list[int]:
    (line,) = [line for line in result.stdout.splitlines() if "sums" in line]
    found: list[int] = json.loads(line.partition("sums ")[2])
    return found


@pytest.mark.parametrize(
    "death", [KILL, pytest.param('raise RuntimeError("no more")', marks=pytest.mark.slow)]
)
def test_a_worker_started_again_carries_on_and_every_record_counts_once(
    run_job: RunJob, tmp_path: Path, death: str
) -> None:
    result = run_job(COUNTS.format(death=death), 1, 2, "--set", "cluster.on_worker_failure=restart")

    assert result.returncode == 0
    assert "worker 1 was restarted 1 time" in result.stderr
    account = audit(tmp_path / "run")["numbers"]
    assert account.balances, account.problems
    assert account.returned == 1
    assert sum(sums(result)) == 4000 + account.doubles  # 10 records were seen twice
    assert account.doubles == 10


@pytest.mark.slow  # it takes up its journal, and then all wait for its answers
def test_a_scheduler_started_again_goes_on_with_its_ledger(run_job: RunJob, tmp_path: Path) -> None:
    (tmp_path / "run").mkdir()
    (tmp_path / "run" / "scheduler.journal").write_bytes(b"of an earlier job")
    program = COUNTS.format(death=KILL_SCHEDULER.lstrip())

    result = run_job(program, 1, 2, "--set", "cluster.on_worker_failure=restart")

    assert result.returncode == 0
    assert "scheduler was restarted 1 time" in result.stderr
    account = audit(tmp_path / "run")["numbers"]
    assert account.balances, account.problems
    assert sum(sums(result)) == 4000 + account.doubles


@pytest.mark.slow  # a dead worker is noticed after the time-out
def test_the_others_read_what_a_dead_worker_had_not(run_job: RunJob, tmp_path: Path) -> None:
    result = run_job(COUNTS.format(death=KILL), 1, 3, "--set", "cluster.on_worker_failure=continue")

    assert result.returncode == 0
    assert "worker 1 was lost (killed by SIGKILL" in result.stderr
    account = audit(tmp_path / "run")["numbers"]
    assert account.balances, account.problems
    assert 1 not in account.records
    assert sum(sums(result)) == 4000 + account.doubles


@pytest.mark.slow
def test_a_worker_that_fails_each_time_ends_the_job_with_its_code(run_job: RunJob) -> None:
    program = "import sys, pslite\nwith pslite.connect() as worker: sys.exit(7)"
    options = ["cluster.on_worker_failure=restart", "cluster.max_restarts=1"]

    result = run_job(program, 1, 1, *(part for o in options for part in ("--set", o)))

    assert result.returncode == 7
    assert "exit code 7, after 1 restarts" in result.stderr


def test_audit_says_by_its_exit_code_whether_the_ledger_balances(tmp_path: Path) -> None:
    act = partial(CliRunner().invoke, cli.main, ["audit", str(tmp_path / "run")])

    absent = act()
    (tmp_path / "run").mkdir()
    nothing = act()
    with local_cluster(1, 1, run_dir=tmp_path / "run") as cluster:
        assert len(list(cluster.workers[0].shards("numbers", 2000, epochs=2, unit=10))) > 1
    good = act()
    ledger = tmp_path / "run" / "ledger.jsonl"
    lines = ledger.read_text().splitlines(keepends=True)
    ledger.write_text("".join(line for line in lines if '"done", "data"' not in line))
    bad = act()

    assert absent.exit_code == nothing.exit_code == 2
    assert "there is no folder" in absent.stderr
    assert "no job there has leased training data" in nothing.stderr
    assert good.exit_code == 0
    assert "numbers: every record exactly once" in good.stdout
    assert bad.exit_code == 1
    assert "records 0 to 1999 of epoch 1 not counted" in bad.stdout
