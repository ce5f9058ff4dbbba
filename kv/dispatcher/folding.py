"""A request that names a table more than once, as if it named it once.

A worker may push or read a table twice in one request. What a dispatcher asks of servers, keeps
and adds up is by table, so that its parts of one table are made one first: gradients of equal keys
are added, as within one list of keys, and an answer has the rows of each list again.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kv.dispatcher.known_tables import KnownTable
from kv.kernels.sums import sum_parts

Keys = NDArray[np.uint64]
Values = NDArray[np.float32]
Part = tuple[Keys | None, Values]


def is_folded(tables: Sequence[Any]) -> bool:
    """Whether none stands twice."""
    return len(tables) < 2 or len(set(tables)) == len(tables)


def folded_parts(
    tables: Sequence[int], parts: Sequence[Part]
) -> tuple[tuple[int, ...], list[Part]]:
    """Gradients by table, each table once, in the order in which they first stand."""
    of_table: dict[int, list[Part]] = {}
    for table, part in zip(tables, parts, strict=True):
        of_table.setdefault(table, []).append(part)
    return tuple(of_table), [_sum(some) for some in of_table.values()]


def _sum(parts: Sequence[Part]) -> Part:
    if parts[0][0] is None:
        return None, reduce(np.add, [values for _, values in parts])
    return sum_parts([(keys, values) for keys, values in parts if keys is not None])


class FoldedRead:
    """What a pull wants, each table once.

    Args:
        tables: as the worker named them.
        keys: by place, increasing; None of a dense table.

    Attributes:
        tables, keys: each table once, with the keys of all its lists.
    """

    def __init__(self, tables: Sequence[KnownTable], keys: Sequence[Keys | None]) -> None:
        self._given = list(zip(tables, keys, strict=True))
        self.tables = list(dict.fromkeys(tables))
        self._places = {table: place for place, table in enumerate(self.tables)}
        self.keys = [self._union(table) for table in self.tables]

    def _union(self, table: KnownTable) -> Keys | None:
        lists = [keys for other, keys in self._given if other is table and keys is not None]
        return np.unique(np.concatenate(lists)) if lists else None

    def unfolded(self, values: Sequence[Values]) -> list[Values]:
        """The rows of each list, as the worker named them."""
        found = []
        for table, keys in self._given:
            place = self._places[table]
            union = self.keys[place]
            if keys is None or union is None:
                found.append(values[place])
            else:
                found.append(values[place][np.searchsorted(union, keys)])
        return found
