"""Sample files as chunks of text columns.

    delimited   lines with a delimiter: TSV, CSV, Criteo, Avazu
    libsvm      `label index:value ...`
    parquet     Parquet files, by their suffix
    bad_lines   counts malformed lines and says when they are too many

`open_samples` chooses among them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from pathlib import Path
from typing import Protocol

from feature_extract.chunk import Chunk, Limits
from feature_extract.conf import FeatureConf
from feature_extract.errors import SampleFileError
from feature_extract.readers.bad_lines import BadLines

PARQUET_SUFFIXES = (".parquet", ".pq")


class SampleFile(Protocol):
    """One sample file that can be read from the start any number of times."""

    nbytes: int  # size on disk, what the chunks' `nbytes` add up to

    def chunks(self, bad: BadLines) -> Iterator[Chunk]:
        """The samples in order; malformed lines are given to `bad` and left out."""


def open_samples(
    path: Path,
    conf: FeatureConf,
    *,
    limits: Limits | None = None,
    optional: Collection[str] = (),
) -> SampleFile:
    """The reader for a file: Parquet by suffix, else what `[input] format` says.

    Args:
        path: the file; text may be compressed (.gz, .bz2, .zst).
        conf: names the columns and how the file looks; only used columns are read.
        limits: size of the chunks.
        optional: columns that may be missing where columns are found by name; they read empty.
    Raises:
        SampleFileError: there is no such file or it lacks a column.
    """
    if not path.is_file():
        raise SampleFileError(str(path), "no such file")
    limits = limits or Limits()
    if path.suffix in PARQUET_SUFFIXES:
        from feature_extract.readers.parquet import ParquetSamples

        return ParquetSamples(path, conf, limits, optional)
    if conf.input.format == "libsvm":
        from feature_extract.readers.libsvm import LibsvmSamples

        return LibsvmSamples(path, conf, limits)
    from feature_extract.readers.delimited import DelimitedSamples

    return DelimitedSamples(path, conf, limits, optional)
