"""Numba's cache on disk, shared by processes that compile at once.

Numba numbers the files of a kernel's types by its index, writes the index first, and locks nothing.
So of two processes that compile one kernel for different types at a time, one may later be given,
under its types, the code of the other: a call that never ends, or worse. Here a lock of the folder
is held while a kernel is saved (alone) or loaded (together). And a kernel that cannot be saved, as
on a full disk, has been compiled all the same.
"""

from __future__ import annotations

import contextlib
import fcntl
import logging
import os
from collections.abc import Iterator
from typing import Any

log = logging.getLogger(__name__)

LOCK = "kernels.lock"  # beside the cache's files
_complained: set[str] = set()  # folders


def share(dispatcher: Any) -> None:
    """Let a kernel's cache be shared; nothing happens where there is none."""
    file = getattr(getattr(dispatcher, "_cache", None), "_cache_file", None)
    folder = getattr(file, "_cache_path", None)
    if file is None or folder is None:
        return
    plain_save, plain_load = file.save, file.load

    def save(key: Any, data: Any) -> None:
        try:
            with _locked(folder, fcntl.LOCK_EX):
                plain_save(key, data)
        except OSError as error:
            if folder not in _complained:
                _complained.add(folder)
                why = f"{error.strerror or error}; NUMBA_CACHE_DIR chooses another folder"
                log.warning("compiled kernels cannot be kept in %s: %s", folder, why)

    def load(key: Any) -> Any:
        with _locked(folder, fcntl.LOCK_SH):
            return plain_load(key)

    file.save, file.load = save, load


@contextlib.contextmanager
def _locked(folder: str, how: int) -> Iterator[None]:
    """Hold the folder's lock; where it is not to be had, as in one without locks, do without."""
    lock = None
    with contextlib.suppress(OSError):
        path = os.path.join(folder, LOCK)
        lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o666)
    if lock is None and how == fcntl.LOCK_SH:
        with contextlib.suppress(OSError):  # one may only read there, and somebody else may write
            lock = os.open(os.path.join(folder, LOCK), os.O_RDONLY)
    try:
        if lock is not None:
            with contextlib.suppress(OSError):
                fcntl.flock(lock, how)
        yield
    finally:
        if lock is not None:
            os.close(lock)
