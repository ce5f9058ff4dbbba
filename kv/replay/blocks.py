"""Files of blocks, each with its kind, size and checksum; the last one is DONE.

A file that does not end with DONE is not complete: its writer was killed, or it was cut off.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from kv.replay.errors import RecordError

MAGIC = b"PSLREC1\n"
DONE = b"DONE"
_BLOCK = struct.Struct("<4sII")  # kind, bytes that follow, CRC-32 of kind and bytes


class BlockWriter:
    """Writes such a file. One thread at a time.

    Args:
        path: of the file, which must not be there.

    Attributes:
        is_writing: a block is half done.
    Raises:
        RecordError: it is there, or cannot be written; so do all calls here.
    """

    def __init__(self, path: Path) -> None:
        self.path, self.is_writing = path, False
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            problem = "there is one already; take another folder, or remove that"
            raise RecordError(path, problem) from None
        except OSError as error:
            raise RecordError(path, f"cannot be written: {error.strerror}") from error
        self._write(MAGIC)

    def add(self, kind: bytes, payload: bytes) -> None:
        """Write a block of four letters' kind."""
        self._write(_BLOCK.pack(kind, len(payload), _checksum(kind, payload)) + payload)

    def add_json(self, kind: bytes, value: Any) -> None:
        """Write a block of JSON."""
        self.add(kind, json.dumps(value).encode())

    @property
    def is_open(self) -> bool:
        """Whether the end may be written: it is not yet, and no signal has come amid a block."""
        return self._file >= 0 and not self.is_writing

    def close(self, **facts: Any) -> None:
        """Write the end, with these facts."""
        self.add_json(DONE, facts)
        os.close(self._file)
        self._file = -1

    def _write(self, block: bytes) -> None:
        self.is_writing = True
        try:
            while block:
                block = block[os.write(self._file, block) :]
        except OSError as error:
            raise RecordError(self.path, f"cannot be written: {error.strerror}") from error
        self.is_writing = False


def read_blocks(path: Path) -> Iterator[tuple[bytes, bytes]]:
    """The blocks of a file as (kind, bytes), DONE the last.

    Raises:
        RecordError: it cannot be read, is torn, altered or not complete.
    """
    is_done = False
    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise RecordError(path, "is no record of pslite, or of another version of it")
            while raw := file.read(_BLOCK.size):
                place = file.tell() - len(raw)
                if is_done:
                    raise RecordError(path, f"goes on at byte {place} after its end")
                if len(raw) < _BLOCK.size:
                    raise RecordError(path, f"is cut off at byte {place}")
                kind, size, checksum = _BLOCK.unpack(raw)
                payload = file.read(min(size, path.stat().st_size))
                if len(payload) < size:
                    raise RecordError(path, f"is cut off, or damaged, in its block at byte {place}")
                if _checksum(kind, payload) != checksum:
                    raise RecordError(path, f"is damaged: its block at byte {place} was altered")
                is_done = kind == DONE
                yield kind, payload
    except OSError as error:
        raise RecordError(path, f"cannot be read: {error.strerror}") from error
    if not is_done:
        problem = "is not complete: who wrote it was killed, or the file was cut off"
        raise RecordError(path, problem)


def _checksum(kind: bytes, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(kind))
