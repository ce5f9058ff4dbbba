"""The cold tier: records of rows in a file that has no name, mapped into memory.

The file is unlinked as it is made, so that nothing is left on disk whatever ends the process. Its
blocks are asked for in steps before anything is written to them: a full disk is an error here, not
a SIGBUS in a kernel. Where the file outgrows its mapping it is mapped anew; nothing is copied.
"""

from __future__ import annotations

import mmap
import os
import tempfile
import weakref

import numpy as np
from numpy.typing import NDArray

from kv.errors import ArenaFullError
from kv.store.index import MOST_ROWS
from kv.store.numbers import Numbers, Rows

STEP = 4 << 20  # bytes asked for at once, at least; later an eighth of what there is
HEAD_WORDS = 3  # uint64 words of a record before the row


class ColdTier:
    """Records on disk, each a row's record and the row.

    `records` is uint64 (slots, width), another array whenever `grant` has mapped the file anew.

    Args:
        table: its name, for errors.
        row_nbytes: bytes of a row.
        directory: where the file lies; empty is the system's directory for temporary files.
    Raises:
        ArenaFullError: no file can be made there.
    """

    def __init__(self, table: str, row_nbytes: int, directory: str = "") -> None:
        self.table, self.directory = table, directory or tempfile.gettempdir()
        self.width = HEAD_WORDS + -(-row_nbytes // 8)
        self.numbers = Numbers()
        self.granted = 0  # records that have blocks
        self.records: NDArray[np.uint64] = np.zeros((1, self.width), np.uint64)
        try:
            with tempfile.TemporaryFile(dir=self.directory, buffering=0) as file:
                self._file = os.dup(file.fileno())
        except OSError as error:
            raise ArenaFullError(
                table,
                f"cannot keep rows on disk in {self.directory} ({error}); set [server] spill_dir "
                f"to a directory that can be written to",
            ) from error
        weakref.finalize(self, os.close, self._file)

    @property
    def nbytes(self) -> int:
        """Bytes on disk."""
        return self.granted * 8 * self.width

    def take(self, count: int) -> Rows:
        """Numbers of `count` free records that have blocks on disk.

        Raises:
            ArenaFullError: the disk is full; nothing changed.
        """
        self.grant(self.numbers.in_use + count)
        return self.numbers.take(count)

    @property
    def num_granted_free(self) -> int:
        """Free records that have blocks on disk."""
        return self.granted - self.numbers.in_use

    def grant(self, count: int) -> None:
        """See that `count` records have blocks, those in use included.

        Raises:
            ArenaFullError: the disk is full; nothing changed.
        """
        if count > self.granted:
            self._grant(count)

    def forget(self, numbers: Rows) -> None:
        """These records are free: their rows are gone."""
        self.records[numbers, 1] = 0
        self.numbers.give_back(numbers)

    def _grant(self, need: int) -> None:
        """Blocks for `need` records, and some more if there are any."""
        nbytes = 8 * self.width
        generous = max(need, self.granted + max(STEP // nbytes, self.granted // 8))
        for target in (min(generous, MOST_ROWS), need):
            try:
                if target > MOST_ROWS:
                    raise OSError("more than a file of 2^31 records holds")
                start = self.granted * nbytes
                os.posix_fallocate(self._file, start, target * nbytes - start)
                self._map(target)
                self.granted = target
                return
            except OSError as error:
                failure = error
        raise ArenaFullError(
            self.table,
            f"no room for {need} rows of {nbytes} bytes on the disk of {self.directory} "
            f"({failure}); set [server] spill_dir to a larger one, or use more servers",
        )

    def _map(self, count: int) -> None:
        """Map the first `count` records, and address space beyond for as many again."""
        if count <= len(self.records) and self.granted:
            return
        nbytes = 2 * count * 8 * self.width
        os.ftruncate(self._file, nbytes)  # blocks beyond those granted are not touched
        memory = mmap.mmap(self._file, nbytes)
        if hasattr(mmap, "MADV_RANDOM"):
            memory.madvise(mmap.MADV_RANDOM)
        self.records = np.frombuffer(memory, np.uint64).reshape(-1, self.width)

    def validate(self) -> None:
        """Assert what must hold between numbers and records."""
        self.numbers.validate()
        assert self.numbers.top <= self.granted <= max(len(self.records), 1), "no blocks or no map"
        versions = self.records[: self.numbers.top, 1]
        assert np.count_nonzero(versions) == self.numbers.in_use, "records on disk are lost"
