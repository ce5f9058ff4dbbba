"""`RUN/cluster.json`: what a running job tells other commands about itself."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from pathlib import Path
from typing import Any

from van.errors import ConfigError

FILE, LOCK = "cluster.json", "cluster.lock"
LOOK = 0.1  # seconds that one who only looks whether a folder is taken may hold its lock


class RunDirectory:
    """The folder of one running job; no other job can take it while this one lives.

    Raises:
        ConfigError: another job runs there, or the folder cannot be written.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._state: dict[str, Any] = {}
        try:
            path.mkdir(parents=True, exist_ok=True)
            self._lock = open(path / LOCK, "a")  # noqa: SIM115  (held while the job runs)
        except OSError as error:
            raise ConfigError(f"run folder {path} cannot be written: {error.strerror}") from None
        try:
            self._take()
        except OSError:
            self._lock.close()
            raise ConfigError(
                f"another job is running in {path}; choose another folder with --run"
            ) from None

    def _take(self) -> None:
        deadline = time.monotonic() + LOOK
        while True:
            try:
                fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                return
            except BlockingIOError:
                if time.monotonic() > deadline:
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
        """Let other jobs have the folder."""
        with contextlib.suppress(OSError):
            (self.path / LOCK).unlink()
        self._lock.close()


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

    A launcher that was killed could not write that its job has ended, but its lock went with it:
    then `state` is "ended" here, whatever the file says, and there are no `nodes`.

    Raises:
        ConfigError: there is none, or it is damaged.
    """
    taken = is_taken(path)  # before the file is read: a job that ends in between has written so
    try:
        state = json.loads((path / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"no running job found: {error}", file=str(path / FILE)) from None
    if not isinstance(state, dict):
        raise ConfigError("expected a JSON object", file=str(path / FILE))
    if not taken and state.get("state") != "ended":
        state |= {"state": "ended", "nodes": []}
    return state
