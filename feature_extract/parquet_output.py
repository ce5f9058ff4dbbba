"""Samples as a Parquet file for training.

Columns `id` (string), `label` (float32), then one a feature: float32 if dense, uint64 if sparse,
list<uint64> if sparse and multi-valued. The schema's metadata carries the `FeatureSchema`.
"""

from __future__ import annotations

from pathlib import Path
from types import TracebackType

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from numpy.typing import NDArray

from feature_extract.conf import FeatureConf
from feature_extract.errors import SchemaError
from feature_extract.index import Index
from feature_extract.operators import Cells, Dense
from feature_extract.samples import Samples
from feature_extract.schema import METADATA_KEY, FeatureSchema
from feature_extract.text_output import known_numbers

ROW_GROUP = 65_536


class ParquetOutput:
    """Writes the samples of one file; use as a context manager.

    Args:
        path: the file to write; the caller sees to it that nobody reads it before it is complete.
        conf: the features.
        index: numbers of sparse values.
        compat: noted in the metadata.
    """

    def __init__(self, path: Path, conf: FeatureConf, index: Index, compat: bool) -> None:
        self._index = index
        description = conf.schema(index.kind, index.size, compat, index.identity).to_json()
        fields = [pa.field("id", pa.string()), pa.field("label", pa.float32())]
        for feature in conf.features:
            kind = pa.float32() if feature.kind == "dense" else pa.uint64()
            fields.append(pa.field(feature.column, pa.list_(kind) if feature.multi else kind))
        self._schema = pa.schema(fields, metadata={METADATA_KEY: description})
        self._writer = pq.ParquetWriter(path, self._schema, compression="zstd", compression_level=1)
        self._waiting: list[pa.RecordBatch] = []

    def write(self, samples: Samples) -> None:
        """Add the samples of a chunk."""
        columns: dict[str, pa.Array] = {
            "id": samples.id.texts.take(pa.array(samples.id.codes)),
            "label": _dense(samples.label),
        }
        for definition, dense in samples.dense.items():
            columns[definition.column] = _dense(dense)
        for definition, cells in samples.sparse.items():
            offsets, numbers = known_numbers(definition.prefix, cells, self._index)
            make = _lists if definition.multi else _singles
            columns[definition.column] = make(cells, offsets, numbers)
        arrays = [columns[name] for name in self._schema.names]
        self._waiting.append(pa.RecordBatch.from_arrays(arrays, schema=self._schema))
        if sum(batch.num_rows for batch in self._waiting) >= ROW_GROUP:
            self._flush(all_rows=False)

    def _flush(self, *, all_rows: bool) -> None:
        table = pa.Table.from_batches(self._waiting, self._schema)
        whole = table.num_rows if all_rows else table.num_rows // ROW_GROUP * ROW_GROUP
        self._writer.write_table(table.slice(0, whole), row_group_size=ROW_GROUP)
        self._waiting = table.slice(whole).to_batches()

    def __enter__(self) -> ParquetOutput:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        if kind is None and self._waiting:
            self._flush(all_rows=True)
        self._writer.close()


def read_schema(path: Path) -> FeatureSchema:
    """The description in an extracted Parquet file.

    Raises:
        SchemaError: the file is no Parquet file of ours.
    """
    try:
        metadata = pq.read_schema(path).metadata or {}
    except (pa.ArrowException, OSError) as error:
        raise SchemaError(f"{path}: cannot be read as Parquet: {error}") from None
    text = metadata.get(METADATA_KEY.encode())
    if text is None:
        raise SchemaError(f"{path}: not made by 'pslite-features extract --format parquet'")
    return FeatureSchema.from_json(text)


def _dense(column: Dense) -> pa.Array:
    return pa.array(column.values[column.codes])


def _singles(cells: Cells, offsets: NDArray[np.int32], numbers: NDArray[np.uint64]) -> pa.Array:
    """One number a row, 0 where the cell's value is unknown."""
    known = np.diff(offsets) > 0
    by_cell = np.zeros(len(known), dtype=np.uint64)
    by_cell[known] = numbers
    return pa.array(by_cell[cells.rows])


def _lists(cells: Cells, offsets: NDArray[np.int32], numbers: NDArray[np.uint64]) -> pa.Array:
    by_cell = pa.ListArray.from_arrays(pa.array(offsets), pa.array(numbers))
    return by_cell.take(pa.array(cells.rows))
