"""Ends the processes of a job when its launcher is gone, however it went.

The launcher starts this file as a process of its own and holds a pipe to it. The pipe closes when
the launcher ends, even by SIGKILL, and what is then left of the job is ended. A process belongs to
the job if its environment holds the job's token (so do its children, in whatever session they
are), or if it is in the session of a process that the launcher named by a line `PID` in the pipe.

Then it writes the job's end into its RUN/cluster.json, as the launcher could not: unless the last
line in the pipe is `over`.

No race: a process that the launcher has forked holds the pipe open until its own program, with
the token in its environment, has begun.

Standard library only, and run by path with `python -I -S`: it is up in some ten milliseconds.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import signal
import sys
import time
from collections.abc import Collection

TOKEN = "PSLITE_JOB"
GRACE = 3.0  # seconds from SIGTERM to SIGKILL
OVER = b"over"  # said by a launcher that has written its job's end itself
STATE, LOCK = "cluster.json", "cluster.lock"  # in the run folder
LOST = "without a word: its launcher (process {}) is gone, as after kill -9"


def members(token: str, sessions: Collection[int] = ()) -> list[int]:
    """The process ids of the job, without this process and without the dead."""
    mark = f"{TOKEN}={token}".encode()
    try:
        pids = [int(name) for name in os.listdir("/proc") if name.isdigit()]
    except OSError:  # no /proc on this system: the leaders of the sessions are all we know
        return [pid for pid in sessions if _is_alive(pid)]
    return [pid for pid in pids if pid != os.getpid() and _belongs(pid, mark, sessions)]


def send(token: str, sessions: Collection[int], signum: int) -> int:
    """Send a signal to every process of the job; how many there were."""
    found = members(token, sessions)
    for pid in found:
        with contextlib.suppress(ProcessLookupError, PermissionError):
            os.kill(pid, signum)
    return len(found)


def end(token: str, sessions: Collection[int], grace: float = GRACE) -> None:
    """SIGTERM to all, and SIGKILL to those that are there after `grace` seconds."""
    send(token, sessions, signal.SIGTERM)
    deadline = time.monotonic() + grace
    while members(token, sessions) and time.monotonic() < deadline:
        time.sleep(0.02)
    while send(token, sessions, signal.SIGKILL) and time.monotonic() < deadline + 1.0:
        time.sleep(0.02)


def _belongs(pid: int, mark: bytes, sessions: Collection[int]) -> bool:
    try:
        with open(f"/proc/{pid}/stat", "rb") as file:
            # the name in brackets may hold anything, blanks and brackets too
            state, _, _, session = file.read().rpartition(b")")[2].split()[:4]
        if state in (b"Z", b"X"):
            return False
        if int(session) in sessions:
            return True
        with open(f"/proc/{pid}/environ", "rb") as file:
            return mark in file.read().split(b"\0")
    except (OSError, ValueError):  # ended meanwhile, or another user's
        return False


def _is_alive(pid: int) -> bool:
    try:
        os.kill(pid, 0)
    except OSError:
        return False
    return True


def note_end(folder: str, launcher: int) -> None:
    """Write into cluster.json that the job of `launcher` has ended, unless another has begun."""
    path, fresh = os.path.join(folder, STATE), os.path.join(folder, f".{STATE}.{os.getpid()}")
    try:
        with open(os.path.join(folder, LOCK)) as lock:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)  # it went with the launcher
            with open(path, encoding="utf-8") as file:
                state = json.load(file)
            if state["launcher"] != launcher or state["state"] == "ended":
                return
            state |= {"state": "ended", "nodes": [], "lost": LOST.format(launcher)}
            with open(fresh, "w", encoding="utf-8") as file:
                file.write(json.dumps(state, indent=2) + "\n")
            os.replace(fresh, path)
    except (OSError, ValueError, KeyError, TypeError):
        return  # another job's by now, or nobody's; who reads it finds out by itself


def main(token: str, folder: str = "") -> None:
    """Wait for the pipe on stdin to close, then end what is left of the job in `folder`."""
    launcher = os.getppid()
    for signum in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(signum, signal.SIG_IGN)
    said = sys.stdin.buffer.read().split()
    end(token, {int(word) for word in said if word.isdigit()})
    if folder and OVER not in said:
        note_end(folder, launcher)


if __name__ == "__main__":
    main(*sys.argv[1:])
