"""Servers and launchers are killed while checkpoints are written: those before stay good."""

from __future__ import annotations

import json
import random
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Callable
from pathlib import Path

import psutil
import pytest

from kv.checkpoint.places import place_of
from kv.checkpoint.shelf import Shelf
from tests.jobs import PROMISED, SLOWNESS

Environment = Callable[..., dict[str, str]]
PATIENCE = 120.0  # seconds for what takes some

# Saves as often as it can; every row counts the steps of both workers.
PROGRAM = """
    import sys
    import numpy as np
    import pslite

    steps, kind, full_every = int(sys.argv[1]), sys.argv[2], int(sys.argv[3])
    with pslite.connect() as worker:
        table = worker.sparse_table("t", 4, optimizer=pslite.SGD(lr=1.0), missing="zeros")
        checkpoints = pslite.Checkpoints(
            worker, "kept", kind=kind, every_steps=2, full_every=full_every
        )
        found = checkpoints.resume()
        print("goes on from", found and found.name, flush=True)
        keys, begin = np.arange(40_000), worker.steps
        before = table.pull(keys)
        worker.barrier("all have looked")
        for _ in range(steps):
            some = keys[worker.steps % 4 :: 4]
            worker.wait(table.push(some, np.full((some.size, 4), -1.0, np.float32)))
            worker.step()
            checkpoints.at_step(lambda: {"steps": worker.steps})
        checkpoints.close(lambda: {"steps": worker.steps})
        worker.barrier("all is pushed")
        gain = table.pull(keys) - before
        for at in range(4):
            taken = sum(step % 4 == at for step in range(begin, begin + steps))
            assert (gain[at::4] == 2 * taken).all()
"""


class Job:
    """A job of two servers and two workers in a folder of its own."""

    def __init__(self, folder: Path, environment: Environment, kind: str, full_every: int) -> None:
        self.folder, self._env = folder, environment()
        self._arguments = [kind, str(full_every)]
        (folder / "worker.py").write_text(textwrap.dedent(PROGRAM))
        (folder / "local.ini").write_text("[run]\nseed = 9\n")

    @property
    def shelf(self) -> Shelf:
        return Shelf(place_of(str(self.folder / "kept")))

    def start(self, steps: int) -> subprocess.Popen[str]:
        command = [sys.executable, "-m", "pslite", "local", "local.ini", "--servers", "2"]
        command += ["--workers", "2", "--", "python", "worker.py", str(steps), *self._arguments]
        with (self.folder / "out.txt").open("w") as out:
            return subprocess.Popen(
                command, cwd=self.folder, env=self._env, stdout=out, stderr=out, text=True
            )

    def pid_of(self, role: str, rank: int) -> int:
        nodes = json.loads((self.folder / "run" / "cluster.json").read_text())["nodes"]
        return next(n["pid"] for n in nodes if (n["role"], n["rank"]) == (role, rank))

    def pslite(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(
            [sys.executable, "-m", "pslite", *arguments],
            cwd=self.folder,
            env=self._env,
            capture_output=True,
            text=True,
            timeout=PATIENCE,
        )


def until(done: Callable[[], bool]) -> None:
    deadline = time.monotonic() + PATIENCE
    while not done():
        assert time.monotonic() < deadline
        time.sleep(0.01)


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(4))
def test_what_was_saved_before_a_kill_is_good_and_the_job_goes_on_from_it(
    tmp_path: Path, environment: Environment, seed: int
) -> None:
    chance = random.Random(seed)
    victim = ("server", "launcher")[seed % 2]
    job = Job(tmp_path, environment, ("step", "fuzzy")[seed // 2 % 2], chance.choice((1, 3)))
    process = job.start(steps=100_000)
    family = psutil.Process(process.pid)
    until(lambda: len(job.shelf.names()) >= 2 and len(job.shelf.unfinished()) > 0)
    time.sleep(chance.uniform(0.0, 0.2))

    processes = family.children(recursive=True)
    pid = job.pid_of("server", 1) if victim == "server" else process.pid
    psutil.Process(pid).send_signal(signal.SIGKILL)
    process.wait(PATIENCE)
    began = time.monotonic()
    psutil.wait_procs(processes, timeout=PATIENCE)
    assert time.monotonic() - began < 2 * PROMISED * SLOWNESS

    print((tmp_path / "out.txt").read_text())
    listed, verified = job.pslite("checkpoint", "list"), job.pslite("checkpoint", "verify")
    print(listed, verified)
    assert verified.returncode == 0
    names = job.shelf.names()
    assert verified.stdout.count(": good (") == len(names) >= 1
    is_launcher = victim == "launcher"
    assert (f"its launcher (process {process.pid}) is gone" in verified.stderr) == is_launcher
    assert (f"{names[-1]} in kept" in (tmp_path / "out.txt").read_text()) != is_launcher
    assert job.start(steps=5).wait(PATIENCE) == 0
    assert f"goes on from {names[-1]}" in (tmp_path / "out.txt").read_text()
