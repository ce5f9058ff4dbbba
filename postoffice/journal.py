"""A file from which a scheduler started again goes on: appended to, compacted, checksummed.

A record is its length, the CRC-32 of that length, the CRC-32 of its bytes, and the bytes. `append`
returns when the operating system has them, so what was appended survives the death of the process
at any moment; of a record that was being written then, the torn rest is cut off when the file is
read. Other damage is an error: what follows it may have been acted on. A compacted file takes the
place of the former one by renaming it.

What records mean is the business of `postoffice.books`.
"""

from __future__ import annotations

import fcntl
import logging
import os
import struct
import zlib
from pathlib import Path
from typing import Protocol

from postoffice.errors import JournalError

log = logging.getLogger(__name__)

_MAGIC = b"pslite scheduler journal 1\n"
_FRAME = struct.Struct("<III")
_COMPACT_FROM = 1 << 20  # bytes; and when twice as long as after the last compaction


class Journal(Protocol):
    """Where a scheduler writes down what another must know to go on."""

    def load(self) -> list[bytes]:
        """The records so far, oldest first. Raises `JournalError`."""

    def append(self, record: bytes) -> None:
        """Add a record; it is safe when this returns. Raises `JournalError`."""

    @property
    def is_long(self) -> bool:
        """Whether it is time for `compact`."""

    def compact(self, record: bytes) -> None:
        """Forget all records but this one, at once or not at all. Raises `JournalError`."""

    def announce(self, address: str) -> None:
        """This scheduler listens at `address`: for nodes that look there. Raises `JournalError`."""

    def clear(self) -> None:
        """Forget all: the job is over."""

    def close(self) -> None:
        """Keep what is there, and let another scheduler have it."""


class FileJournal:
    """A `Journal` in a file, which one scheduler at a time may have.

    Args:
        path: the file; made if it is not there, in a folder that must be.

    Raises:
        JournalError: it cannot be opened, or another scheduler has it.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        self._compacted = 0
        self._fd = self._open(self.path, os.O_RDWR | os.O_CREAT)
        self._size = os.fstat(self._fd).st_size

    def _open(self, path: Path, flags: int) -> int:
        try:
            fd = os.open(path, flags | os.O_CLOEXEC, 0o600)
        except OSError as error:
            raise self._error(f"cannot be opened: {error.strerror}") from None
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            os.close(fd)
            raise self._error("another scheduler uses it; does the job still run?") from None
        return fd

    def load(self) -> list[bytes]:
        """The records so far; a torn last one is cut off."""
        try:
            with self.path.open("rb") as file:
                content = file.read()
        except OSError as error:
            raise self._error(f"cannot be read: {error.strerror}") from None
        if not content.startswith(_MAGIC):
            if _MAGIC.startswith(content):  # torn when it was new
                self._truncate(0)
                return []
            raise self._error("is no journal of a scheduler; [cluster] journal names another file?")
        records, good = self._parse(content)
        if good < len(content):
            log.warning("%s: dropped a torn record of %d bytes", self.path, len(content) - good)
            self._truncate(good)
        return records

    def _parse(self, content: bytes) -> tuple[list[bytes], int]:
        records, place = [], len(_MAGIC)
        while place + _FRAME.size <= len(content):
            size, size_checksum, checksum = _FRAME.unpack_from(content, place)
            if size_checksum != _checksum_of(size):
                raise self._damaged(place)
            end = place + _FRAME.size + size
            record = content[place + _FRAME.size : end]
            if len(record) < size:
                break
            if zlib.crc32(record) != checksum:
                if end < len(content):
                    raise self._damaged(place)
                break
            records.append(record)
            place = end
        return records, place

    def _damaged(self, place: int) -> JournalError:
        return self._error(f"is damaged at byte {place}; delete it to begin anew")

    def append(self, record: bytes) -> None:
        """Add a record; a failed one leaves the file as it was."""
        data = (b"" if self._size else _MAGIC) + _framed(record)
        try:
            _write(self._fd, data, self._size)
        except OSError as error:
            self._truncate(self._size)
            raise self._error(f"cannot be written: {error.strerror}") from None
        self._size += len(data)

    @property
    def is_long(self) -> bool:
        return self._size > max(_COMPACT_FROM, 2 * self._compacted)

    def compact(self, record: bytes) -> None:
        """Make a file of this record alone, and rename it."""
        new, data = self.path.with_name(self.path.name + ".new"), _MAGIC + _framed(record)
        fd = self._open(new, os.O_RDWR | os.O_CREAT)
        try:
            os.ftruncate(fd, 0)
            _write(fd, data, 0)
            os.fsync(fd)
            os.replace(new, self.path)
        except OSError as error:
            os.close(fd)
            new.unlink(missing_ok=True)
            raise self._error(f"cannot be compacted: {error.strerror}") from None
        os.close(self._fd)
        self._fd, self._size, self._compacted = fd, len(data), len(data)

    def announce(self, address: str) -> None:
        """Nobody looks here: a scheduler that goes on has the same address."""

    def clear(self) -> None:
        """The file goes."""
        self.path.unlink(missing_ok=True)
        self._size = 0

    def close(self) -> None:
        """Let another scheduler have the file."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

    def __repr__(self) -> str:
        return str(self.path)

    def _truncate(self, size: int) -> None:
        try:
            os.ftruncate(self._fd, size)
        except OSError as error:
            raise self._error(f"cannot be cut to {size} bytes: {error.strerror}") from None
        self._size = size

    def _error(self, problem: str) -> JournalError:
        return JournalError(str(self.path), problem)


def _framed(record: bytes) -> bytes:
    size = len(record)
    return _FRAME.pack(size, _checksum_of(size), zlib.crc32(record)) + record


def _checksum_of(size: int) -> int:
    return zlib.crc32(size.to_bytes(4, "little"))


def _write(fd: int, data: bytes, place: int) -> None:
    view = memoryview(data)
    while view:
        written = os.pwrite(fd, view, place)
        view, place = view[written:], place + written
