"""Final features in Parquet, read in windows of bounded size.

Columns are `label` and one a feature, named `KIND/NAME` (`dense_user/001_age`); the schema's
metadata `pslite.features` says so in JSON, without it the names do.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from apps.ctr.batch import Blocks, Rows
from apps.ctr.columns import block_of, check_labels
from apps.ctr.errors import DataError
from apps.ctr.schema import Schema, schema_of

WINDOW_ROWS = 8_192
FEATURES_METADATA = b"pslite.features"


class ParquetSource:
    """A Parquet file of final features.

    A *chunk* is a run of whole row groups of at least `window_rows` rows together; chunks can be
    read in any order, each in windows of at most `window_rows` rows.

    Args:
        blocks: which groups to read, and how to lay them out.
        window_rows: the most rows in memory at a time.
        labelled: whether each row must have a label; else those missing read NaN.
        finite: whether dense values must be.
    """

    def __init__(
        self,
        path: str | Path,
        blocks: Blocks,
        window_rows: int = WINDOW_ROWS,
        *,
        labelled: bool = True,
        finite: bool = True,
    ) -> None:
        self.path, self._blocks, self._window_rows = str(path), blocks, window_rows
        self._labelled, self._finite = labelled, finite
        try:
            with pq.ParquetFile(self.path) as file:
                self.schema = _schema_of_file(file.schema_arrow, self.path)
                groups = [file.metadata.row_group(i).num_rows for i in range(file.num_row_groups)]
        except (OSError, pa.ArrowException) as error:
            raise DataError(self.path, f"is no readable Parquet file: {error}") from error
        self.rows: int | None = sum(groups)
        self._chunks = _runs(groups, window_rows)
        self.chunk_rows = [sum(groups[group] for group in run) for run in self._chunks]

    @property
    def chunks(self) -> int:
        return len(self._chunks)

    def count(self) -> int:
        """Rows of the file."""
        return sum(self.chunk_rows)

    def read(self, chunk: int) -> Iterator[Rows]:
        """The windows of one chunk, in the order of the file."""
        names = ["label"]
        for groups in self._blocks.values():
            names += self.schema.dense_names(groups) + self.schema.sparse_names(groups)
        with pq.ParquetFile(self.path) as file:
            batches = file.iter_batches(
                batch_size=self._window_rows,
                row_groups=self._chunks[chunk],
                columns=names,
                use_threads=False,
            )
            line = 1 + sum(self.chunk_rows[:chunk])  # a row is a line of its own
            while (batch := self._next(batches)) is not None:
                yield self._rows(batch, line)
                line += batch.num_rows

    def _next(self, batches: Iterator[Any]) -> Any:
        try:
            return next(batches, None)
        except (OSError, pa.ArrowException) as error:
            raise DataError(self.path, f"is damaged: {error}") from error

    def _rows(self, batch: Any, line: int) -> Rows:
        blocks = {}
        how: dict[str, Any] = {"line": line, "finite": self._finite}
        for name, groups in self._blocks.items():
            dense = [(n, batch.column(n)) for n in self.schema.dense_names(groups)]
            sparse = [(n, batch.column(n)) for n in self.schema.sparse_names(groups)]
            blocks[name] = block_of(self.path, batch.num_rows, dense, sparse, **how)
        labels = batch.column("label").to_numpy(zero_copy_only=False).astype(np.float32, copy=False)
        if self._labelled:
            check_labels(labels, self.path, line)
        return Rows(labels, blocks, line)


def _runs(groups: list[int], least: int) -> list[list[int]]:
    """Row groups put together until each run has at least `least` rows, the last maybe fewer."""
    runs: list[list[int]] = []
    size = least
    for group, rows in enumerate(groups):
        if size >= least:
            runs.append([])
            size = 0
        runs[-1].append(group)
        size += rows
    return runs


def _schema_of_file(schema: Any, path: str) -> Schema:
    if "label" not in schema.names:
        raise DataError(path, "has no column label; is it a final_*.parquet of pslite-features?")
    metadata = (schema.metadata or {}).get(FEATURES_METADATA)
    index = None
    if metadata is None:
        pairs = [(name.partition("/")[0], name) for name in schema.names if "/" in name]
    else:
        described = json.loads(metadata)
        pairs = [(f"{f['kind']}_{f['group']}", f["column"]) for f in described["features"]]
        index = described.get("identity")
    found = schema_of(pairs, index)
    if not any(found.widths().values()):
        raise DataError(path, "has no feature columns such as sparse_user/001_age")
    missing = sorted({name for _, name in pairs} - set(schema.names))
    if missing:
        raise DataError(path, f"its metadata names the column {missing[0]}, which it has not")
    return found
