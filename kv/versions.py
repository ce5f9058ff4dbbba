"""Versions as a worker sees them: what a table says of its rows, and which have changed since.

A server counts the changes of each part of a table; a row's version is the count when it last
changed. Counts of different servers, and of a server's parts, have nothing to do with each other.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

Version = Mapping[int, tuple[int, ...]]
"""By rank of the server, the versions of a table's parts there."""


class TableMeta(NamedTuple):
    """What there is to know of a table besides its values.

    Args:
        clocks: by rank of the server, the table's clock there.
        version: of all rows, for `pull_changed`.
        versions: int64 (n,): of the keys asked for, in their order; 0 where there is no row.
        shows: float32 (n,): what their pushes counted in all.
        seen: uint32 (n,): the second in which each was last seen, since 1970; 0: not known.
    """

    clocks: Mapping[int, int]
    version: Version
    versions: NDArray[np.int64]
    shows: NDArray[np.float32]
    seen: NDArray[np.uint32]


class Changed(NamedTuple):
    """Rows that have changed.

    Args:
        keys: uint64 (n,), none twice.
        values: float32 (n, dim).
        version: up to which changes are in it; give it to the next `pull_changed`.
    """

    keys: NDArray[np.uint64]
    values: NDArray[np.float32]
    version: Version


def described(
    keys: NDArray[np.uint64],
    clocks: Mapping[int, int],
    version: Version,
    found: Iterable[Sequence[NDArray[Any]]],
) -> TableMeta:
    """What servers said of `keys`, in their order.

    Args:
        found: keys that have rows, rising, their versions, shows and times, of each server.
    """
    versions, seen = np.zeros(keys.size, np.int64), np.zeros(keys.size, np.uint32)
    shows = np.zeros(keys.size, np.float32)
    outs: tuple[NDArray[Any], ...] = versions, shows, seen
    for columns in found:
        known = columns[0]
        if not known.size:
            continue
        where = np.minimum(np.searchsorted(known, keys), known.size - 1)
        is_there = known[where] == keys
        for out, column in zip(outs, columns[1:], strict=True):
            out[is_there] = column[where[is_there]]
    return TableMeta(clocks, version, versions, shows, seen)
