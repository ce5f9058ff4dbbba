"""Lines with a delimiter between the columns, with or without a header; no quoting.

A line ends with `\\n` (a `\\r` before it is dropped); nothing else is special, so that any text
without the delimiter is a value.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

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


class DelimitedSamples:
    """A TSV or CSV file as chunks of the columns that `conf` uses."""

    def __init__(
        self, path: Path, conf: FeatureConf, limits: Limits, optional: Collection[str]
    ) -> None:
        self.path, self.spec, self.limits = path, conf.input, limits
        self.wanted = [name for name in conf.fields if name in conf.source_fields]
        self.nbytes = path.stat().st_size
        self._columns = self._header(optional) if conf.input.header else list(conf.fields)

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

    def chunks(self, bad: BadLines) -> Iterator[Chunk]:
        """The samples in order; see `SampleFile`."""
        spec = self.spec
        slots = np.full(len(self._columns), -1, dtype=np.int32)
        for slot, name in enumerate(self.wanted):
            if name in self._columns:
                slots[self._columns.index(name)] = slot
        before = 0
        for block, nbytes in blocks(self.path, self.limits.nbytes):
            text = np.frombuffer(block, dtype=np.uint8)
            rows = int(np.count_nonzero(text == ord("\n")))
            starts = np.zeros((rows, len(self.wanted)), dtype=np.int32)
            ends = np.zeros((rows, len(self.wanted)), dtype=np.int32)
            lines = np.empty(rows, dtype=np.int32)
            wrong = np.empty((rows, 2), dtype=np.int32)
            _, samples, malformed = split_lines(
                text,
                ord(spec.delimiter),
                ord(spec.comment) if spec.comment else -1,
                spec.blank_lines,
                spec.strip,
                slots,
                starts,
                ends,
                lines,
                wrong,
            )
            first = 0
            if spec.header and before == 0:
                first, malformed, wrong = _without_header(lines[:samples], wrong[:malformed])
            for line, columns in wrong[:malformed].tolist():
                bad.add(before + line + 1, self._problem(columns))
            numbers = lines.astype(np.int64) + (before + 1)
            yield from self._pieces(text, starts, ends, numbers, first, samples, nbytes)
            before += rows

    def _problem(self, columns: int) -> str:
        return f"{columns} columns where {len(self._columns)} are expected"

    def _pieces(
        self,
        text: Bytes,
        starts: Positions,
        ends: Positions,
        lines: NDArray[np.int64],
        first: int,
        samples: int,
        nbytes: int,
    ) -> Iterator[Chunk]:
        for low in range(first, samples, self.limits.rows):
            high = min(low + self.limits.rows, samples)
            columns = {
                name: _texts(text, starts[low:high, slot], ends[low:high, slot])
                for slot, name in enumerate(self.wanted)
            }
            share = nbytes if low == first else 0
            yield Chunk(str(self.path), columns, lines[low:high], share)


def _without_header(lines: Positions, wrong: Positions) -> tuple[int, int, Positions]:
    """The first sample after line 0, and the malformed lines without line 0."""
    first = int(len(lines) > 0 and lines[0] == 0)
    kept = wrong[wrong[:, 0] > 0]
    return first, len(kept), kept


def _texts(text: Bytes, starts: Positions, ends: Positions) -> pa.StringArray:
    """The slices of `text` as an Arrow array (not yet known to be UTF-8)."""
    starts, ends = np.ascontiguousarray(starts), np.ascontiguousarray(ends)
    offsets = np.zeros(len(starts) + 1, dtype=np.int32)
    np.cumsum(ends - starts, out=offsets[1:])
    data = np.empty(int(offsets[-1]), dtype=np.uint8)
    gather_bytes(text, starts, ends, offsets, data)
    return pa.StringArray.from_buffers(len(starts), pa.py_buffer(offsets), pa.py_buffer(data))
