"""The core a thread runs on: staying there, and how often others get it."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
import threading
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


def times_taken() -> tuple[int, int]:
    """The calling thread, and how often the kernel took the core from it before it would sleep."""
    return threading.get_ident(), resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
