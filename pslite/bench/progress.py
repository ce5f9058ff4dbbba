"""Where a long run is, on one line of a terminal that is written over and over."""

from __future__ import annotations

import time
from typing import TextIO

WIDTH = 100


class Progress:
    """Shows the present workload and case; on what is no terminal only new workloads."""

    def __init__(self, stream: TextIO) -> None:
        self._stream, self._is_terminal = stream, stream.isatty()
        self._begun, self._workload = time.monotonic(), ""

    def workload(self, name: str, place: int, count: int) -> None:
        """A workload begins, the `place`-th of `count`."""
        self._workload = f"{place}/{count} {name}"
        if not self._is_terminal:
            print(f"{self._workload}, {self._elapsed()}", file=self._stream, flush=True)

    def show(self, case: object) -> None:
        """A case of the workload begins."""
        if self._is_terminal:
            line = f"{self._elapsed()}  {self._workload}  {case}"[:WIDTH]
            print(f"\r\033[K{line}", end="", file=self._stream, flush=True)

    def note(self, text: str) -> None:
        """A line that stays."""
        clear = "\r\033[K" if self._is_terminal else ""
        print(f"{clear}{text}", file=self._stream, flush=True)

    def close(self) -> None:
        if self._is_terminal:
            print("\r\033[K", end="", file=self._stream, flush=True)

    def _elapsed(self) -> str:
        minutes, seconds = divmod(round(time.monotonic() - self._begun), 60)
        return f"{minutes}:{seconds:02d}"
