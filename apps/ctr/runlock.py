"""One training at a time in a run folder, whatever its mode."""

from __future__ import annotations

import fcntl
import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from apps.ctr.errors import CtrError
from apps.ctr.output import writing

LOCK = ".train.lock"


@contextmanager
def only_training(folder: Path) -> Iterator[None]:
    """Hold the folder, made if missing; the system lets go of it when the process dies.

    A folder that was made and is still empty in the end goes again.

    Raises:
        CtrError: another training runs there.
        OutputError: the folder cannot be written.
    """
    path, is_new = folder / LOCK, not folder.exists()
    with writing(folder):
        folder.mkdir(parents=True, exist_ok=True)
        lock = open(path, "a")  # noqa: SIM115  (held while the block runs)
    with lock:
        if not _is_held(lock.fileno(), path):
            problem = f"another training is running in {folder}; wait for it, or name another --out"
            raise CtrError(problem)
        try:
            yield
        finally:
            with suppress(OSError):
                path.unlink()
                if is_new:
                    folder.rmdir()  # refused where anything is in it


def _is_held(file: int, path: Path) -> bool:
    """Lock the open file; False if another process has it, or had it and has just removed it."""
    try:
        fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        return os.path.samestat(os.fstat(file), path.stat())
    except (BlockingIOError, FileNotFoundError):
        return False
