"""Read a text file, compressed or not, in blocks of whole lines."""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from feature_extract.errors import SampleFileError


def blocks(path: Path, nbytes: int) -> Iterator[tuple[bytes, int]]:
    """Blocks that end with a newline (one is added to a last line without), and how many bytes of
    the file have been read for each.

    A block has about `nbytes` bytes, more where a single line is longer.

    Raises:
        SampleFileError: the file cannot be read or decompressed.
    """
    rest: list[bytes] = []
    try:
        with open(path, "rb") as file, pa.input_stream(file, _compression(path)) as stream:
            position = 0
            while part := stream.read(nbytes):
                if position == 0 and not rest:
                    part = part.removeprefix(codecs.BOM_UTF8)
                cut = part.rfind(b"\n") + 1
                if not cut:
                    rest.append(part)
                    continue
                before, position = position, file.tell()
                yield b"".join((*rest, part[:cut])), position - before
                rest = [part[cut:]]
            if last := b"".join(rest):
                yield last + b"\n", file.tell() - position
    except (OSError, pa.ArrowException) as error:
        raise SampleFileError(str(path), f"cannot be read: {error}") from None


def _compression(path: Path) -> str | None:
    return {".gz": "gzip", ".bz2": "bz2", ".zst": "zstd"}.get(path.suffix)
