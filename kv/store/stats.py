"""What a store tells about itself."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kv.kernels.jit import frozen
from kv.kernels.records import HALF, SHOW, USE, VERSION
from kv.store.space import RowSpace

TOP = 10
LOOK = 1 << 18  # rows looked at for the most used ones, a call


@dataclass(frozen=True, kw_only=True)
class StoreStats:
    """A store at a moment. Counts are since it was made."""

    rows: int  # keys with a row, in memory or on disk
    hot_rows: int  # of these in memory
    nbytes: int  # memory of rows, their records, index and admission counters
    disk_nbytes: int  # of the cold tier
    load_factor: float  # of the index
    admitted: int  # keys that an admission policy gave a row
    denied: int  # sightings after which a key had still none
    dropped_gradients: int  # rows of pushed gradients that no key's row took
    evicted: int  # rows forgotten because memory was full
    expired: int  # rows forgotten by the expiry policy
    spilled: int  # rows written to disk
    clipped_rows: int  # gradients of rows that clip_value or clip_norm changed
    clipped_pushes: int  # gradients that were scaled as a whole
    hot_hits: int  # keys found in memory
    hot_misses: int  # keys that had to be read from disk
    top: list[tuple[int, float]]  # most shown keys in memory and their shows, falling


def together(parts: Sequence[StoreStats]) -> dict[str, Any]:
    """The stats of a table from those of its parts: counts add up, the load is their mean."""
    found: dict[str, Any] = {
        field.name: sum(getattr(part, field.name) for part in parts)
        for field in fields(StoreStats)
        if field.name != "top"
    }
    found["load_factor"] /= len(parts)
    top = sorted((entry for part in parts for entry in part.top), key=lambda entry: -entry[1])
    found["top"] = [list(entry) for entry in top[: max(len(part.top) for part in parts)]]
    return found


class TopKeys:
    """The most shown keys, by looking at some rows a call and remembering the best of them.

    After enough calls every row has been looked at; a push pays nothing for it.
    """

    def __init__(self) -> None:
        self._row = 0
        self._best = np.empty(0, np.uint64)

    def look(self, space: RowSpace) -> list[tuple[int, float]]:
        """The most shown keys known so far, with their shows of now."""
        index, top = space.index, space.numbers.top
        start = self._row if self._row < top else 0
        stop = min(start + LOOK, top)
        self._row = stop
        rows = start + _largest(index.records[start:stop])
        known, _, _ = index.find(frozen(self._best))
        rows = np.union1d(rows, known[known >= 0])
        shows = (index.records[rows, USE] >> HALF) / SHOW
        order = np.lexsort((index.records[rows, 0], -shows))[:TOP]
        keys, counts = index.records[rows[order], 0], shows[order]
        self._best = keys
        return [
            (key, count) for key, count in zip(keys.tolist(), counts.tolist(), strict=True) if count
        ]


def _largest(records: NDArray[np.uint64]) -> NDArray[np.int64]:
    """Places of the records in use that have the most shows."""
    shows = np.where(records[:, VERSION] != 0, records[:, USE], 0)
    count = min(TOP, shows.size)
    chosen = np.argpartition(shows, -count)[-count:] if count else np.empty(0, np.int64)
    return chosen[shows[chosen] > 0]
