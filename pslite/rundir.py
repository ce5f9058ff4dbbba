"""`RUN/cluster.json`: what a running job tells other commands about itself.

A launcher that is killed cannot write that its job has ended. So it holds a lock, which goes with
it, and has written down which process it is; its guard (`pslite.guard`) writes the end for it, and
who finds neither lock nor process knows without that.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any, TextIO

from pslite.guard import LOCK, LOST
from pslite.guard import STATE as FILE
from van.errors import ConfigError
from van.identity import lives, this_process

LOOK = 0.1  # seconds that one who only looks whether a folder is taken may hold its lock

# Of a former job, which this one may not write anew. No other file of the folder is ours to remove.
_REPORTS = ("chaos.json", "chaos.jsonl", "dispatcher[0-9]*.json")


class RunDirectory:
    """The folder of one running job; no other job can take it while this one lives.

    Raises:
        ConfigError: another job runs there, or the folder cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._state: dict[str, Any] = {"launcher": os.getpid(), "process": this_process()}
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = self._take()
        except BlockingIOError:
            raise ConfigError(
                f"another job is running in {path}; choose another folder with --run"
            ) from None
        except OSError as error:
            raise ConfigError(f"run folder {path} cannot be written: {error.strerror}") from None
        for pattern in _REPORTS:
            for old in path.glob(pattern):
                with contextlib.suppress(OSError):
                    old.unlink()
        try:
            self.update(state="starting")
        except ConfigError:
            self._lock.close()
            raise

    def _take(self) -> TextIO:
        deadline = time.monotonic() + LOOK
        while True:
            lock = open(self.path / LOCK, "a")  # noqa: SIM115  (held while the job runs)
            try:
                fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                if _is_in_place(lock, self.path / LOCK):
                    return lock
                lock.close()  # the former job has just removed it
            except OSError as error:
                lock.close()
                if not isinstance(error, BlockingIOError) or time.monotonic() > deadline:
                    raise
                time.sleep(LOOK / 10)  # it may be one who only looks, see `is_taken`

    def update(self, **facts: Any) -> None:
        """Add facts to `cluster.json`; readers see the old file or the new one, never a part."""
        self._state.update(facts)
        fresh = self.path / f".{FILE}.{os.getpid()}"
        try:
            fresh.write_text(json.dumps(self._state, indent=2) + "\n", encoding="utf-8")
            fresh.replace(self.path / FILE)
        except OSError as error:
            raise ConfigError(f"{self.path / FILE} cannot be written: {error.strerror}") from None

    def close(self) -> None:
        """Let other jobs have the folder; this one has ended, if only in its preparations."""
        if self._state["state"] != "ended":
            with contextlib.suppress(ConfigError):
                self.update(state="ended", nodes=[])
        with contextlib.suppress(OSError):
            (self.path / LOCK).unlink()
        self._lock.close()


def _is_in_place(file: TextIO, path: Path) -> bool:
    try:
        return os.path.samestat(os.fstat(file.fileno()), os.stat(path))
    except FileNotFoundError:
        return False


def is_taken(path: Path) -> bool:
    """Whether a job is running in the run folder `path`: its launcher lives and holds the lock."""
    try:
        with open(path / LOCK) as lock:
            fcntl.flock(lock, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    except OSError:  # no lock
        return False
    return False


def read_cluster(path: Path) -> dict[str, Any]:
    """What `cluster.json` in the run folder `path` says.

    Of a job whose launcher is gone without having written so `state` is "ended" all the same, there
    are no `nodes`, and `lost` says what is known of its end.

    Raises:
        ConfigError: there is none, or it is damaged.
    """
    taken = is_taken(path)  # before the file is read: a job that ends in between has written so
    state = _read(path / FILE)
    if taken and _is_gone(state):  # or the next job has just taken the folder
        time.sleep(LOOK)
        state = _read(path / FILE)
    if state.get("state") != "ended" and (not taken or _is_gone(state)):
        how = LOST.format(state.get("launcher"))
        state |= {"state": "ended", "nodes": [], "lost": how}
    return state


def _read(path: Path) -> dict[str, Any]:
    try:
        state = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        what = error.strerror if isinstance(error, OSError) else f"damaged: {error}"
        problem = f"no running job found: {what}; --run names the run folder of another job"
        raise ConfigError(problem, file=str(path)) from None
    if not isinstance(state, dict):
        raise ConfigError("expected a JSON object", file=str(path))
    return state


def how_ended(path: Path, state: dict[str, Any]) -> str:
    """That the job in `path`, of which `read_cluster` gave `state`, has ended."""
    how = f" {state['lost']}" if state.get("lost") else ""
    return f"the job in {path} has ended{how}"


def _is_gone(state: dict[str, Any]) -> bool:
    """Whether the process that wrote `state` is known to have ended."""
    return lives(state.get("process")) is False
