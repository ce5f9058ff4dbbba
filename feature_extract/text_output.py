"""Samples as lines of text: the intermediate and the final layout.

    id ⇥ label ⇥ dense_user ⇥ dense_ad ⇥ dense_user_ad ⇥ sparse_user ⇥ sparse_ad ⇥ sparse_user_ad

Features are joined by commas, the values of one feature by bars. A feature's text is made once a
distinct cell; rows only pick it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from feature_extract.chunk import Encoded
from feature_extract.conf import FeatureConf
from feature_extract.definition import FeatureDefinition
from feature_extract.index import Index, full_texts
from feature_extract.operators import Cells
from feature_extract.pairs import lines_of
from feature_extract.samples import Samples
from feature_extract.schema import GROUPS, KINDS

ROWS = 8192  # lines that are joined at a time


class Layout(NamedTuple):
    """The columns of text files over one chunk: each picks its texts by row."""

    id: Encoded
    label: Encoded
    features: dict[FeatureDefinition, Encoded]


def intermediate(samples: Samples, conf: FeatureConf) -> Layout:
    """Values with their prefixes."""
    features = {
        definition: _prefixed(definition.prefix, column.as_texts())
        for definition, column in samples.dense.items()
    }
    for definition, cells in samples.sparse.items():
        texts = full_texts(definition.prefix, cells.texts)
        features[definition] = Encoded(cells.rows, _lists(cells.offsets, texts, cells.codes))
    return Layout(samples.id, _prefixed(conf.label.prefix, samples.label.as_texts()), features)


def final(samples: Samples, index: Index) -> Layout:
    """Dense values without prefix, sparse values as their numbers."""
    features = {definition: column.as_texts() for definition, column in samples.dense.items()}
    for definition, cells in samples.sparse.items():
        offsets, numbers = known_numbers(definition.prefix, cells, index)
        texts = _lists(offsets, pc.cast(pa.array(numbers), pa.string()), None)
        features[definition] = Encoded(cells.rows, pc.if_else(pc.equal(texts, ""), "0", texts))
    return Layout(samples.id, samples.label.as_texts(), features)


def known_numbers(
    prefix: str, cells: Cells, index: Index
) -> tuple[NDArray[np.int32], NDArray[np.uint64]]:
    """The numbers of each cell's known values: offsets int32 (cells + 1,), numbers uint64."""
    numbers = index.look_up(prefix, cells.texts)[cells.codes]
    known = numbers > 0
    if known.all():
        return cells.offsets, numbers
    before = np.concatenate((np.zeros(1, dtype=np.int32), np.cumsum(known, dtype=np.int32)))
    return before[cells.offsets], numbers[known]


def lines(layout: Layout) -> Iterator[memoryview]:
    """The lines of the chunk, some thousands at a time."""
    total = len(layout.id.codes)
    sections = [
        [column for f, column in layout.features.items() if (f.kind, f.group) == (kind, group)]
        for kind in KINDS
        for group in GROUPS
    ]
    for low in range(0, total, ROWS):
        rows = slice(low, min(low + ROWS, total))
        groups = [_joined(columns, rows, ",") for columns in sections]
        columns = [_pick(layout.id, rows), _pick(layout.label, rows), *groups]
        yield lines_of(pc.binary_join_element_wise(*columns, "\t"))


def _pick(column: Encoded, rows: slice) -> pa.Array:
    return column.texts.take(pa.array(column.codes[rows]))


def _joined(columns: list[Encoded], rows: slice, separator: str) -> pa.Array:
    if not columns:
        return pa.array([""] * (rows.stop - rows.start), pa.string())
    return pc.binary_join_element_wise(*(_pick(column, rows) for column in columns), separator)


def _prefixed(prefix: str, column: Encoded) -> Encoded:
    return Encoded(column.codes, full_texts(prefix, column.texts))


def _lists(
    offsets: NDArray[np.int32], texts: pa.StringArray, codes: NDArray[np.int32] | None
) -> pa.StringArray:
    """Texts of the cells: their values joined by bars."""
    values = texts if codes is None else texts.take(pa.array(codes))
    return pc.binary_join(pa.ListArray.from_arrays(pa.array(offsets), values), "|")
