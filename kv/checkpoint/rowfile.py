"""The file of one part of one table on one server: blocks, to be applied in order.

    magic
    head (kind, count, row_nbytes, checksum), payload
    ...

A block of rows has their columns one after the other, a block of removals their keys; numbers are
little endian. The checksum is the payload's; the manifest has one over the whole file.
"""

from __future__ import annotations

import hashlib
import struct
import sys
import zlib
from collections.abc import Iterator
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from kv.store.rows import RowBatch

MAGIC = b"PSROWS01"
ROWS, REMOVED = 1, 2
_HEAD = struct.Struct("<IIQQI4x")
_FIXED = 8 + 8 + 4 + 4  # bytes of a row's key, version, shows and second
BLOCK_NBYTES = 64 << 20  # of a block that is written, at most or a little more
MOST_PAYLOAD = 1 << 32  # of one that is read
Keys = NDArray[np.uint64]
Block = RowBatch | Keys

assert sys.byteorder == "little", "rows are written as they lie in memory"


class RowWriter:
    """Writes blocks into a file that is open.

    Attributes:
        rows, removed: how many were written.
        nbytes: of the file.
    """

    def __init__(self, file: IO[bytes]) -> None:
        self._file, self._digest = file, new_digest()
        self.rows = self.removed = self.nbytes = 0
        self._write(MAGIC)

    def put(self, batch: RowBatch) -> None:
        """Rows that are there now, whatever came before of their keys."""
        most = max(1, BLOCK_NBYTES // (batch.row_nbytes + _FIXED))
        for start in range(0, len(batch), most):
            some = batch.take(slice(start, start + most))
            keys, data, *rest = some.columns()
            self._block(ROWS, len(some), batch.row_nbytes, [keys, *rest, data])
            self.rows += len(some)

    def remove(self, keys: Keys) -> None:
        """Keys that have no row any more, whatever came before."""
        if keys.size:
            self._block(REMOVED, keys.size, 0, [keys])
            self.removed += keys.size

    @property
    def digest(self) -> str:
        """Of all that was written."""
        return self._digest.hexdigest()

    def _block(self, kind: int, count: int, width: int, columns: list[NDArray[Any]]) -> None:
        payload = [np.ascontiguousarray(c).view(np.uint8).reshape(-1).data for c in columns]
        checksum = 0
        for part in payload:
            checksum = zlib.crc32(part, checksum)
        nbytes = sum(part.nbytes for part in payload)
        self._write(_HEAD.pack(kind, width, count, nbytes, checksum))
        for part in payload:
            self._write(part)

    def _write(self, data: bytes | memoryview) -> None:
        self._file.write(data)
        self._digest.update(data)
        self.nbytes += len(data)


def read_blocks(file: IO[bytes], nbytes: int) -> Iterator[Block]:
    """The blocks of a file of `nbytes`: a RowBatch, or the keys of removals.

    Raises:
        ValueError: it is not such a file, or not whole; the text says what is wrong.
    """
    if file.read(len(MAGIC)) != MAGIC:
        raise ValueError("it does not begin as a file of rows does")
    left = nbytes - len(MAGIC)
    while left > 0:
        head = file.read(_HEAD.size)
        if len(head) < _HEAD.size:
            raise ValueError("it ends within the head of a block")
        kind, width, count, size, checksum = _HEAD.unpack(head)
        left -= _HEAD.size + size
        wanted = {ROWS: count * (_FIXED + width), REMOVED: 8 * count}.get(kind)
        if size != wanted or left < 0 or size > MOST_PAYLOAD:
            raise ValueError(f"a block of kind {kind} cannot have {count} entries in {size} bytes")
        payload = file.read(size)
        if len(payload) < size:
            raise ValueError("it ends within a block")
        if zlib.crc32(payload) != checksum:
            raise ValueError("the checksum of a block is wrong")
        yield _rows(payload, count, width) if kind == ROWS else np.frombuffer(payload, np.uint64)
    if file.read(1):
        raise ValueError(f"it is longer than {nbytes} bytes")


def _rows(payload: bytes, count: int, width: int) -> RowBatch:
    kinds = (np.uint64, np.int64, np.uint32, np.uint32)
    columns, start = [], 0
    for kind in kinds:
        columns.append(np.frombuffer(payload, kind, count, start))
        start += columns[-1].nbytes
    data = np.frombuffer(payload, np.uint8, count * width, start).reshape(count, width)
    keys, versions, shows, seen = columns
    return RowBatch(keys, data, versions, shows, seen)  # type: ignore[arg-type]  # by their kinds


def new_digest() -> hashlib.blake2b:
    """What files and manifests are hashed with."""
    return hashlib.blake2b(digest_size=16)
