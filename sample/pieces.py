"""Bring the samples of all slices back into the order of the raw file, and write them.

Each slice leaves one Arrow file with one batch per range of lines. The output is made range by
range: the batches of that range, of all slices, in the order of their lines.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc as ipc
import pyarrow.parquet as pq

from sample.schema import SCHEMA

FIRST_TEST_DAY = 17299  # 2017-05-13 in days since 1970-01-01
RANGE = 16384  # lines of raw_sample.csv that are put in order at a time


class Pieces:
    """Samples aside on disk.

    Args:
        folder: empty folder for them.
        lines: number of the last line of raw_sample.csv.
    """

    def __init__(self, folder: Path, lines: int) -> None:
        self.folder, self.ranges = folder, lines // RANGE + 1
        self.files: list[Path] = []

    def add(self, samples: pa.Table) -> None:
        """Keep the samples of one slice, which rise by `line`."""
        path = self.folder / f"{len(self.files)}.arrow"
        cuts = np.searchsorted(samples["line"].to_numpy(), np.arange(self.ranges + 1) * RANGE)
        options = ipc.IpcWriteOptions(compression="lz4")
        with ipc.new_file(path, samples.schema, options=options) as writer:
            for low, high in itertools.pairwise(cuts):
                part = samples.slice(low, high - low).combine_chunks()
                batches = part.to_batches()
                writer.write_batch(batches[0] if batches else _no_rows(samples.schema))
        self.files.append(path)

    def in_order(self) -> Iterator[pa.Table]:
        """The samples, range by range, by rising line."""
        readers = [ipc.open_file(pa.memory_map(str(path))) for path in self.files]
        for number in range(self.ranges):
            table = pa.Table.from_batches([reader.get_batch(number) for reader in readers])
            yield table.take(pc.sort_indices(table["line"]))


def _no_rows(schema: pa.Schema) -> pa.RecordBatch:
    return pa.RecordBatch.from_arrays([pa.array([], kind.type) for kind in schema], schema=schema)


class Writer:
    """Writes samples of one set to a file, as text lines or Parquet.

    Args:
        path: new file.
        form: tsv or parquet.
    """

    def __init__(self, path: Path, form: str) -> None:
        self.path, self.form, self.rows = path, form, 0
        self._stream = path.open("wb")
        schema = pa.schema([(name, pa.string()) for name in SCHEMA])
        self._parquet = (
            pq.ParquetWriter(self._stream, schema, compression="zstd")
            if form == "parquet"
            else None
        )

    def write(self, samples: pa.Table) -> None:
        """Add samples; columns beside SCHEMA are left out."""
        self.rows += len(samples)
        samples = samples.select(SCHEMA)
        if self._parquet is not None:
            if len(samples):
                self._parquet.write_table(samples.cast(self._parquet.schema))
            return
        for batch in samples.combine_chunks().to_batches():
            lines: Any = pc.binary_join_element_wise(*batch.columns, _TAB)
            ended = pc.binary_join_element_wise(lines, _EMPTY, _NEWLINE)
            self._stream.write(_bytes(ended))

    def close(self) -> None:
        """Finish the file and see it on the disk."""
        if self._parquet is not None:
            self._parquet.close()
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self._stream.close()


_TAB, _NEWLINE, _EMPTY = (pa.scalar(text, pa.large_string()) for text in ("\t", "\n", ""))


def _bytes(texts: pa.Array) -> pa.Buffer:
    """The bytes of all texts, one after the other."""
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int64)
    low, high = int(ends[texts.offset]), int(ends[texts.offset + len(texts)])
    return data.slice(low, high - low) if data is not None else pa.py_buffer(b"")
