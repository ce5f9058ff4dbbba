"""How a launcher tells its scheduler that a process has failed: at once, not by a time-out.

The launcher gives each process that it starts a number of its own, with which the process
registers. When one fails a line goes to the scheduler's standard input, a pipe that only the
launcher holds. So nobody else can say it, with or without keys, and only that life of that node is
declared dead. The pipe ends with the launcher, so the scheduler also knows when that is gone, even
if its guard was killed as well.

    {"life": 4611686018427387904, "why": "has ended: killed by SIGKILL"}
"""

from __future__ import annotations

import json
import os
import secrets
import stat
from collections.abc import Callable

from pslite.lifecycle import NodeName

LOOK = 0.1  # seconds between two looks of a scheduler
_LONGEST = 4096  # bytes of a line
_MOST_LIFE = 1 << 63
_STDIN = 0

End = Callable[[int, str], bool]
"""Takes in that a life has ended, and why; False: not now."""


class Obituaries:
    """The launcher's part: the lives that it has begun, and the lines about those that failed."""

    def __init__(self) -> None:
        self._lives: dict[NodeName, int] = {}
        self.lines: list[bytes] = []  # all, for a scheduler that is started again

    def born(self, name: NodeName) -> int:
        """The number of a process that is about to be started."""
        self._lives[name] = secrets.randbelow(_MOST_LIFE)
        return self._lives[name]

    def died(self, name: NodeName, why: str) -> bytes:
        """The line about the process of `name`."""
        line = json.dumps({"life": self._lives[name], "why": f"has ended: {why}"}).encode() + b"\n"
        self.lines.append(line)
        return line


class ObituaryReader:
    """The scheduler's part.

    Args:
        end: called for each process that has ended; again, if it cannot be taken in yet.
        lost: called when the launcher itself has ended.
        file: descriptor to read from; what is no pipe is not read.
    """

    def __init__(self, end: End, lost: Callable[[], None], file: int = _STDIN) -> None:
        self._end, self._lost, self._file = end, lost, file
        self._torn = b""
        self._told: list[tuple[int, str]] = []
        try:
            self._is_open = stat.S_ISFIFO(os.fstat(file).st_mode)
        except OSError:  # closed from the start
            self._is_open = False
        if self._is_open:
            os.set_blocking(file, False)

    def turn(self) -> None:
        """Take in what has been said; never waits."""
        if self._is_open:
            self._read()
        self._told = [item for item in self._told if not self._end(*item)]

    def _read(self) -> None:
        try:
            data = os.read(self._file, 1 << 16)
        except BlockingIOError:
            return
        if not data:
            self._is_open = False
            self._lost()
        *lines, self._torn = (self._torn + data).split(b"\n")
        self._torn = self._torn[-_LONGEST:]
        self._told += [found for line in lines if (found := _read_line(line)) is not None]


def _read_line(line: bytes) -> tuple[int, str] | None:
    """The life and why it has ended; None for what no launcher says."""
    try:
        said = json.loads(line) if len(line) <= _LONGEST else None
    except (ValueError, RecursionError):
        return None
    if not isinstance(said, dict):
        return None
    life, why = said.get("life"), said.get("why")
    return (life, why) if type(life) is int and type(why) is str else None
