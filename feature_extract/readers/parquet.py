"""Parquet sample files: one column a field, found by name."""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from feature_extract.chunk import Chunk, Limits
from feature_extract.conf import FeatureConf
from feature_extract.errors import SampleFileError, nearest
from feature_extract.readers.bad_lines import BadLines


class ParquetSamples:
    """A Parquet file as chunks of the columns that `conf` uses.

    Columns are best text; numbers are read as Arrow prints them, lists as their values joined by
    the list delimiter, null as the empty text. "Lines" are row numbers from 1.
    """

    def __init__(
        self, path: Path, conf: FeatureConf, limits: Limits, optional: Collection[str]
    ) -> None:
        self.path, self.limits = path, limits
        self.joint = conf.input.list_delimiter
        self.wanted = conf.source_fields
        self.nbytes = path.stat().st_size
        try:
            with pq.ParquetFile(path) as file:
                self.rows, present = file.metadata.num_rows, file.schema_arrow.names
        except (pa.ArrowException, OSError) as error:
            raise SampleFileError(str(path), f"cannot be read as Parquet: {error}") from None
        self.missing = [name for name in self.wanted if name not in present]
        for name in self.missing:
            if name not in optional:
                raise SampleFileError(
                    str(path), f"it has no column {name!r}{nearest(name, present)}"
                )

    def chunks(self, bad: BadLines) -> Iterator[Chunk]:
        """The samples in order; see `SampleFile`."""
        before = 0
        for batch in self._batches():
            rows = batch.num_rows
            columns = {name: self._texts(batch.column(name), name) for name in batch.schema.names}
            columns |= {name: pa.array([""] * rows, pa.string()) for name in self.missing}
            lines = np.arange(before + 1, before + rows + 1, dtype=np.int64)
            yield Chunk(str(self.path), columns, lines, self.nbytes * rows // max(self.rows, 1))
            before += rows

    def _batches(self) -> Iterator[pa.RecordBatch]:
        present = [name for name in self.wanted if name not in self.missing]
        try:
            with pq.ParquetFile(self.path) as file:
                yield from file.iter_batches(batch_size=self.limits.rows, columns=present)
        except (pa.ArrowException, OSError) as error:
            raise SampleFileError(str(self.path), f"cannot be read as Parquet: {error}") from None

    def _texts(self, column: pa.Array, name: str) -> pa.StringArray:
        kind = column.type
        try:
            if pa.types.is_list(kind) or pa.types.is_large_list(kind):
                texts = pc.cast(column, pa.list_(pa.string()))
                column = pc.binary_join(texts, self.joint)
            elif pa.types.is_dictionary(kind):
                column = column.dictionary_decode()
            return pc.fill_null(pc.cast(column, pa.string()), "")
        except pa.ArrowException as error:
            raise SampleFileError(
                str(self.path), f"column {name!r} of type {kind} is not text: {error}"
            ) from None
