"""Numba's cache on disk, shared by processes that compile at once.

Numba numbers the files of a kernel's types by its index, writes the index first, and locks nothing.
So of two processes that compile one kernel for different types at a time, one may later be given,
under its types, the code of the other: a call that never ends, or worse. Here a lock of the folder
is held while a kernel is saved (alone) or loaded (together).
"""

from __future__ import annotations

import fcntl
import functools
import os
from collections.abc import Callable
from typing import Any

LOCK = "kernels.lock"  # beside the cache's files


def share(dispatcher: Any) -> None:
    """Let a kernel's cache be shared; nothing happens where there is none."""
    file = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    folder = getattr(file, "_cache_path", None)
    if file is not None and folder is not None:
        path = os.path.join(folder, LOCK)
        file.save = _guarded(file.save, path, fcntl.LOCK_EX)
        file.load = _guarded(file.load, path, fcntl.LOCK_SH)


def _guarded(act: Callable[..., Any], path: str, how: int) -> Callable[..., Any]:
    @functools.wraps(act)
    def guarded(*arguments: Any) -> Any:
        try:
            lock = open(path, "ab")  # noqa: SIM115 (it may be refused)
        except OSError:  # nobody can write there
            return act(*arguments)
        with lock:
            fcntl.flock(lock, how)
            return act(*arguments)

    return guarded
