"""Files that are written whole or not at all, and errors that name them."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from apps.ctr.errors import OutputError


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Whatever the system refuses in the block is an error about `path`.

    Raises:
        OutputError: the disk is full, the folder is not there, and the like.
    """
    try:
        yield
    except OSError as error:
        raise OutputError(path, error.strerror or str(error)) from error


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to, which takes its place when the block ends well.

    A device or a pipe is written to itself: a file in its place would be one for all others, too.

    Raises:
        OutputError: as of `writing`; nothing is left behind.
    """
    if path.exists() and not path.is_file():
        with writing(path):
            yield path
        return
    aside = path.with_name(f".{path.name}.{os.getpid()}")
    try:
        with writing(path):
            yield aside
            aside.replace(path)
    finally:
        with suppress(OSError):
            aside.unlink(missing_ok=True)


def refuse_overwriting(out: Path, data: Path) -> None:
    """Refuse to write `out` where it is the file `data` that is read, by whatever name.

    Raises:
        OutputError: it is.
    """
    with suppress(OSError):  # one that is not there is no other
        if out.samefile(data):
            raise OutputError(out, "it is the data that is read; name another file")
