"""Waiting for file descriptors, with a way for other threads to end the wait.

ZeroMQ's own poll looks at each socket by several calls; one epoll over the descriptors that ZeroMQ
signals, and those of the local lane, costs a fifth of that. What a signal means is the business
of who registered it.
"""

from __future__ import annotations

import contextlib
import os
import select
import socket
import time
from collections.abc import Callable

from van.cores import on_this_core

READ, WRITE = select.EPOLLIN, select.EPOLLOUT
_ALONE = 50e-6  # seconds of looking in which most find it; then the core is offered to others, too
_MOST_EVENTS = 64  # of a round: epoll takes memory for as many; the others come in the next


class Poller:
    """Descriptors and what to call when one is ready. One thread at a time; `wake` is for all."""

    def __init__(self) -> None:
        self._epoll = select.epoll()
        self._acts: dict[int, Callable[[int], None]] = {}
        self._wake_in, self._wake_out = socket.socketpair()
        self._wake_in.setblocking(False)
        self._wake_out.setblocking(False)
        self.register(self._wake_out.fileno(), self._drain_wakes)

    def register(self, fd: int, act: Callable[[int], None], events: int = READ) -> None:
        """Call `act(events)` from `wait` when `fd` is ready for `events`."""
        self._acts[fd] = act
        self._epoll.register(fd, events)

    def modify(self, fd: int, events: int) -> None:
        """Wait for other `events` of `fd`."""
        self._epoll.modify(fd, events)

    def unregister(self, fd: int) -> None:
        """Forget `fd`, before it is closed."""
        if self._acts.pop(fd, None) is not None:
            self._epoll.unregister(fd)

    def wait(self, timeout: float, looking: float = 0.0, staying: float = 0.0) -> bool | None:
        """Call what is ready, after at most `timeout` seconds of waiting for it.

        Args:
            timeout: seconds.
            looking: seconds of them in which it looks again and again before it sleeps.
            staying: seconds that it may sleep and still wakes on the same core.
        Returns:
            Whether something was ready before it slept; None: nothing was, for all that time.
        """
        poll = self._epoll.poll
        found = poll(0, _MOST_EVENTS) if looking or not timeout else ()
        if not found and looking:
            if looking > timeout:
                looking = timeout
            end = (began := time.monotonic()) + looking
            while not found and (now := time.monotonic()) < end:
                if now - began > _ALONE:
                    os.sched_yield()  # it may be the peer who wants this core
                found = poll(0, _MOST_EVENTS)
            timeout -= looking
        is_early = bool(found)
        if not found and timeout and staying:
            stay = min(timeout, staying)
            found = on_this_core(lambda: poll(stay, _MOST_EVENTS))
            timeout -= stay
        if not found and timeout:
            found = poll(timeout, _MOST_EVENTS)
        for fd, events in found:
            act = self._acts.get(fd)
            if act is not None:  # an earlier act of this round may have unregistered it
                act(events)
        return is_early if found else None

    def wake(self) -> None:
        """Make a `wait` under way return; any thread may call this."""
        # Full: a wake is under way. Closed: nobody waits.
        with contextlib.suppress(BlockingIOError, OSError):
            self._wake_in.send(b"\0")

    def _drain_wakes(self, events: int) -> None:
        with contextlib.suppress(BlockingIOError):
            while len(self._wake_out.recv(4096)) == 4096:
                pass

    def close(self) -> None:
        """Give up all descriptors; those registered are closed by their owners."""
        self._acts.clear()
        self._epoll.close()
        self._wake_in.close()
        self._wake_out.close()
