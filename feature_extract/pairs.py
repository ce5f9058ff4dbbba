"""Files of `TEXT⇥NUMBER` lines: the dictionary and the counts."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv
from numpy.typing import NDArray

from feature_extract.errors import DictionaryError
from feature_extract.files import replacing

ROWS = 1 << 17  # lines that are formatted at a time


def write_pairs(
    path: Path, texts: pa.LargeStringArray, numbers: NDArray[Any], order: NDArray[np.int64]
) -> None:
    """Write `texts` and `numbers` in the given order."""
    with replacing(path) as partial, open(partial, "wb") as file:
        for low in range(0, len(order), ROWS):
            rows = order[low : low + ROWS]
            column = texts.take(pa.array(rows))
            figures = pc.cast(pa.array(numbers[rows]), column.type)
            tab = pa.scalar("\t", column.type)
            file.write(lines_of(pc.binary_join_element_wise(column, figures, tab)))


def lines_of(texts: pa.Array) -> memoryview:
    """The texts, a newline after each, as one piece of memory."""
    nothing, newline = pa.scalar("", texts.type), pa.scalar("\n", texts.type)
    lines = pc.binary_join_element_wise(texts, nothing, newline)
    _, offsets, data = lines.buffers()
    wide = np.int64 if pa.types.is_large_string(lines.type) else np.int32
    ends = np.frombuffer(offsets, dtype=wide)[lines.offset : lines.offset + len(lines) + 1]
    return memoryview(data)[ends[0] : ends[-1]]


def read_pairs(path: Path) -> Iterator[tuple[pa.StringArray, NDArray[np.uint64]]]:
    """The lines of such a file, some at a time.

    Raises:
        DictionaryError: the file cannot be read or a line is not `PREFIX#VALUE⇥INDEX`.
    """
    try:
        if path.stat().st_size == 0:  # Arrow takes an empty file for an error
            return
        with pyarrow.csv.open_csv(
            path,
            read_options=pyarrow.csv.ReadOptions(column_names=["text", "number"]),
            parse_options=pyarrow.csv.ParseOptions(
                delimiter="\t", quote_char=False, ignore_empty_lines=False
            ),
            convert_options=pyarrow.csv.ConvertOptions(
                column_types={"text": pa.string(), "number": pa.uint64()},
                strings_can_be_null=False,
            ),
        ) as reader:
            for batch in reader:
                texts, numbers = batch.columns
                if numbers.null_count or pc.any(pc.equal(numbers, 0)).as_py():
                    raise DictionaryError(str(path), "an index is missing or is 0")
                yield texts, numbers.to_numpy()
    except (pa.ArrowException, OSError) as error:
        raise DictionaryError(
            str(path), f"cannot be read as lines of VALUE, tab, INDEX: {error}"
        ) from None
