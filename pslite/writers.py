"""Writing to a stream whose reader may pause, break off, or never come back.

A launcher that waits for its reader could not end its nodes meanwhile. So what goes to a file
descriptor is written by a thread; the launcher looks at `is_full` and reads no more from its nodes
until there is room.
"""

from __future__ import annotations

import io
import os
import select
import threading
from collections import deque
from typing import Protocol, TextIO

FULL = 4 << 20  # bytes waiting


class Writer(Protocol):
    """Takes text, and writes it when it can."""

    @property
    def is_full(self) -> bool:
        """Whether enough is waiting already."""

    @property
    def is_broken(self) -> bool:
        """Whether nobody will ever read it; what is put is dropped."""

    def put(self, text: str) -> None: ...

    def drain(self, timeout: float) -> bool:
        """Wait for all to be written, at most `timeout` seconds; whether it is."""

    def close(self) -> None: ...


def writer_for(out: TextIO) -> Writer:
    """A writer to the stream `out`: by a thread if a file descriptor is behind it."""
    try:
        descriptor = out.fileno()
    except (OSError, ValueError, AttributeError, io.UnsupportedOperation):
        return DirectWriter(out)
    out.flush()
    return ThreadWriter(descriptor, getattr(out, "encoding", None) or "utf-8")


class DirectWriter:
    """Writes at once, to a stream in memory."""

    is_full = False

    def __init__(self, out: TextIO) -> None:
        self._out, self.is_broken = out, False
        self._encoding = getattr(out, "encoding", None) or "utf-8"

    def put(self, text: str) -> None:
        if not self.is_broken:
            shown = text.encode(self._encoding, "backslashreplace").decode(self._encoding)
            try:
                self._out.write(shown)
                self._out.flush()
            except BrokenPipeError:
                self.is_broken = True

    def drain(self, timeout: float) -> bool:
        return True

    def close(self) -> None:
        pass


class ThreadWriter:
    """Writes from a thread, which a paused reader may hold up for ever.

    It writes to a copy of the descriptor, not to a Python stream: the interpreter could not end
    while the thread held the lock of one.
    """

    def __init__(self, descriptor: int, encoding: str) -> None:
        self._descriptor, self._encoding = os.dup(descriptor), encoding
        self._changed = threading.Condition()
        self._waiting: deque[bytes] = deque()
        self._nbytes = 0
        self._is_broken = self._is_closing = False
        threading.Thread(target=self._run, name="pslite output", daemon=True).start()

    @property
    def is_full(self) -> bool:
        return self._nbytes > FULL

    @property
    def is_broken(self) -> bool:
        return self._is_broken

    def put(self, text: str) -> None:
        data = text.encode(self._encoding, "backslashreplace")
        with self._changed:
            if data and not self._is_broken:
                self._waiting.append(data)
                self._nbytes += len(data)
                self._changed.notify_all()

    def drain(self, timeout: float) -> bool:
        with self._changed:
            return self._changed.wait_for(lambda: not self._waiting, timeout)

    def close(self) -> None:
        """Let the thread end when it has written all."""
        with self._changed:
            self._is_closing = True
            self._changed.notify_all()

    def _run(self) -> None:
        try:
            while (data := self._next()) is not None:
                self._write(data)
                with self._changed:
                    self._waiting.popleft()
                    self._nbytes -= len(data)
                    self._changed.notify_all()
        except OSError:  # a closed pipe, a full disk
            with self._changed:
                self._is_broken = True
                self._waiting.clear()
                self._nbytes = 0
                self._changed.notify_all()
        finally:
            os.close(self._descriptor)

    def _next(self) -> bytes | None:
        with self._changed:
            self._changed.wait_for(lambda: self._waiting or self._is_closing)
            return self._waiting[0] if self._waiting else None

    def _write(self, data: bytes) -> None:
        rest = memoryview(data)
        while rest:
            try:
                rest = rest[os.write(self._descriptor, rest) :]
            except BlockingIOError:  # somebody has made the terminal non-blocking
                select.select([], [self._descriptor], [])
