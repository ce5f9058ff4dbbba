"""Batches of a file of rows, in file order or shuffled, from memory or from disk.

A source gives rows in windows. A dataset cuts them into batches that run on across windows, so no
row is dropped and only the last batch may be smaller. What fits `cache` bytes is kept for the next
pass; more is read again, so a file may be larger than memory.
"""

from __future__ import annotations

import sys
import threading
from collections.abc import Iterator
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from apps.ctr.batch import Blocks, Rows
from apps.ctr.epoch_reader import EpochReader
from apps.ctr.errors import DataError
from apps.ctr.parquet_source import WINDOW_ROWS, ParquetSource
from apps.ctr.schema import Schema
from apps.ctr.text_source import TextSource


class Source(Protocol):
    """A file of rows: chunks that can be read in any order, each in windows of bounded size."""

    @property
    def path(self) -> str: ...
    @property
    def schema(self) -> Schema: ...
    @property
    def rows(self) -> int | None: ...
    @property
    def chunks(self) -> int: ...
    @property
    def chunk_rows(self) -> list[int] | None:
        """Rows of each chunk, if that is known without reading it."""

    def read(self, chunk: int) -> Iterator[Rows]: ...
    def count(self) -> int:
        """Rows of the file, counted if need be."""


def open_source(
    path: str | Path,
    blocks: Blocks,
    *,
    window_rows: int = WINDOW_ROWS,
    labelled: bool = True,
    finite: bool = True,
) -> Source:
    """The source of a file of final features: Parquet by its first bytes, else text.

    Args:
        window_rows: see `ParquetSource`; rows are shuffled within windows, so more mix better.
        labelled: whether a row without a label is an error; text always has labels.
        finite: whether a dense value that is NaN or infinite is an error.

    Raises:
        DataError: the file is not there or not readable.
    """
    try:
        with open(path, "rb") as file:
            is_parquet = file.read(4) == b"PAR1"
    except OSError as error:
        raise DataError(path, f"cannot be read: {error.strerror}") from error
    if is_parquet:
        return ParquetSource(path, blocks, window_rows, labelled=labelled, finite=finite)
    return TextSource(path, blocks, finite=finite)


@dataclass(frozen=True)
class Piece:
    """Rows `start` to `stop` of a window, in the window's order or that of `order`."""

    window: Rows
    order: NDArray[np.int64] | None
    start: int
    stop: int

    def rows(self, start: int, stop: int) -> Rows:
        if self.order is None:
            return self.window.slice(self.start + start, self.start + stop)
        return self.window.take(self.order[self.start + start : self.start + stop])

    def lines(self) -> NDArray[np.int64]:
        """Of the file, from 1, those that the rows are."""
        places = np.arange(self.start, self.stop)
        return self.window.line + (places if self.order is None else self.order[places])


class Batch:
    """One batch, whose rows are only brought together when a part of them is asked for."""

    def __init__(self, pieces: list[Piece]) -> None:
        self._pieces = pieces
        self.size = sum(piece.stop - piece.start for piece in pieces)

    def rows(self, start: int = 0, stop: int | None = None) -> Rows:
        """Rows `start` to `stop` of the batch."""
        stop = self.size if stop is None else stop
        parts: list[Rows] = []
        before = 0
        for piece in self._pieces:
            size = piece.stop - piece.start
            low, high = max(start - before, 0), min(stop - before, size)
            if low < high or (not parts and piece is self._pieces[-1]):
                parts.append(piece.rows(min(low, size), max(high, min(low, size))))
            before += size
        return Rows.concatenate(parts)

    def lines(self, start: int = 0, stop: int | None = None) -> NDArray[np.int64]:
        """Lines of the file, from 1, that rows `start` to `stop` of the batch are."""
        return np.concatenate([piece.lines() for piece in self._pieces])[start:stop]


class Dataset:
    """The rows of a source in batches; several threads may read one dataset at once.

    Args:
        cache: bytes of windows to keep in memory for later passes.
    """

    def __init__(self, source: Source, cache: int = 0) -> None:
        self.source = source
        self._room = cache
        self._chunks: dict[int, list[Rows]] = {}
        self._lock = threading.Lock()
        self._count = source.rows

    @property
    def schema(self) -> Schema:
        return self.source.schema

    @property
    def rows(self) -> int | None:
        """How many, if that is known without reading the file."""
        return self.source.rows

    def count(self) -> int:
        """How many rows, for which text is read once."""
        with self._lock:
            if self._count is None:
                self._count = self.source.count()
        return self._count

    @property
    def grain(self) -> int:
        """How many rows are read at once, about; a reader of part of them reads all."""
        sizes = self.source.chunk_rows
        return max(1, sizes[0]) if sizes else 1

    def reader(self, shuffle: tuple[int, int] | None = None) -> EpochReader:
        """A pass over the rows in ranges of positions; see `batches` for `shuffle`."""
        chunks = np.arange(self.source.chunks)
        if shuffle is not None:
            chunks = np.random.default_rng(shuffle).permutation(chunks)
        read = partial(self._windows, shuffle)
        return EpochReader(chunks.tolist(), self.source.chunk_rows, read)

    def batches(
        self,
        size: int,
        *,
        shuffle: tuple[int, int] | None = None,
        within: tuple[int, int] | None = None,
        reader: EpochReader | None = None,
    ) -> Iterator[Batch]:
        """All rows in batches of `size`, the last one smaller if it must.

        Args:
            shuffle: (seed, epoch): chunks come in an order drawn from these, and so do the rows
                within each window; None is the order of the file.
            within: only rows at these positions of that order, from one to another.
            reader: of an earlier call with the same `shuffle`, which then goes on.
        """
        reader = reader or self.reader(shuffle)
        start, stop = within or (0, sys.maxsize)
        pieces: list[Piece] = []
        missing = size
        for window, order, begin, end in reader.parts(start, stop):
            while begin < end:
                upto = min(end, begin + missing)
                pieces.append(Piece(window, order, begin, upto))
                missing -= upto - begin
                begin = upto
                if not missing:
                    yield Batch(pieces)
                    pieces, missing = [], size
        if pieces:
            yield Batch(pieces)

    def _windows(
        self, shuffle: tuple[int, int] | None, chunk: int
    ) -> Iterator[tuple[Rows, NDArray[np.int64] | None]]:
        for number, window in enumerate(self._chunk(chunk)):
            order = None
            if shuffle is not None:
                order = np.random.default_rng((*shuffle, chunk, number)).permutation(len(window))
            yield window, order

    def _chunk(self, chunk: int) -> Iterator[Rows]:
        """The windows of one chunk, remembered if there is room."""
        if not self._room and chunk not in self._chunks:
            yield from self.source.read(chunk)
            return
        with self._lock:
            kept = self._chunks.get(chunk)
            if kept is None:
                kept, rest = self._read_and_keep(chunk)
            else:
                rest = None
        yield from kept
        if rest is not None:
            yield from rest

    def _read_and_keep(self, chunk: int) -> tuple[list[Rows], Iterator[Rows] | None]:
        """Windows of a chunk while they fit; the rest of them, if they did not, is not kept."""
        windows, room = [], self._room
        rest = self.source.read(chunk)
        for window in rest:
            windows.append(window)
            room -= window.nbytes
            if room < 0:
                self._room = 0
                return windows, rest
        self._room = room
        self._chunks[chunk] = windows
        return windows, None
