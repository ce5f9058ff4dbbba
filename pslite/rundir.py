"""`RUN/cluster.json`: what a running job tells other commands about itself."""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
from pathlib import Path
from typing import Any

from van.errors import ConfigError

FILE, LOCK = "cluster.json", "cluster.lock"


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
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self._lock.close()
            raise ConfigError(
                f"another job is running in {path}; choose another folder with --run"
            ) from None

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


def read_cluster(path: Path) -> dict[str, Any]:
    """What `cluster.json` in the run folder `path` says.

    Raises:
        ConfigError: there is none, or it is damaged.
    """
    try:
        state = json.loads((path / FILE).read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise ConfigError(f"no running job found: {error}", file=str(path / FILE)) from None
    if not isinstance(state, dict):
        raise ConfigError("expected a JSON object", file=str(path / FILE))
    return state
