"""Count the sparse values of the training samples, chunk after chunk."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feature_extract.conf import FeatureConf
from feature_extract.definition import FeatureDefinition
from feature_extract.index import NO_PREFIX
from feature_extract.operators import Cells
from feature_extract.schema import GROUPS
from feature_extract.vocabulary import Counter


class Counting:
    """Counters of all prefixes.

    Args:
        conf: the features.
        compat: whether each sample counts the empty text once for each absent sparse section.
    """

    def __init__(self, conf: FeatureConf, compat: bool) -> None:
        self.counters: dict[str, Counter] = {}
        self.samples = 0
        self._absent = conf.absent_sparse_sections() if compat else ()
        order: list[FeatureDefinition | str] = []
        for group in GROUPS:
            own = [f for f in conf.features if f.kind == "sparse" and f.group == group]
            order += own or [group]
        self._place = {item: place for place, item in enumerate(order)}

    def add(self, sparse: Mapping[FeatureDefinition, Cells], samples: int) -> None:
        """Count the values of the next `samples` samples."""
        if samples == 0:
            return
        for definition, cells in sparse.items():
            counts, rows, positions = occurrences(cells)
            places = positions + (self._place[definition] << 32)
            self._counter(definition.prefix).add(cells.texts, counts, rows + self.samples, places)
        for group in self._absent:
            one = np.ones(1, dtype=np.int64)
            place = one * (self._place[group] << 32)
            empty = pa.array([""], pa.string())
            self._counter(NO_PREFIX).add(empty, one * samples, one * self.samples, place)
        self.samples += samples

    def _counter(self, prefix: str) -> Counter:
        if prefix not in self.counters:
            self.counters[prefix] = Counter()
        return self.counters[prefix]


def occurrences(
    cells: Cells,
) -> tuple[NDArray[np.int64], NDArray[np.int64], NDArray[np.int64]]:
    """How often each value of a chunk occurs, in which row first, and as which value of that row.

    Returns:
        three int64 arrays of shape (len(cells.texts),).
    """
    lengths = np.diff(cells.offsets)
    cell_counts = np.bincount(cells.rows, minlength=len(lengths))
    cell_rows = _first(cells.rows, len(lengths))
    if len(cells.texts) == len(lengths) == len(cells.codes):
        return cell_counts, cell_rows, np.zeros(len(lengths), dtype=np.int64)
    cell_of = np.repeat(np.arange(len(lengths)), lengths)
    counts = np.bincount(cells.codes, weights=cell_counts[cell_of], minlength=len(cells.texts))
    # cells are numbered as they first occur, so a value's first position is in its first row
    first = _first(cells.codes, len(cells.texts))
    positions = first - cells.offsets[cell_of[first]]
    return counts.astype(np.int64), cell_rows[cell_of[first]], positions


def _first(codes: NDArray[np.int32], size: int) -> NDArray[np.int64]:
    """Position at which each of the codes below `size` comes first; each must come."""
    first = np.empty(size, dtype=np.int64)
    # of several assignments to one place NumPy keeps the last
    first[codes[::-1]] = np.arange(len(codes) - 1, -1, -1)
    return first
