"""The core a thread runs on, and staying there."""

from __future__ import annotations

import contextlib
import ctypes
import os
from collections.abc import Callable, Iterator

_this_core: Callable[[], int] = ctypes.CDLL(None).sched_getcpu


@contextlib.contextmanager
def on_this_core() -> Iterator[None]:
    """Within, the calling thread stays on its core, also where the kernel wakes it from sleep."""
    mine = os.sched_getaffinity(0)
    try:  # from here on: an exception out of a signal handler may come between any two steps
        with contextlib.suppress(OSError):  # where a sandbox does not allow it, the kernel decides
            os.sched_setaffinity(0, {_this_core()})
        yield
    finally:
        with contextlib.suppress(OSError):
            os.sched_setaffinity(0, mine)
