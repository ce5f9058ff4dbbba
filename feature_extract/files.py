"""Write files so that a reader never sees half of one."""

from __future__ import annotations

import os
from collections.abc import Iterable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

from feature_extract.errors import SampleFileError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to, which takes its place when the block ends well.

    A device or a pipe is written to itself: a file in its place would be one for all others, too.

    Raises:
        SampleFileError: the directory cannot be written to.
    """
    if path.exists() and not path.is_file():
        with _writing(path):
            yield path
        return
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        with _writing(path):
            path.parent.mkdir(parents=True, exist_ok=True)
            yield partial
            partial.replace(path)
    finally:
        with suppress(OSError):
            partial.unlink(missing_ok=True)


@contextmanager
def _writing(path: Path) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise SampleFileError(str(path), f"cannot be written: {reason}") from None


def refuse_inputs(outputs: Iterable[Path], inputs: Iterable[Path | None]) -> None:
    """Refuse to write a file that is also read, by whatever name.

    Raises:
        SampleFileError: an output is one of the inputs; None among these is passed over.
    """
    read = [path for path in inputs if path is not None and path.exists()]
    for out in outputs:
        if out.exists() and any(out.samefile(path) for path in read):
            problem = "would overwrite a file that is read; write to another place"
            raise SampleFileError(str(out), problem)
