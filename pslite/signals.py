"""Signals to this process as events of its main loop."""

from __future__ import annotations

import contextlib
import signal
import socket
from types import FrameType
from typing import Self

SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


class SignalInbox:
    """Collects SIGINT, SIGTERM and SIGHUP inside its `with` block.

    What was ignored from the start, as by `nohup`, stays ignored. Only a main thread can take
    signals; in another thread this does nothing and they stay the caller's business.
    """

    def __init__(self) -> None:
        self._got: list[int] = []
        self._wake, self._woken = socket.socketpair()
        self._wake.setblocking(False)
        self._woken.setblocking(False)
        self._before: dict[int, object] = {}

    def fileno(self) -> int:
        """Can be read when a signal has come, so that a selector wakes up for it."""
        return self._woken.fileno()

    def take(self) -> list[int]:
        """The signals that came since, oldest first."""
        with contextlib.suppress(BlockingIOError):
            self._woken.recv(1024)
        taken, self._got = self._got, []
        return taken

    def __enter__(self) -> Self:
        with contextlib.suppress(ValueError):  # not the main thread
            for signum in SIGNALS:
                if signal.getsignal(signum) != signal.SIG_IGN:
                    self._before[signum] = signal.signal(signum, self._put)
            if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
                # Inherited from whoever started us; the exit codes of children would be lost.
                self._before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
        return self

    def __exit__(self, *_: object) -> None:
        for signum, handler in self._before.items():
            signal.signal(signum, handler)  # type: ignore[arg-type]  # as signal() gave it
        self._wake.close()
        self._woken.close()

    def _put(self, signum: int, _: FrameType | None) -> None:
        self._got.append(signum)
        with contextlib.suppress(BlockingIOError):
            self._wake.send(b"!")
