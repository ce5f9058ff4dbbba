"""How jobs of real nodes stop: all processes gone, exit codes true, nothing left, one error shown.

Each cause (a signal to the launcher, a worker's crash, a server's) at each moment of a job's life.
A few of them in every run, one of each cause and of each moment; as many others are slow, the
rest is for a soak.
"""

from __future__ import annotations

import os
import signal
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from tests.jobs import PROMISED, SLOWNESS, left_in_shared_memory, shared_files, start_here
from tests.seeds import mark_of

Environment = Callable[..., dict[str, str]]

WORKER = """
    import os, signal, sys, time
    import numpy as np
    import pslite

    moment, cause = sys.argv[1:]
    rank = int(os.environ["PSLITE_RANK"])

    def here():
        print("here", flush=True)
        while not os.path.exists("go"):
            time.sleep(0.01)
        if cause == "worker" and rank == 1:
            raise RuntimeError("boom")
        signal.pause()

    if moment == "start" and rank == 1:
        here()  # the others wait for this one
    with pslite.connect() as worker:
        table = worker.sparse_table("t", 2)
        if moment == "barrier" and rank == 0:
            worker.barrier("nobody passes")
        if moment == "shutdown" and rank == 0:
            sys.exit()
        worker.wait(table.push([1], np.ones((1, 2))))
        if rank == 1:
            here()
        while True:
            worker.wait(table.push([1], np.ones((1, 2))))
"""
SERVER = """
    import os

    def start(office):
        wait, failed = office.van.wait, []

        def failing_wait(done, timeout=None):
            def look():
                if os.path.exists("go") and os.environ.get("SERVER_FAILS") and not failed:
                    failed.append(True)
                    raise RuntimeError("boom")
                return done()

            return wait(look, timeout)

        office.van.wait = failing_wait  # which start and serve are in all the time
"""
CASES = [
    (moment, cause)
    for moment in ("start", "steady", "barrier", "shutdown")
    for cause in ("SIGINT", "SIGTERM", "worker", "server")
]
QUICK = {("start", "worker"), ("steady", "SIGINT"), ("barrier", "server")}
SLOW = {("start", "SIGINT"), ("steady", "server"), ("barrier", "SIGTERM")}
SLOW |= {("shutdown", "worker"), ("shutdown", "SIGTERM")}


@pytest.mark.parametrize(
    ("moment", "cause"),
    [
        pytest.param(*case, marks=[] if case in QUICK else mark_of(case in SLOW), id="-".join(case))
        for case in CASES
    ],
)
def test_a_job_stops_and_leaves_nothing(
    moment: str, cause: str, tmp_path: Path, environment: Environment
) -> None:
    work, scratch = tmp_path / "work", tmp_path / "scratch"
    work.mkdir()
    scratch.mkdir()
    (work / "worker.py").write_text(textwrap.dedent(WORKER))
    (work / "failing.py").write_text(textwrap.dedent(SERVER))
    (work / "local.ini").write_text("[server]\napp = failing:start\n")
    variables = {"TMPDIR": str(scratch), "PYTHONDONTWRITEBYTECODE": "1"}
    if cause == "server":
        variables["SERVER_FAILS"] = "1"
    env = environment(**variables)
    env["PYTHONPATH"] = f"{env['PYTHONPATH']}{os.pathsep}{work}"
    before = shared_files()
    command = [sys.executable, "-m", "pslite", "local", "local.ini", "--run", "run"]
    command += ["--servers", "1", "--workers", "2", "--", "python", "worker.py", moment, cause]
    said = []
    with start_here(work, command, env) as launcher:
        assert launcher.stdout is not None
        for line in launcher.stdout:
            said.append(line)
            if "[worker 1] here" in line:
                break
        family = psutil.Process(launcher.pid).children(recursive=True)
        assert len(family) >= 4, said
        begun = time.monotonic()

        if cause in ("worker", "server"):
            (work / "go").touch()
        else:
            launcher.send_signal(signal.Signals[cause])
        try:
            rest, _ = launcher.communicate(timeout=60)
        finally:
            launcher.terminate()
        seconds = time.monotonic() - begun

    said += rest.splitlines()
    print("\n".join(said))  # shown when the test fails
    codes = {"worker": 1, "server": 1, "SIGINT": 130, "SIGTERM": 143}
    assert launcher.returncode == codes[cause]
    assert [process for process in family if process.is_running()] == []
    assert seconds < PROMISED * SLOWNESS
    assert sorted(path.name for path in scratch.iterdir()) == []
    assert left_in_shared_memory(before) == set()
    made = {path.name for path in work.iterdir()} - {"go", "__pycache__"}
    assert made == {"worker.py", "failing.py", "local.ini", "run"}
    assert [path.name for path in (work / "run").iterdir()] == ["cluster.json"]
    if cause in ("worker", "server"):
        node = "worker 1" if cause == "worker" else "server 0"
        assert sum(line.endswith("] RuntimeError: boom") for line in said) == 1
        assert sum(line.strip() == "RuntimeError: boom" for line in said) == 0
        assert sum("Traceback" in line for line in said) == 1
        assert any(f"{node}: exit code 1" in line for line in said)
    else:
        assert sum("Traceback" in line for line in said) == 0
        assert any(f"the launcher got {cause}" in line for line in said)
