"""A lock that is handed over to who waits, in the order of waiting.

`threading.Lock` goes to whoever asks first after it is free, which is nearly always the thread that
has just released it: a thread that works in chunks and releases between two of them would let
nobody in. Not reentrant.
"""

from __future__ import annotations

import threading
from collections import deque
from types import TracebackType


class FairLock:
    """First come, first served: `with lock: ...`."""

    def __init__(self) -> None:
        self._mutex = threading.Lock()
        self._is_held = False
        self._turns: deque[threading.Lock] = deque()

    def __enter__(self) -> None:
        with self._mutex:
            if not self._is_held:
                self._is_held = True
                return
            turn = threading.Lock()
            turn.acquire()
            self._turns.append(turn)
        turn.acquire()  # until `__exit__` hands the lock over

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        with self._mutex:
            if self._turns:
                self._turns.popleft().release()
            else:
                self._is_held = False

    @property
    def waiting(self) -> int:
        """How many threads wait for it."""
        return len(self._turns)

    def __repr__(self) -> str:
        return f"<FairLock {'held' if self._is_held else 'free'} waiting={self.waiting}>"
