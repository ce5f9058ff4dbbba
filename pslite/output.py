"""What the nodes of a job print, line by line under their names.

`Lines` cuts a stream of bytes at line ends, `Tail` remembers the last lines, `Screen` writes
lines with a prefix. None of them knows processes.
"""

from __future__ import annotations

import os
from collections import deque
from typing import TextIO

from pslite.writers import writer_for

LONGEST = 1 << 20  # bytes of one line; a longer one is shown in pieces of this size
COLOURS = {"scheduler": 35, "server": 36, "worker": 32, "dispatcher": 33}


class Lines:
    """Cuts a stream into whole lines; an unfinished line waits for its end.

    >>> lines = Lines()
    >>> lines.feed(b"one\\r\\ntw"), lines.feed(b"o\\nthree"), lines.close()
    (b'one\\n', b'two\\n', b'three\\n')
    """

    def __init__(self, longest: int = LONGEST) -> None:
        self._longest = longest
        self._waiting: list[bytes] = []
        self._nbytes = 0

    def feed(self, data: bytes) -> bytes:
        """The lines that `data` completes: nothing, or whole lines that end in a line feed."""
        whole, newline, rest = data.rpartition(b"\n")
        done = b""
        if newline:
            done = b"".join([*self._waiting, whole, newline]).replace(b"\r\n", b"\n")
            self._waiting, self._nbytes = [], 0
        if rest:
            self._waiting.append(rest)
            self._nbytes += len(rest)
        return done + self.close() if self._nbytes >= self._longest else done

    def close(self) -> bytes:
        """The unfinished line, if there is one."""
        rest = b"".join(self._waiting)
        self._waiting, self._nbytes = [], 0
        return rest + b"\n" if rest else b""


class Tail:
    """The last lines of a stream."""

    def __init__(self, lines: int = 10, width: int = 2000) -> None:
        self._lines: deque[bytes] = deque(maxlen=lines)
        self._width = width

    def add(self, block: bytes) -> None:
        """Take whole lines."""
        last = block.removesuffix(b"\n").rsplit(b"\n", self._lines.maxlen or 1)
        self._lines.extend(line[: self._width] for line in last[-(self._lines.maxlen or 1) :])

    def text(self) -> list[str]:
        return [line.decode("utf-8", "backslashreplace") for line in self._lines]


IN_SIGHT = 30  # lines from the end that need no repeating


class Screen:
    """Writes the lines of many nodes to one text stream, each under its node's name."""

    def __init__(self, out: TextIO, *, colour: bool | None = None) -> None:
        self.writer = writer_for(out)
        self._colour = out.isatty() if colour is None else colour
        self._recent: deque[str] = deque(maxlen=IN_SIGHT)  # whose the last lines are

    def write(self, role: str, name: str, block: bytes) -> None:
        """Write whole lines of one node, together.

        Bytes that are no UTF-8, and characters the stream cannot show, appear as `\\xNN`.
        """
        prefix = self._prefix(role, name).encode()
        body = block.removesuffix(b"\n").replace(b"\n", b"\n" + prefix)
        self.writer.put((prefix + body + b"\n").decode("utf-8", "backslashreplace"))
        self._recent.extend([name] * min(block.count(b"\n"), IN_SIGHT))

    def shows(self, name: str, lines: int) -> bool:
        """Whether the last `lines` lines of `name` are among the last on the screen."""
        return self._recent.count(name) >= lines

    def _prefix(self, role: str, name: str) -> str:
        if self._colour:
            return f"\033[{COLOURS.get(role, 37)}m[{name}]\033[0m "
        return f"[{name}] "


def is_same_file(one: TextIO, other: TextIO) -> bool:
    """Whether both streams go to one terminal, file or pipe."""
    try:
        return os.path.sameopenfile(one.fileno(), other.fileno())
    except (OSError, ValueError, AttributeError):
        return one is other
