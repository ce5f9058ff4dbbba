"""Where the rows of a table that evicts lie, and which were used of late.

Which rows go next follows from that: a store that is to go on to the same bits needs the same rows
at the same numbers. Other tables come to the same values wherever their rows lie.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from kv.kernels.jit import frozen
from kv.kernels.records import VERSION
from kv.store import rows as batches
from kv.store.limits import Evict
from kv.store.numbers import Numbers

if TYPE_CHECKING:
    from kv.store.sparse import SparseStore


@dataclass(frozen=True, eq=False)
class Layout:
    """Row numbers and the clock's state of one store.

    Attributes:
        keys: uint64 (n,), rising; rows: int64 (n,), their numbers.
        marks: uint8 (top,), of the numbers ever given out; hand: where the clock's hand is.
        free: int64, free numbers; sizes: how many came back together, in order.
    """

    keys: NDArray[np.uint64]
    rows: NDArray[np.int64]
    marks: NDArray[np.uint8]
    hand: int
    free: NDArray[np.int64]
    sizes: NDArray[np.int64]


def layout_of(store: SparseStore) -> Layout | None:
    """The layout of a store that evicts; None of any other."""
    limit, space = store.limit, store.space
    if type(limit) is not Evict:
        return None
    top, records = space.numbers.top, space.index.records
    used = np.flatnonzero(records[:top, VERSION])
    order = np.argsort(records[used, 0])
    free, sizes = space.numbers.export()
    marks, hand = limit.clock()
    return Layout(records[used, 0][order], used[order], marks, hand, free, sizes)


def lay_out(store: SparseStore, layout: Layout) -> bool:
    """Move the rows of `store` to where `layout` has them; False if it is of other rows."""
    limit, space = store.limit, store.space
    keys = frozen(layout.keys)
    if type(limit) is not Evict or layout.marks.size > space.capacity:
        return False
    if len(store) != keys.size or store.absent(keys).size:
        return False
    batch = store.export(keys)
    space.remove(keys)
    space.numbers = Numbers.of(layout.marks.size, layout.free, layout.sizes)
    space.index.add(keys, layout.rows)
    batches.write(space, layout.rows, batch, batch.versions)
    limit.set_clock(layout.marks, layout.hand)
    return True
