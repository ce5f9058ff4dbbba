"""Jobs of `pslite local` whose servers die, come and go: no push is lost or counted twice."""

from __future__ import annotations

import subprocess
from collections.abc import Callable
from pathlib import Path

import pytest

RunJob = Callable[..., subprocess.CompletedProcess[str]]

WORKER = """
    import json, os, signal, subprocess, sys
    import numpy as np, pslite

    KEYS = np.arange(3000, dtype=np.uint64)

    def pid_of(role, rank):
        with open("run/cluster.json") as file:
            nodes = json.load(file)["nodes"]
        return next(n["pid"] for n in nodes if (n["role"], n["rank"]) == (role, rank))

    def push():
        global pushes
        table.push(KEYS, np.ones((KEYS.size, 2)))
        pushes += 1
        if pushes % 7 == 0:
            worker.barrier()

    def check():
        worker.barrier()
        np.testing.assert_array_equal(table.pull(KEYS), -pushes)

    with pslite.connect() as worker:
        table = worker.sparse_table("t", 2, optimizer=pslite.SGD(lr=1), initializer=pslite.Zeros())
        pushes = 0
"""

SCALE = """
        for servers in {counts}:
            command = [sys.executable, "-m", "pslite", "ctl", "scale", "--servers", str(servers)]
            scaling = subprocess.Popen(command)
            while scaling.poll() is None:
                push()
            assert scaling.returncode == 0, scaling.returncode
            check()
            rows = [part["rows"] for part in table.stats()]
            assert len(rows) == servers and sum(rows) == KEYS.size and min(rows) > 0, rows
"""

# A copy that counts for a row is made anew whenever a server was lost. Rows that were copied do not
# suffice: the scheduler must know it, and the map says so.
KILL = """
        from kv.placement import NOBODY, SlotMap

        def has_copies():
            blob = worker.office.view.map_blob
            if not blob or NOBODY in SlotMap.from_bytes(blob).backup:
                return False
            return sum(part["copies"] for part in table.stats()) >= KEYS.size

        def wait_for_copies():
            while not has_copies():
                push()

        for victim in {victims}:
            wait_for_copies()
            os.kill(pid_of("server", victim), signal.SIGKILL)
            for _ in range(30):
                push()
            check()
        wait_for_copies()
        check()
"""


def scaled(*counts: int) -> str:
    return WORKER + SCALE.format(counts=counts)


def killed(*victims: int) -> str:
    return WORKER + KILL.format(victims=victims)


def test_servers_come_and_go_while_a_worker_pushes(run_job: RunJob) -> None:
    result = run_job(scaled(2, 1), 1, 1)

    assert result.returncode == 0
    assert "server 1 is started" in result.stdout
    assert "(1 server, 1 worker)" in result.stderr


@pytest.mark.soak
@pytest.mark.parametrize("options", [(), ("--set", "cluster.replicas=1")])
def test_a_seat_that_was_left_is_taken_again(run_job: RunJob, options: tuple[str, ...]) -> None:
    result = run_job(scaled(4, 2, 3), 2, 1, *options)

    assert result.returncode == 0
    assert "(3 servers, 1 worker)" in result.stderr


@pytest.mark.soak
def test_new_servers_of_a_job_with_keys_get_keys(run_job: RunJob) -> None:
    result = run_job(scaled(3, 2), 2, 1, "--set", "security.curve=on")

    assert result.returncode == 0


@pytest.mark.parametrize(
    "victims",
    [pytest.param((1,), marks=pytest.mark.slow), pytest.param((1, 0, 1), marks=pytest.mark.soak)],
)
def test_a_killed_server_with_copies_is_replaced_and_the_job_ends_well(
    run_job: RunJob, victims: tuple[int, ...]
) -> None:
    result = run_job(killed(*victims), 2, 1, "--set", "cluster.replicas=1")

    assert result.returncode == 0
    times = victims.count(1)
    assert f"server 1 was restarted {times} time" in result.stderr
    assert "killed by SIGKILL" in result.stderr


@pytest.mark.slow
def test_a_lost_server_ends_the_job_and_it_says_what_could_have_helped(run_job: RunJob) -> None:
    program = (
        WORKER
        + """
        push()
        os.kill(pid_of("server", 0), signal.SIGKILL)
        while True:
            push()
    """
    )
    result = run_job(program, 1, 1)

    assert result.returncode == 137
    assert "server 0: killed by SIGKILL" in result.stderr
    assert "no checkpoint: [checkpoint] dir is not set" in result.stderr


RESUMES = (
    WORKER
    + """
        from kv.checkpoint.collective import Checkpoints
        from pslite import environ

        config = environ.job_from_environ(dict(os.environ)).checkpoint
        checkpoints = Checkpoints.of(worker, config)
        found = checkpoints.resume(config.resume)
        begin = found.state["pushes"] if found else 0
        print("begins at", begin, config.resume, flush=True)
        pushes = begin
        for number in range(begin, 30):
            push()
            worker.step()
            checkpoints.at_step(lambda: {"pushes": pushes})
            if number == 25 and not begin:
                os.kill(pid_of("server", 1), signal.SIGKILL)
        check()
        assert pushes == 30
"""
)
CHECKPOINTS = ("checkpoint.dir=kept", "checkpoint.every_steps=10")


def settings(*assignments: str) -> list[str]:
    return [text for assignment in assignments for text in ("--set", assignment)]


@pytest.mark.slow
def test_without_copies_the_job_begins_again_from_its_last_checkpoint(run_job: RunJob) -> None:
    options = settings(*CHECKPOINTS, "cluster.on_server_failure=restart", "checkpoint.resume=no")

    result = run_job(RESUMES, 2, 1, *options)

    assert result.returncode == 0
    assert "begins at 0 no" in result.stdout
    assert "begins at 20 ckpt-000002" in result.stdout
    assert "begins again from checkpoint ckpt-000002 in kept" in result.stderr
    assert "the job began again 1 time" in result.stderr


@pytest.mark.soak
def test_where_a_lost_server_stops_the_job_the_last_checkpoint_is_named(
    run_job: RunJob, tmp_path: Path
) -> None:
    stopped = run_job(RESUMES, 2, 1, *settings(*CHECKPOINTS))
    again = run_job(RESUMES, 2, 1, *settings(*CHECKPOINTS))

    assert stopped.returncode == 137
    assert "server 1: killed by SIGKILL" in stopped.stderr
    assert "the last good checkpoint is ckpt-000002 in kept" in stopped.stderr
    assert again.returncode == 0
    assert "begins at 20 auto" in again.stdout
