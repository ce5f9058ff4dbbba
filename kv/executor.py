"""Who runs a server's work: long requests in turns on threads of their own, each worker's in order.

Work is a generator ("turns"). It yields where others may have their turn, with no lock held:
`yield` alone, or `yield [turns, …]` for parts that may run beside each other, after all of which
it goes on. So one thread serves several long requests at a time, and a short one between them.

Order comes from lanes: work waits for all that was submitted to one of its lanes before it. Which
lanes there are is the business of `kv.table_server`. Without threads everything runs in the call
that submits it, so that a network in lock step stays deterministic.
"""

from __future__ import annotations

import logging
import os
import threading
from collections import deque
from collections.abc import Callable, Generator, Hashable, Sequence
from typing import Any, TypeVar

T = TypeVar("T")
Turns = Generator[Any, None, T]
"""Yields None or a list of Turns; returns a T."""

log = logging.getLogger(__name__)

MOST_THREADS = 8


def threads_of(setting: int, cores: int | None = None) -> int:
    """How many threads `[server] threads` means: 0 leaves half of the cores to the workers."""
    if setting:
        return setting
    return max(1, min(MOST_THREADS, (cores or os.cpu_count() or 1) // 2))


def run_through(turns: Turns[T]) -> T:
    """Run `turns` to the end in this thread, parts one after the other; their result."""
    error: Exception | None = None
    try:
        while True:
            parts = next(turns) if error is None else turns.throw(error)
            error = None
            for part in parts or ():
                try:
                    run_through(part)
                except Exception as problem:  # arrives in the whole, as in an executor
                    error = error or problem
    except StopIteration as end:
        result: T = end.value
        return result


class _Work:
    """Turns on their way through an executor."""

    __slots__ = ("ahead", "error", "is_short", "lanes", "open_parts", "parent", "turns")

    def __init__(
        self,
        turns: Turns[Any],
        lanes: Sequence[Hashable] = (),
        is_short: bool = False,
        parent: _Work | None = None,
    ) -> None:
        self.turns, self.lanes, self.is_short, self.parent = turns, lanes, is_short, parent
        self.ahead = 0  # works before it in its lanes
        self.open_parts = 0
        self.error: BaseException | None = None  # of a part


class Executor:
    """Runs turns, on threads or at once.

    Args:
        threads: how many; with 0 work runs in the thread that submits it.
        on_failure: told of an exception that nobody can be answered with, by the thread it ended.
        name: of the threads.

    Attributes:
        is_closing: whether it takes no more work.
    """

    def __init__(
        self, threads: int, on_failure: Callable[[BaseException], None], name: str = "executor"
    ) -> None:
        self._on_failure = on_failure
        self._more = threading.Condition()
        self._ready: deque[_Work] = deque()
        self._lanes: dict[Hashable, deque[_Work]] = {}
        self.is_closing = self._is_dropping = self._is_running = False
        self._threads = [
            threading.Thread(target=self._serve, name=f"{name} {number}", daemon=True)
            for number in range(threads)
        ]
        for thread in self._threads:
            thread.start()

    def __repr__(self) -> str:
        return f"<Executor threads={len(self._threads)} lanes={len(self._lanes)}>"

    @property
    def is_idle(self) -> bool:
        """Whether no lane has any work."""
        return not self._lanes

    def is_free(self, lanes: Sequence[Hashable]) -> bool:
        """Whether nothing is under way in any of `lanes`; the one who submits may then go ahead."""
        return not self._lanes or not any(lane in self._lanes for lane in lanes)

    @property
    def lanes(self) -> list[Hashable]:
        """The lanes that have work: what is submitted to all of them comes after all there is."""
        with self._more:
            return list(self._lanes)

    def submit(
        self, turns: Turns[Any], lanes: Sequence[Hashable] = (), is_short: bool = False
    ) -> None:
        """Run `turns` when all earlier work of its lanes is done; a short one before long ones."""
        work = _Work(turns, lanes, is_short)
        with self._more:
            if self.is_closing:
                turns.close()
                return
            for lane in lanes:
                queue = self._lanes.setdefault(lane, deque())
                work.ahead += bool(queue)
                queue.append(work)
            if not work.ahead:
                self._enqueue(work)
        if not self._threads:
            self._run_here()

    def close(self, *, drain: bool = True) -> None:
        """Take no more work and end the threads: after what there is, or after this turn."""
        with self._more:
            self.is_closing = True
            self._is_dropping = self._is_dropping or not drain
            self._more.notify_all()
        for thread in self._threads:
            thread.join()
        for work in (*self._ready, *(work for queue in self._lanes.values() for work in queue)):
            work.turns.close()
        self._ready.clear()
        self._lanes.clear()

    def _enqueue(self, work: _Work) -> None:
        """Let `work` have a turn; the lock is held."""
        if work.is_short:
            self._ready.appendleft(work)
        else:
            self._ready.append(work)
        self._more.notify()

    def _run_here(self) -> None:
        if self._is_running:  # the work that runs has submitted more: it comes after
            return
        self._is_running = True
        try:
            while self._ready:
                self._turn(self._ready.popleft())
        finally:
            self._is_running = False

    def _serve(self) -> None:
        """The life of a thread."""
        try:
            while True:
                with self._more:
                    while not self._ready and not self._has_ended():
                        self._more.wait()
                    if self._has_ended():
                        self._more.notify_all()
                        return
                    work = self._ready.popleft()
                self._turn(work)
        except BaseException as error:
            log.exception("a server's thread ended")
            with self._more:
                self.is_closing = self._is_dropping = True  # the others alone would keep no order
                self._more.notify_all()
            self._on_failure(error)

    def _has_ended(self) -> bool:
        """Whether a thread may go; the lock is held."""
        is_empty = not self._ready and not self._lanes
        return self._is_dropping or (self.is_closing and is_empty)

    def _turn(self, work: _Work) -> None:
        """Run `work` until it ends or somebody else should have a turn."""
        try:
            while True:
                error, work.error = work.error, None
                parts = next(work.turns) if error is None else work.turns.throw(error)
                if parts:
                    self._fan_out(work, parts)
                    return
                if (
                    self._ready or self._is_dropping
                ):  # looked at without the lock: at worst a turn more or less
                    break
        except StopIteration:
            self._ended(work)
        except Exception as error:
            if work.parent is None:
                raise
            work.parent.error = work.parent.error or error
            self._ended(work)
        else:
            with self._more:
                self._ready.append(work)
                self._more.notify()

    def _fan_out(self, work: _Work, parts: Sequence[Turns[Any]]) -> None:
        with self._more:
            work.open_parts = len(parts)
            self._ready.extend(_Work(part, parent=work) for part in parts)
            self._more.notify(len(parts))

    def _ended(self, work: _Work) -> None:
        with self._more:
            if work.parent is not None:
                work.parent.open_parts -= 1
                if not work.parent.open_parts:
                    self._ready.appendleft(work.parent)
                    self._more.notify()
                return
            for lane in work.lanes:
                queue = self._lanes[lane]
                queue.popleft()
                if not queue:
                    del self._lanes[lane]
                    continue
                queue[0].ahead -= 1
                if not queue[0].ahead:
                    self._enqueue(queue[0])
            if self.is_closing:
                self._more.notify_all()
