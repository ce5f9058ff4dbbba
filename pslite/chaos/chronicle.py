"""What happens while things go wrong, a line of JSON each in RUN/chaos.jsonl, by all processes.

Times are those of the machine's monotonic clock, which its processes share. A line is written at
once by one call, so lines of several processes do not mix, and those of a killed one are whole.

    {"at": 12.5, "by": "launcher", "what": "act", "act": "kill", "node": "server 0", ...}
    {"at": 12.6, "by": "launcher", "what": "ended", "node": "server 0", "status": "killed by …"}
    {"at": 22.0, "by": "scheduler", "what": "died", "node": "server 0", "why": "was silent …"}
    {"at": 22.1, "by": "worker 1", "what": "view", "epoch": 2, "map": 3, "dead": ["server 0"]}
    {"at": 23.0, "by": "scheduler", "what": "work", "work": {"worker 1": [40, 160]}}
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from van.errors import ConfigError

FILE = "chaos.jsonl"
Note = dict[str, Any]


class Chronicle:
    """Notes of one process.

    Args:
        folder: of the job.
        by: who notes.
        clock: seconds, the same for all processes.

    Raises:
        ConfigError: the file cannot be written.
    """

    def __init__(self, folder: Path, by: str, clock: Callable[[], float] = time.monotonic) -> None:
        self.path, self._by, self._clock = folder / FILE, by, clock
        try:
            self._file = os.open(self.path, os.O_WRONLY | os.O_APPEND | os.O_CREAT, 0o666)
        except OSError as error:
            raise ConfigError(f"{self.path} cannot be written: {error.strerror}") from None

    def note(self, what: str, **facts: Any) -> None:
        """Add a line."""
        note = {"at": self._clock(), "by": self._by, "what": what, **facts}
        os.write(self._file, json.dumps(note, ensure_ascii=False).encode() + b"\n")

    def clear(self) -> None:
        """Forget what an earlier job noted here."""
        os.truncate(self._file, 0)

    def close(self) -> None:
        """Nothing more is noted."""
        os.close(self._file)


class Notes:
    """Reads what is noted, also while it grows.

    Args:
        folder: of the job.
    """

    def __init__(self, folder: Path) -> None:
        self._path = folder / FILE
        self._offset, self._torn = 0, b""

    def fresh(self) -> list[Note]:
        """What was noted since the last call; nothing where there is no file."""
        try:
            with open(self._path, "rb") as file:
                file.seek(self._offset)
                data = file.read()
        except FileNotFoundError:
            return []
        self._offset += len(data)
        *lines, self._torn = (self._torn + data).split(b"\n")
        return [json.loads(line) for line in lines]


def start_of(folder: Path) -> float | None:
    """When the nodes of the running job had met, on the shared clock; None if they have not."""
    return next((note["at"] for note in Notes(folder).fresh() if note["what"] == "start"), None)
