"""Tables of a checkpoint as Parquet files, for pandas, DuckDB and the like."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np

from kv.checkpoint.reading import SavedTables
from kv.store.rows import RowBatch
from van.errors import ConfigError, PsliteError


def export_tables(
    saved: SavedTables,
    tables: Iterable[str],
    folder: Path,
    progress: Callable[[int], None] = lambda rows: None,
) -> list[tuple[str, Path, int]]:
    """Write each table into a file of its own; (table, file, rows) of each.

    A sparse table has columns key, weights (a list of dim float32), shows, last_seen (seconds since
    1970) and version. A dense one has the column value, in C order, and its shape in the metadata.

    Raises:
        ConfigError: pyarrow is missing, or the folder cannot be written.
        CheckpointError: a table is not there, or cannot be read.
    """
    try:
        import pyarrow  # noqa: F401 (asked for before anything is written)
    except ImportError:
        raise ConfigError("Parquet needs pyarrow: pip install 'pslite[ctr]'") from None
    try:
        folder.mkdir(parents=True, exist_ok=True)
        return [_export(saved, table, folder, progress) for table in tables]
    except OSError as error:
        if isinstance(error, PsliteError):
            raise
        raise ConfigError(f"{folder} cannot be written: {error.strerror or error}") from error


def _export(
    saved: SavedTables, table: str, folder: Path, progress: Callable[[int], None]
) -> tuple[str, Path, int]:
    import pyarrow.parquet as pq

    spec = saved.spec(table)
    path = folder / (re.sub(r"[^\w.-]+", "_", table) + ".parquet")
    aside = path.with_name(f".{path.name}.new")
    schema = _schema(spec.kind, spec.dim, {"table": table, "shape": str(list(spec.shape))})
    rows = 0
    with pq.ParquetWriter(aside, schema) as writer:
        if spec.kind == "dense":
            values = saved.array(table).reshape(-1)
            writer.write_table(_table([values], schema))
            rows = values.size
            progress(rows)
        else:
            for batch in saved.batches(table):
                writer.write_table(_table(_columns(batch, saved.weights(table, batch)), schema))
                rows += len(batch)
                progress(len(batch))
    aside.replace(path)
    return table, path, rows


def _columns(batch: RowBatch, weights: np.ndarray) -> list[Any]:
    import pyarrow as pa

    lists = pa.FixedSizeListArray.from_arrays(weights.reshape(-1), weights.shape[1])
    return [batch.keys, lists, batch.show_counts(), batch.seen.astype(np.int64), batch.versions]


def _schema(kind: str, dim: int, metadata: dict[str, str]) -> Any:
    import pyarrow as pa

    fields = [("value", pa.float32())]
    if kind == "sparse":
        fields = [
            ("key", pa.uint64()),
            ("weights", pa.list_(pa.float32(), dim)),
            ("shows", pa.float32()),
            ("last_seen", pa.int64()),
            ("version", pa.int64()),
        ]
    return pa.schema(fields, metadata={f"pslite.{key}": text for key, text in metadata.items()})


def _table(columns: list[Any], schema: Any) -> Any:
    import pyarrow as pa

    arrays = [pa.array(column) if isinstance(column, np.ndarray) else column for column in columns]
    return pa.table(arrays, schema=schema)
