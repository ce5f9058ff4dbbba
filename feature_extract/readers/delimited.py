"""Lines with a delimiter between the columns, with or without a header; no quoting.

A line ends with `\\n` (a `\\r` before it is dropped); nothing else is special, so that any text
without the delimiter is a value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feature_extract.chunk import Chunk, Limits
from feature_extract.conf import FeatureConf
from feature_extract.errors import SampleFileError, nearest
from feature_extract.kernels import gather_bytes, split_lines
from feature_extract.readers.bad_lines import BadLines
from feature_extract.readers.blocks import blocks

Bytes = NDArray[np.uint8]
Positions = NDArray[np.int32]


class Lines(NamedTuple):
    """The lines of a block, cut.

    Args:
        starts, ends: int32 (samples, columns), byte positions of the wanted columns.
        numbers: int32 (samples,), which line of the block each sample is, from 0.
        bad: int32 (malformed, 2), number and columns of the other lines.
        total: lines of the block, remarks and empty ones included.
    """

    starts: Positions
    ends: Positions
    numbers: Positions
    bad: Positions
    total: int

    def without_header(self) -> Lines:
        """All but line 0."""
        kept = self.numbers > 0
        bad = self.bad[self.bad[:, 0] > 0]
        return Lines(self.starts[kept], self.ends[kept], self.numbers[kept], bad, self.total)


class DelimitedSamples:
    """A TSV or CSV file as chunks of the columns that `conf` uses."""

    def __init__(
        self, path: Path, conf: FeatureConf, limits: Limits, optional: Collection[str]
    ) -> None:
        self.path, self.spec, self.limits = path, conf.input, limits
        self.wanted = conf.source_fields
        self.nbytes = path.stat().st_size
        self._columns = self._header(optional) if conf.input.header else list(conf.fields)

    def chunks(self, bad: BadLines) -> Iterator[Chunk]:
        """The samples in order; see `SampleFile`."""
        expected, before = len(self._columns), 0
        for block, nbytes in blocks(self.path, self.limits.nbytes):
            text = np.frombuffer(block, dtype=np.uint8)
            lines = self._cut(text)
            if self.spec.header and before == 0:
                lines = lines.without_header()
            for number, columns in lines.bad.tolist():
                bad.add(before + number + 1, f"{columns} columns where {expected} are expected")
            yield from self._pieces(text, lines, before + 1, nbytes)
            before += lines.total

    def _header(self, optional: Collection[str]) -> list[str]:
        text, _ = next(blocks(self.path, 1 << 20), (b"\n", 0))
        line = text.split(b"\n", 1)[0].decode("utf-8", "replace").rstrip("\r")
        names = [name.strip() for name in line.split(self.spec.delimiter)]
        for name in self.wanted:
            if name not in names and name not in optional:
                raise SampleFileError(
                    str(self.path),
                    f"its first line names no column {name!r}{nearest(name, names)}; the ini says "
                    f"that a header stands there",
                )
        return names

    def _slots(self) -> Positions:
        """Where each column of the file goes among the wanted ones; -1 is nowhere."""
        slots = np.full(len(self._columns), -1, dtype=np.int32)
        for slot, name in enumerate(self.wanted):
            if name in self._columns:
                slots[self._columns.index(name)] = slot
        return slots

    def _cut(self, text: Bytes) -> Lines:
        spec, rows = self.spec, int(np.count_nonzero(text == ord("\n")))
        starts, ends = np.zeros((2, rows, len(self.wanted)), dtype=np.int32)
        numbers, bad = np.empty(rows, dtype=np.int32), np.empty((rows, 2), dtype=np.int32)
        delimiter, comment = ord(spec.delimiter), ord(spec.comment) if spec.comment else -1
        total, samples, malformed = split_lines(
            text, delimiter, comment, spec.blank_lines, spec.strip, self._slots(),
            starts, ends, numbers, bad,
        )  # fmt: skip
        return Lines(starts[:samples], ends[:samples], numbers[:samples], bad[:malformed], total)

    def _pieces(self, text: Bytes, lines: Lines, first_line: int, nbytes: int) -> Iterator[Chunk]:
        for low in range(0, len(lines.numbers), self.limits.rows):
            rows = slice(low, low + self.limits.rows)
            columns = {
                name: _texts(text, lines.starts[rows, slot], lines.ends[rows, slot])
                for slot, name in enumerate(self.wanted)
            }
            numbers = lines.numbers[rows].astype(np.int64) + first_line
            yield Chunk(str(self.path), columns, numbers, nbytes if low == 0 else 0)


def _texts(text: Bytes, starts: Positions, ends: Positions) -> pa.StringArray:
    """The slices of `text` as an Arrow array (not yet known to be UTF-8)."""
    starts, ends = np.ascontiguousarray(starts), np.ascontiguousarray(ends)
    offsets = np.zeros(len(starts) + 1, dtype=np.int32)
    np.cumsum(ends - starts, out=offsets[1:])
    data = np.empty(int(offsets[-1]), dtype=np.uint8)
    gather_bytes(text, starts, ends, offsets, data)
    return pa.StringArray.from_buffers(len(starts), pa.py_buffer(offsets), pa.py_buffer(data))
