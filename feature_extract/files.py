"""Write files so that a reader never sees half of one."""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from feature_extract.errors import SampleFileError


@contextmanager
def replacing(path: Path) -> Iterator[Path]:
    """A path beside `path` to write to, which takes its place when the block ends well.

    Raises:
        SampleFileError: the directory cannot be written to.
    """
    partial = path.with_name(f".{path.name}.{os.getpid()}.partial")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        yield partial
        partial.replace(path)
    except OSError as error:
        raise SampleFileError(str(path), f"cannot be written: {error}") from None
    finally:
        partial.unlink(missing_ok=True)
