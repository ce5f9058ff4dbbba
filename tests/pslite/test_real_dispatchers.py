"""Real processes: workers train through dispatchers; one of them dies as `kill -9` has it."""

from __future__ import annotations

import json
import os
import re
import signal
import subprocess
import sys
import textwrap
import time
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent.parent
LIMIT = 200.0  # seconds; no job should come near

WORKER = """
    import sys, time
    from pathlib import Path
    import numpy as np, pslite

    rounds, gate = int(sys.argv[1]), Path(sys.argv[2])
    keys = np.arange(500)
    with pslite.connect() as worker:
        table = worker.sparse_table("t", 2, optimizer=pslite.SGD(lr=1), initializer=pslite.Zeros())
        dense = worker.dense_table("d", [300], optimizer=pslite.SGD(lr=1), initializer=None)
        begun = worker.steps
        print("begun at", begun, flush=True)
        for number in range(begun, rounds):
            table.pull(keys)
            worker.push_many([(table, keys, np.ones((500, 2))), (dense, np.ones(300))])
            worker.step()
            if number == rounds // 3 and worker.rank == 0:
                gate.touch()
            if number == rounds // 2 and len(sys.argv) > 3 and worker.way.node == 1 << 20:
                assert worker.office.wait(lambda: worker.way.wanted and worker.way.is_changing, 60)
            if number >= rounds // 3:
                time.sleep(0.005)  # the killer needs a moment
        worker.finish()
        worker.barrier("all have pushed")
        rows, array = table.pull(keys), dense.pull()
        print("values", set(rows.ravel().tolist()) | set(array.tolist()), flush=True)
"""


def start(
    folder: Path, mode: str, workers: int, rounds: int, **chosen: str
) -> subprocess.Popen[str]:
    program = folder / "worker.py"
    program.write_text(textwrap.dedent(WORKER))
    settings = {
        "cluster.servers": "2",
        "cluster.dispatchers": "2",
        "cluster.heartbeat_interval": "250ms",
        "cluster.heartbeat_timeout": "1500ms",
        "param_sync.mode": mode,
        **{f"cluster.{key}": value for key, value in chosen.items()},
        "compression.*": "fp16",  # whole numbers are told exactly
    }
    command = [sys.executable, "-m", "pslite", "local", str(ROOT / "conf/local.ini")]
    command += ["--run", str(folder / "run"), "--workers", str(workers)]
    for key, value in settings.items():
        command += ["--set", f"{key}={value}"]
    command += ["--", sys.executable, str(program), str(rounds), str(folder / "gate")]
    command += ["comes back"] if "on_dispatcher_failure" in chosen else []
    return subprocess.Popen(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def kill(folder: Path, job: subprocess.Popen[str], role: str, rank: int) -> None:
    """Kill a node when the gate opens."""
    deadline = time.monotonic() + LIMIT
    while not (folder / "gate").exists():
        if job.poll() is not None:
            raise AssertionError(job.communicate()[0])
        assert time.monotonic() < deadline, "no worker got so far"
        time.sleep(0.02)
    nodes = json.loads((folder / "run" / "cluster.json").read_text())["nodes"]
    (pid,) = (n["pid"] for n in nodes if n["role"] == role and n["rank"] == rank)
    os.kill(pid, signal.SIGKILL)


@pytest.mark.parametrize("mode", ["async", pytest.param("sync", marks=pytest.mark.slow)])
def test_no_push_is_lost_or_counted_twice_when_a_dispatcher_is_killed(
    tmp_path: Path, mode: str
) -> None:
    workers, rounds = 3, 150
    job = start(tmp_path, mode, workers, rounds)
    try:
        kill(tmp_path, job, "dispatcher", 0)
        out, _ = job.communicate(timeout=LIMIT)
    finally:
        job.kill()
        job.wait()

    assert job.returncode == 0, out
    assert "dispatcher 0: killed by SIGKILL" in out
    assert out.count(f"values {{-{workers * rounds}.0}}") == workers, out


@pytest.mark.parametrize("mode", ["sync", pytest.param("async", marks=pytest.mark.slow)])
def test_a_killed_worker_goes_on_through_its_dispatcher(tmp_path: Path, mode: str) -> None:
    workers, rounds = 4, 150
    job = start(tmp_path, mode, workers, rounds, on_worker_failure="restart")
    try:
        kill(tmp_path, job, "worker", 1)
        out, _ = job.communicate(timeout=LIMIT)
    finally:
        job.kill()
        job.wait()

    assert job.returncode == 0, out
    assert "worker 1: killed by SIGKILL (is memory short?); it is started again" in out
    begun = sorted(map(int, re.findall(r"begun at (\d+)", out)))
    found = re.findall(r"values \{-(\d+)\.0\}", out)
    assert len(found) == workers
    assert len(set(found)) == 1
    if mode == "sync":
        assert begun[:-1] == [0] * workers
        assert 0 < begun[-1] <= rounds
        assert int(found[0]) == workers * rounds
    else:  # which counts no steps: its next life makes all of them
        assert begun == [0] * (workers + 1)
        assert workers * rounds < int(found[0]) < (workers + 1) * rounds


@pytest.mark.parametrize("mode", ["sync", pytest.param("async", marks=pytest.mark.slow)])
def test_a_dispatcher_is_started_again_and_its_workers_come_back(tmp_path: Path, mode: str) -> None:
    workers, rounds = 3, 150
    chosen = {"on_dispatcher_failure": "restart", "heartbeat_timeout": "20s"}
    job = start(tmp_path, mode, workers, rounds, **chosen)
    try:
        kill(tmp_path, job, "dispatcher", 0)
        out, _ = job.communicate(timeout=LIMIT)
    finally:
        job.kill()
        job.wait()

    assert job.returncode == 0, out
    assert "dispatcher 0: killed by SIGKILL (is memory short?); it is started again" in out
    assert out.count(f"values {{-{workers * rounds}.0}}") == workers, out
    facts = json.loads((tmp_path / "run" / "dispatcher0.json").read_text())
    assert facts["pushes"] >= rounds // 2 - 1, facts
