"""Read a raw file as batches of columns, and keep count of its malformed lines.

The file is text without quoting: a line ends in a line feed, white space around it is dropped,
blank lines are passed over, commas separate fields, the first line names the columns, which may
stand in any order. Nothing is guessed, and every malformed line is known by its number; a control
character is damage wherever it stands, or a damaged user 26 would be read as user 6.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from sample.errors import BadLine, BadLinesError, RawFileError
from sample.kernels.lines import (
    CONTROL,
    NOT_A_NUMBER,
    NOT_ASCII,
    WRONG_COUNT,
    copy_pieces,
    parse_integers,
    split_lines,
)
from sample.schema import ACTIONS, AD, IMPRESSION, PROFILE

BLOCK_BYTES = 8 << 20
LONGEST_LINE = 1 << 20
EXAMPLES = 5  # malformed lines shown

TIME, ALLOWED = "time_stamp", {"clk": ("0", "1"), "btag": ACTIONS}
NOT_ALLOWED, NEGATIVE = 16, 32  # beside the faults that the kernels find


@dataclass(frozen=True)
class RawFile:
    """One of the four files: its name and the columns that are read from it."""

    name: str
    columns: tuple[str, ...]

    @property
    def schema(self) -> pa.Schema:
        """Columns of its batches: `line`, then text columns, then `ts` where there is a time."""
        fields = [("line", pa.int64()), *((name, pa.large_string()) for name in self.columns)]
        if TIME in self.columns:
            fields.append(("ts", pa.int64()))
        return pa.schema(fields)


RAW_SAMPLE = RawFile("raw_sample.csv", IMPRESSION)
AD_FEATURE = RawFile("ad_feature.csv", ("adgroup_id", *AD))
USER_PROFILE = RawFile("user_profile.csv", ("userid", *PROFILE))
BEHAVIOR_LOG = RawFile("behavior_log.csv", ("user", TIME, "btag", "cate", "brand"))


@dataclass
class BadLines:
    """Malformed lines met so far; over `allowed` of them the reading ends."""

    allowed: int = 0
    counts: dict[str, int] = field(default_factory=dict)
    examples: list[BadLine] = field(default_factory=list)

    @property
    def total(self) -> int:
        return sum(self.counts.values())

    def add(self, path: Path, lines: list[BadLine], count: int) -> None:
        """Note `count` malformed lines of `path`, of which `lines` are the first."""
        self.counts[path.name] = self.counts.get(path.name, 0) + count
        self.examples += lines[: EXAMPLES - len(self.examples)]
        if self.total > self.allowed:
            raise BadLinesError(self.total, self.allowed, self.examples)


def read_header(path: Path, raw: RawFile) -> list[str]:
    """The column names in the first line.

    Raises:
        RawFileError: the file is missing, empty, or lacks a column that is needed.
    """
    try:
        with path.open("rb") as stream:
            first = stream.readline(1 << 20)
    except FileNotFoundError:
        raise RawFileError(path, "no such file; the raw folder needs all four csv files") from None
    except OSError as error:
        raise RawFileError(path, f"cannot be read: {error.strerror}") from error
    if not first.strip():
        raise RawFileError(path, "line 1 is empty; it must hold the column names")
    names = [name.strip() for name in first.decode("utf-8-sig", "replace").strip().split(",")]
    for name in raw.columns:
        if names.count(name) != 1:
            what = "no" if name not in names else "more than one"
            raise RawFileError(path, f"line 1 has {what} column {name}; it reads {','.join(names)}")
    return names


def read_batches(
    path: Path,
    raw: RawFile,
    bad: BadLines,
    progress: Callable[[int], Any] = lambda nbytes: None,
) -> Iterator[pa.RecordBatch]:
    """The lines of a raw file that are well formed, in order, as batches of `raw.schema`.

    Args:
        progress: called with the bytes of each block.
    Raises:
        RawFileError: as `read_header`.
        BadLinesError: more malformed lines than `bad` allows.
    """
    names = read_header(path, raw)
    at = {name: names.index(name) for name in raw.columns}
    with path.open("rb") as stream:
        progress(len(stream.readline()))
        line = 2
        while data := stream.read(BLOCK_BYTES):
            data += stream.readline(LONGEST_LINE)
            if len(data) >= BLOCK_BYTES + LONGEST_LINE:
                raise RawFileError(path, f"a line from {line} on is over {LONGEST_LINE} bytes long")
            block = _Block(data, len(names), line)
            yield block.columns(raw, at)
            if block.faults.any():
                bad.add(path, *block.bad_lines(path, raw))
            line += block.seen
            progress(len(data))


class _Block:
    """Whole lines of a file: the bounds of their fields, and what is wrong with them.

    Args:
        data: the lines.
        n_fields: fields a line must have.
        line: number of the first line.
    """

    def __init__(self, data: bytes, n_fields: int, line: int) -> None:
        self.data, self.n_fields = data, n_fields
        self.bytes = np.frombuffer(data, np.uint8)
        size = data.count(b"\n") + 1
        bounds = np.empty((2, size, n_fields + 1), np.int32)
        lines, faults = np.empty(size, np.int64), np.empty(size, np.uint8)
        rows, self.seen = split_lines(
            self.bytes, n_fields, bounds[0], bounds[1], lines, faults, line
        )
        self.starts, self.ends = bounds[0, :rows], bounds[1, :rows]
        self.lines, self.faults = lines[:rows], faults[:rows]
        for row in np.flatnonzero(self.faults & NOT_ASCII).tolist():
            if _is_utf8(self._line(row)):
                self.faults[row] &= ~np.uint8(NOT_ASCII)

    def columns(self, raw: RawFile, at: dict[str, int]) -> pa.RecordBatch:
        """The lines without fault; notes the faults that values have."""
        times = np.empty(len(self.faults), np.int64)
        if TIME in raw.columns:
            starts, ends = self.starts[:, at[TIME]], self.ends[:, at[TIME]]
            parse_integers(self.bytes, starts, ends, times, self.faults)
            self.faults[(self.faults == 0) & (times < 0)] |= NEGATIVE
        for name in ALLOWED.keys() & set(raw.columns):
            rows = self._fine()
            allowed = pa.array(ALLOWED[name], pa.large_string())
            known = pc.is_in(self._texts(rows, at[name]), allowed).to_numpy(zero_copy_only=False)
            self.faults[rows[~known]] |= NOT_ALLOWED
        rows = self._fine()
        columns = [pa.array(self.lines[rows])]
        columns += [self._texts(rows, at[name]) for name in raw.columns]
        if TIME in raw.columns:
            columns.append(pa.array(times[rows]))
        return pa.RecordBatch.from_arrays(columns, schema=raw.schema)

    def bad_lines(self, path: Path, raw: RawFile) -> tuple[list[BadLine], int]:
        """The first lines with a fault, and how many there are."""
        rows = np.flatnonzero(self.faults).tolist()
        first = [
            BadLine(path, int(self.lines[row]), self._problem(row, raw), self._text(row))
            for row in rows[:EXAMPLES]
        ]
        return first, len(rows)

    def _problem(self, row: int, raw: RawFile) -> str:
        fault = int(self.faults[row])
        if fault & WRONG_COUNT:
            return f"{self._line(row).count(b',') + 1} fields instead of {self.n_fields}"
        if fault & CONTROL:
            return "a control character inside the line"
        if fault & NOT_ASCII:
            return "not UTF-8"
        if fault & NOT_A_NUMBER:
            return f"{TIME} is not a whole number of seconds"
        if fault & NEGATIVE:
            return f"{TIME} is negative"
        name = next(name for name in raw.columns if name in ALLOWED)
        return f"{name} is not one of {', '.join(ALLOWED[name])}"

    def _fine(self) -> NDArray[np.int64]:
        return np.flatnonzero(self.faults == 0)

    def _line(self, row: int) -> bytes:
        return self.data[self.starts[row, -1] : self.ends[row, -1]]

    def _text(self, row: int) -> str:
        return self._line(row).decode("utf-8", "replace")

    def _texts(self, rows: NDArray[np.int64], field: int) -> pa.Array:
        starts, ends = self.starts[rows, field], self.ends[rows, field]
        offsets = np.zeros(rows.size + 1, np.int64)
        np.cumsum(ends - starts, out=offsets[1:])
        out = np.empty(int(offsets[-1]), np.uint8)
        copy_pieces(self.bytes, starts, ends, offsets, out)
        return text_array(offsets, out)


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def text_array(offsets: NDArray[np.int64], data: NDArray[np.uint8]) -> pa.Array:
    """A large_string array over offsets, int64 (n + 1,), and UTF-8 bytes."""
    return pa.LargeStringArray.from_buffers(
        len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(data)
    )
