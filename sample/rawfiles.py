"""Read a raw file as batches of columns, and keep count of its malformed lines.

The file is text without quoting: a line ends in a line feed, white space around it is dropped,
blank lines are passed over, commas separate fields, the first line names the columns, which may
stand in any order. Nothing is guessed, and every malformed line is known by its number.
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

from sample import kernels
from sample.errors import BadLine, BadLinesError, RawFileError
from sample.schema import ACTIONS, AD, IMPRESSION, PROFILE

BLOCK_BYTES = 8 << 20
EXAMPLES = 5  # malformed lines shown

TIME, ALLOWED = "time_stamp", {"clk": ("0", "1"), "btag": ACTIONS}
_PROBLEMS = (
    (kernels.WRONG_COUNT, "wrong number of fields"),
    (kernels.CONTROL, "a control character inside the line"),
    (kernels.NOT_ASCII, "not UTF-8"),
    (kernels.NOT_A_NUMBER, f"{TIME} is not a whole number of seconds"),
)


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
    positions = [names.index(name) for name in raw.columns]
    with path.open("rb") as stream:
        progress(len(stream.readline()))
        line = 2
        while data := stream.read(BLOCK_BYTES):
            data += stream.readline()
            batch, seen = _parse(path, raw, data, len(names), positions, line, bad)
            line += seen
            yield batch
            progress(len(data))


def _parse(
    path: Path,
    raw: RawFile,
    data: bytes,
    n_fields: int,
    positions: list[int],
    first_line: int,
    bad: BadLines,
) -> tuple[pa.RecordBatch, int]:
    """One block as a batch, and how many lines it has."""
    block = np.frombuffer(data, np.uint8)
    size = data.count(b"\n") + 1
    starts = np.empty((size, n_fields + 1), np.int32)
    ends = np.empty((size, n_fields + 1), np.int32)
    lines, faults = np.empty(size, np.int64), np.empty(size, np.uint8)
    rows, seen = kernels.split_lines(block, n_fields, starts, ends, lines, faults, first_line)
    starts, ends, lines, faults = starts[:rows], ends[:rows], lines[:rows], faults[:rows]
    for row in np.flatnonzero(faults & kernels.NOT_ASCII).tolist():
        if _is_utf8(data[starts[row, -1] : ends[row, -1]]):
            faults[row] &= ~np.uint8(kernels.NOT_ASCII)
    keep = np.flatnonzero(faults == 0)

    times, columns = np.empty(0, np.int64), [lines]
    if TIME in raw.columns:
        at = positions[raw.columns.index(TIME)]
        times, wrong = np.empty(keep.size, np.int64), np.zeros(keep.size, np.uint8)
        kernels.parse_integers(block, starts[keep, at], ends[keep, at], times, wrong)
        faults[keep] = wrong
        times, keep = times[wrong == 0], keep[wrong == 0]
    texts = [_texts(block, starts[keep, at], ends[keep, at]) for at in positions]
    fine = np.ones(keep.size, np.bool_)
    problems = {}
    for name, text in zip(raw.columns, texts, strict=True):
        if name in ALLOWED:
            known = pc.is_in(text, pa.array(ALLOWED[name], pa.large_string())).to_numpy(False)
            for row in keep[~known].tolist():
                problems[row] = f"{name} is not one of {', '.join(ALLOWED[name])}"
            fine &= known
    columns = [pa.array(lines[keep]), *texts]
    if TIME in raw.columns:
        columns.append(pa.array(times))
    batch = pa.RecordBatch.from_arrays(columns, schema=raw.schema)
    if not fine.all():
        batch = batch.filter(pa.array(fine))

    wrong_rows = sorted({*np.flatnonzero(faults).tolist(), *problems})
    if wrong_rows:
        found = []
        for row in wrong_rows[:EXAMPLES]:
            text = data[starts[row, -1] : ends[row, -1]].decode("utf-8", "replace")
            problem = problems.get(row) or _problem(int(faults[row]), n_fields, text)
            found.append(BadLine(path, int(lines[row]), problem, text))
        bad.add(path, found, len(wrong_rows))
    return batch, seen


def _problem(fault: int, n_fields: int, text: str) -> str:
    problem = next(words for bit, words in _PROBLEMS if fault & bit)
    if fault & kernels.WRONG_COUNT:
        problem = f"{text.count(',') + 1} fields instead of {n_fields}"
    return problem


def _is_utf8(data: bytes) -> bool:
    try:
        data.decode("utf-8")
    except UnicodeDecodeError:
        return False
    return True


def _texts(
    block: NDArray[np.uint8], starts: NDArray[np.int32], ends: NDArray[np.int32]
) -> pa.Array:
    offsets = np.zeros(starts.size + 1, np.int64)
    np.cumsum(ends - starts, out=offsets[1:])
    out = np.empty(int(offsets[-1]), np.uint8)
    kernels.copy_pieces(block, starts, ends, offsets, out)
    return text_array(offsets, out)


def text_array(offsets: NDArray[np.int64], data: NDArray[np.uint8]) -> pa.Array:
    """A large_string array over offsets, int64 (n + 1,), and UTF-8 bytes."""
    return pa.LargeStringArray.from_buffers(
        len(offsets) - 1, pa.py_buffer(offsets), pa.py_buffer(data)
    )
