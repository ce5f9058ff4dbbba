"""Bring the samples of all slices back into the order of the raw file, and write them.

Each slice leaves its samples in one work file, cut by ranges of lines. The output is made range by
range: what all slices have of that range, in the order of its lines. Samples that are to be lines
of text wait there as such, so that one column is put in order and not seventy-seven.
"""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any, BinaryIO, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.ipc as ipc
import pyarrow.parquet as pq

from sample.errors import writing
from sample.schema import SCHEMA

FIRST_TEST_DAY = 17299  # 2017-05-13 in days since 1970-01-01
RANGE = 32768  # lines of raw_sample.csv that are put in order at a time
_TAB, _NEWLINE, _EMPTY = (pa.scalar(text, pa.large_string()) for text in ("\t", "\n", ""))


class Pieces:
    """Samples aside in a work file: added in a `with` block, read after it.

    Args:
        path: new file.
        lines: number of the last line of raw_sample.csv.
        form: tsv or parquet, what they are to become.
    """

    def __init__(self, path: Path, lines: int, form: str) -> None:
        self.path, self.form = path, form
        self.ranges = lines // RANGE + 1
        self._stream = path.open("wb")
        self._schema: pa.Schema | None = None
        self._codec = pa.Codec("lz4")
        # of each range: place, bytes in the file and bytes when unpacked of each slice's part
        self._places: list[list[tuple[int, int, int]]] = [[] for _ in range(self.ranges)]

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        with writing(self.path):
            self._stream.close()

    def add(self, samples: pa.Table) -> None:
        """Keep the samples of one slice: columns `line`, rising, `day`, and SCHEMA."""
        if self.form == "tsv":
            samples = as_lines(samples)
        self._schema = samples.schema
        cuts = np.searchsorted(samples["line"].to_numpy(), np.arange(self.ranges + 1) * RANGE)
        for places, (low, high) in zip(
            self._places, itertools.pairwise(cuts.tolist()), strict=True
        ):
            for batch in samples.slice(low, high - low).to_batches():
                data = batch.serialize()
                packed = self._codec.compress(data)
                places.append((self._stream.tell(), packed.size, data.size))
                with writing(self.path):
                    self._stream.write(packed)

    def in_order(self) -> Iterator[pa.Table]:
        """The samples, range by range, each as it comes; `line` gives their order."""
        with self.path.open("rb") as stream:
            for places in self._places:
                batches = []
                for place, size, full_size in places:
                    stream.seek(place)
                    data = self._codec.decompress(stream.read(size), full_size)
                    batches.append(ipc.read_record_batch(data, self._schema))
                if batches:
                    yield pa.Table.from_batches(batches)


def as_lines(samples: pa.Table) -> pa.Table:
    """Columns `line`, `day` and `text`: each sample joined by tabs and ended."""
    columns: Any = [samples[name].combine_chunks() for name in SCHEMA]
    text = pc.binary_join_element_wise(*columns, _TAB)
    ended = pc.binary_join_element_wise(text, _EMPTY, _NEWLINE)
    return pa.table({"line": samples["line"], "day": samples["day"], "text": ended})


class Writer:
    """Writes samples of one set to a file, as text lines or Parquet.

    Args:
        path: new file.
        form: tsv or parquet.
    """

    def __init__(self, path: Path, form: str) -> None:
        self.rows, self.path = 0, path
        self._stream: BinaryIO = path.open("wb")
        self._parquet: pq.ParquetWriter | None = None
        if form == "parquet":
            schema = pa.schema([(name, pa.string()) for name in SCHEMA])
            self._parquet = pq.ParquetWriter(self._stream, schema, compression="zstd")

    def write(self, samples: pa.Table) -> None:
        """Add samples as `Pieces` gives them."""
        if not len(samples):
            return
        self.rows += len(samples)
        with writing(self.path):
            if self._parquet is not None:
                self._parquet.write_table(samples.select(SCHEMA).cast(self._parquet.schema))
                return
            for chunk in samples["text"].chunks:
                self._stream.write(_bytes(chunk))

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        """Finish the file and see it on the disk."""
        with writing(self.path), self._stream:
            if self._parquet is not None:
                self._parquet.close()
            self._stream.flush()
            os.fsync(self._stream.fileno())


def write(pieces: Pieces, train: Writer, test: Writer) -> Iterator[int]:
    """Write all samples, in order, where their day belongs; yields how many at a time."""
    for samples in pieces.in_order():
        order = pc.sort_indices(samples["line"]).to_numpy()
        is_test = (samples["day"].to_numpy() >= FIRST_TEST_DAY)[order]
        train.write(samples.take(pa.array(order[~is_test])))
        test.write(samples.take(pa.array(order[is_test])))
        yield len(samples)


def _bytes(texts: pa.Array) -> pa.Buffer:
    """The bytes of all texts, one after the other."""
    _, offsets, data = texts.buffers()
    ends = np.frombuffer(offsets, np.int64)
    low, high = int(ends[texts.offset]), int(ends[texts.offset + len(texts)])
    return data.slice(low, high - low)
