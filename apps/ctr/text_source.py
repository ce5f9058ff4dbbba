"""Final features as text: `id ⇥ label ⇥ dense (3 groups) ⇥ sparse (3 groups)`.

Arrow splits and converts whole blocks of lines at once. Text has no index, so the file is one
chunk; a name ending in `.gz`, `.bz2` or `.zst` is decompressed on the way.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from apps.ctr.batch import GROUPS, Blocks, Rows
from apps.ctr.columns import block_of, check_labels
from apps.ctr.errors import DataError
from apps.ctr.schema import Schema, schema_of
from feature_extract.errors import SchemaError
from feature_extract.schema import FILE_NAME, FeatureSchema

KINDS = tuple(f"{kind}_{group}" for kind in ("dense", "sparse") for group in GROUPS)
COLUMNS = ("id", "label", *KINDS)
BLOCK_BYTES = 16 << 20


class TextSource:
    """A text file of final features, read in windows of about `block_bytes`.

    Args:
        finite: whether dense values must be.
    """

    chunks = 1
    rows: int | None = None
    chunk_rows: list[int] | None = None

    def __init__(
        self,
        path: str | Path,
        blocks: Blocks,
        block_bytes: int = BLOCK_BYTES,
        *,
        finite: bool = True,
    ) -> None:
        self.path, self._blocks, self._block_bytes = str(path), blocks, block_bytes
        self._finite = finite
        first = next(self._lines(), None)
        self._widths = {} if first is None else _widths(self._split(first[1], first[0]))
        self.schema: Schema = schema_of(
            [(kind, f"{kind}/{i + 1:03d}") for kind, n in self._widths.items() for i in range(n)],
            _index_beside(Path(path)),
        )
        if first is not None and not any(self._widths.values()):
            raise DataError(self.path, "has no features in its first lines", line=1)

    def count(self) -> int:
        """Lines of the file, all of which are read for it, but not taken apart."""
        return sum(len(lines) for _, lines in self._lines())

    def read(self, chunk: int) -> Iterator[Rows]:
        """The windows of the file, in order."""
        for line, lines in self._lines():
            yield self._rows(self._split(lines, line), line)

    def _lines(self) -> Iterator[tuple[int, Any]]:
        """Number of the first line, and an Arrow array of whole lines, for each block of bytes."""
        line, rest = 1, b""
        try:
            with pa.input_stream(self.path, compression="detect") as stream:
                while data := stream.read(self._block_bytes):
                    cut = data.rfind(b"\n")
                    if cut < 0:
                        rest += data
                        continue
                    lines = _text_lines(rest + data[:cut])
                    rest = data[cut + 1 :]
                    yield line, lines
                    line += len(lines)
                if rest:
                    yield line, _text_lines(rest)
        except OSError as error:
            raise DataError(self.path, f"cannot be read: {error}") from error
        except pa.ArrowInvalid as error:
            raise DataError(self.path, f"is no UTF-8 text: {error}", line=line) from error

    def _split(self, lines: Any, line: int) -> dict[str, Any]:
        """Name of a column -> its text, of one block of lines."""
        fields = pc.split_pattern(lines, "\t")
        counts = np.diff(fields.offsets.to_numpy())
        if (counts != len(COLUMNS)).any():
            bad = int(np.flatnonzero(counts != len(COLUMNS))[0])
            problem = f"has {counts[bad]} columns, not {len(COLUMNS)}: {', '.join(COLUMNS)}"
            raise DataError(self.path, problem, line=line + bad)
        return {name: pc.list_element(fields, i) for i, name in enumerate(COLUMNS)}

    def _rows(self, text: dict[str, Any], line: int) -> Rows:
        labels = self._numbers(text["label"], pa.float32(), "label", line).to_numpy()
        check_labels(labels, self.path, line)
        blocks = {}
        how: dict[str, Any] = {"line": line, "finite": self._finite}
        for name, groups in self._blocks.items():
            dense, sparse = [], []
            for group in (g for g in GROUPS if g in groups):
                dense += self._dense(f"dense_{group}", text, line)
                sparse += self._sparse(f"sparse_{group}", text, line)
            blocks[name] = block_of(self.path, len(labels), dense, sparse, **how)
        return Rows(labels, blocks, line)

    def _cells(self, kind: str, text: dict[str, Any], line: int) -> Any:
        """The cells of one column, row by row, as many in each row as the first rows had."""
        width = self._widths[kind]
        cells = pc.split_pattern(text[kind], ",")
        counts = np.diff(cells.offsets.to_numpy())
        if (counts != width).any():
            bad = int(np.flatnonzero(counts != width)[0])
            problem = f"column {kind} has {counts[bad]} features, the first lines have {width}"
            raise DataError(self.path, problem, line=line + bad)
        return cells.values

    def _dense(self, kind: str, text: dict[str, Any], line: int) -> list[tuple[str, Any]]:
        width = self._widths[kind]
        if not width:
            return []
        cells = self._cells(kind, text, line)
        cells = pc.if_else(pc.equal(cells, ""), "0", cells)
        values = self._numbers(cells, pa.float32(), kind, line, width)
        matrix = values.to_numpy(zero_copy_only=False).reshape(-1, width)
        return [(f"{kind}/{i + 1:03d}", pa.array(matrix[:, i])) for i in range(width)]

    def _sparse(self, kind: str, text: dict[str, Any], line: int) -> list[tuple[str, Any]]:
        width = self._widths[kind]
        if not width:
            return []
        cells = self._cells(kind, text, line)
        found = []
        for i in range(width):
            bags = pc.split_pattern(cells.take(np.arange(i, len(cells), width)), "|")
            values = self._numbers(bags.values, pa.uint64(), kind, line, None)
            found.append((f"{kind}/{i + 1:03d}", pa.ListArray.from_arrays(bags.offsets, values)))
        return found

    def _numbers(self, text: Any, kind: Any, column: str, line: int, width: int | None = 1) -> Any:
        """`text` as numbers; `width` cells are one line, None: that is not known."""
        try:
            return pc.cast(text, kind)
        except pa.ArrowInvalid as error:
            for position, value in enumerate(text.to_pylist()):
                if not _reads_as(value, kind):
                    place = None if width is None else line + position // width
                    problem = f"{column}: {value!r} is no {kind}"
                    raise DataError(self.path, problem, line=place) from error
            raise DataError(self.path, f"{column}: {error}") from error


def _index_beside(path: Path) -> str | None:
    """Identity of the index in the description that an extraction left in the same folder."""
    description = path.parent / FILE_NAME
    try:
        return FeatureSchema.from_json(description.read_bytes()).identity
    except FileNotFoundError:
        return None
    except (OSError, SchemaError) as error:
        raise DataError(description, f"cannot be read: {error}") from error


def _text_lines(data: bytes) -> Any:
    """Arrow array of the lines of `data`, which ends in the middle of a line or at its end."""
    lines = pc.split_pattern(pa.array([data.rstrip(b"\r")]).cast(pa.string()), "\n").values
    return pc.utf8_rtrim(lines, "\r")


def _widths(text: dict[str, Any]) -> dict[str, int]:
    """Features in each column: as many as its first text has, none where all are empty."""
    widths = {}
    for kind in KINDS:
        filled = text[kind].filter(pc.not_equal(text[kind], ""))
        widths[kind] = filled[0].as_py().count(",") + 1 if len(filled) else 0
    return widths


def _reads_as(value: str, kind: Any) -> bool:
    try:
        pa.scalar(value).cast(kind)
    except pa.ArrowInvalid:
        return False
    return True
