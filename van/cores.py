"""The core a thread runs on: how often it was put off it, and moving to another one."""

from __future__ import annotations

import contextlib
import ctypes
import os
import resource
from collections.abc import Callable, Iterator

_THREAD = resource.RUSAGE_THREAD


def times_put_off() -> int:
    """How often the calling thread had to leave a core because others wanted it."""
    return resource.getrusage(_THREAD).ru_nivcsw


@contextlib.contextmanager
def on_this_core() -> Iterator[None]:
    """Within, the calling thread stays on its core, also where the kernel wakes it from sleep."""
    mine = os.sched_getaffinity(0)
    os.sched_setaffinity(0, {_this_core()})
    try:
        yield
    finally:
        os.sched_setaffinity(0, mine)


def step_aside() -> None:
    """Move the calling thread to another core that it may use, if there is one.

    Which cores it may use stays as it was: the kernel is free to move it back.
    """
    mine = os.sched_getaffinity(0)
    others = mine - {_this_core()}
    if others:
        os.sched_setaffinity(0, others)
        os.sched_setaffinity(0, mine)


_this_core: Callable[[], int] = ctypes.CDLL(None).sched_getcpu
