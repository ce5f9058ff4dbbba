"""Jobs of real processes, started as users start them from this source tree."""

from __future__ import annotations

import contextlib
import os
import secrets
import socket
import subprocess
import sys
import textwrap
from collections.abc import Mapping, Sequence
from pathlib import Path

import psutil

ROOT = Path(__file__).resolve().parents[1]
SHARED = Path("/dev/shm")
LIMIT = 240  # seconds; no run should come near
# A job that is told to end is gone in 5 s on a machine that has time for it; a loaded one gets
# some times that.
PROMISED, SLOWNESS = 5.0, 4.0


def environment(**variables: str) -> dict[str, str]:
    """Variables for a process that finds this source tree, and belongs to no cluster."""
    ours = ("DMLC_", "PS_", "PSLITE_")
    kept = {name: value for name, value in os.environ.items() if not name.startswith(ours)}
    path = os.pathsep.join(filter(None, [str(ROOT), kept.get("PYTHONPATH", "")]))
    return {**kept, "PYTHONPATH": path, **variables}


def run_here(folder: Path, command: Sequence[str]) -> subprocess.CompletedProcess[str]:
    """Run a command in that folder; what it says is shown when the test fails."""
    result = subprocess.run(
        command,
        cwd=folder,
        env=environment(),
        capture_output=True,
        text=True,
        timeout=LIMIT,
        check=False,
    )
    print(result.stdout, result.stderr)
    return result


def start_here(
    folder: Path, command: Sequence[str], env: Mapping[str, str] | None = None
) -> subprocess.Popen[str]:
    """Start a command in that folder; all that it says can be read from its stdout."""
    return subprocess.Popen(
        command,
        cwd=folder,
        env=environment() if env is None else env,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        text=True,
    )


def run_program(
    folder: Path,
    program: str,
    servers: int,
    workers: int,
    *options: str,
    args: Sequence[str] = (),
) -> subprocess.CompletedProcess[str]:
    """`pslite local` around the text of a worker's program."""
    (folder / "worker.py").write_text(textwrap.dedent(program))
    (folder / "local.ini").write_text("[run]\nseed = 9\n")
    command = [sys.executable, "-m", "pslite", "local", "local.ini"]
    command += ["--servers", str(servers), "--workers", str(workers), *options]
    return run_here(folder, [*command, "--", "python", "worker.py", *args])


def node_of(launcher: int, role: str, rank: int = 0) -> psutil.Process:
    """The process of a node that the launcher of that process id has started."""
    for process in psutil.Process(launcher).children(recursive=True):
        with contextlib.suppress(psutil.Error):  # it has just ended
            env = process.environ()
            if (env.get("DMLC_ROLE"), env.get("PSLITE_RANK", "0")) == (role, str(rank)):
                return process
    raise AssertionError(f"no {role} {rank}")


def free_port() -> int:
    """A port of this host that nobody listens on, nor gets when it asks for any."""
    while True:
        port = secrets.choice(range(20_000, 32_000))  # Linux gives those above
        with socket.socket() as probe, contextlib.suppress(OSError):
            probe.bind(("127.0.0.1", port))
            return port


def shared_files() -> set[str]:
    """The names in shared memory."""
    return set(os.listdir(SHARED)) if SHARED.is_dir() else set()


def left_in_shared_memory(before: set[str]) -> set[str]:
    """What is new there and in nobody's hands, who would be another test of this moment."""
    new = shared_files() - before
    if new:
        maps: set[str] = set()
        for pid in set(psutil.pids()) - {os.getpid()}:
            with contextlib.suppress(OSError):  # it has just ended, or is not ours
                maps.update(Path(f"/proc/{pid}/maps").read_text().splitlines())
        new = {name for name in new if not any(line.endswith(f"{SHARED}/{name}") for line in maps)}
    return new & shared_files()
