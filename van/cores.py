"""The core a thread runs on: staying there, and how often others get it.

Where a sandbox forbids to ask or to choose, the kernel decides, and nobody is told.
"""

from __future__ import annotations

import ctypes
import os
import resource
import threading
from collections.abc import Callable
from typing import TypeVar

T = TypeVar("T")

_this_core: Callable[[], int] = ctypes.CDLL(None).sched_getcpu


def has_several_cores() -> bool:
    """Whether the calling thread may run on more than one core."""
    try:
        return len(os.sched_getaffinity(0)) > 1
    except OSError:
        return (os.cpu_count() or 1) > 1


def on_this_core(call: Callable[[], T]) -> T:
    """What `call` returns; meanwhile the thread stays on its core, also if it wakes from sleep.

    Who chooses other cores for the thread meanwhile (`taskset -p`) has the last word.
    """
    try:
        mine, core = os.sched_getaffinity(0), {_this_core()}
    except OSError:
        return call()
    # An exception out of a signal handler may come after any call and at the start of any function
    # of Python's. It must not leave the thread on one core for ever; so there is none such here.
    try:
        try:  # noqa: SIM105
            os.sched_setaffinity(0, core)
        except (OSError, ValueError):  # ValueError: it is not known which core this is
            pass
        return call()
    finally:
        is_ours = True
        try:
            is_ours = os.sched_getaffinity(0) == core
        finally:
            if is_ours:
                try:  # noqa: SIM105
                    os.sched_setaffinity(0, mine)
                except OSError:
                    pass


def times_taken() -> tuple[int, int]:
    """The calling thread, and how often the kernel took the core from it before it would sleep."""
    try:
        times = resource.getrusage(resource.RUSAGE_THREAD).ru_nivcsw
    except OSError:
        times = 0
    return threading.get_ident(), times
