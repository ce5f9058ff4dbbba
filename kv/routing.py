"""A request's keys split by the server that owns them.

Apart from `kv.placement` because the kernel behind it loads Numba, which the scheduler must not.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kv.errors import KVError
from kv.kernels.jit import frozen
from kv.kernels.slots import group_by_owner
from kv.placement import SlotMap


def split(
    slots: SlotMap, keys: NDArray[np.uint64], num_servers: int | None = None
) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """Positions of `keys` grouped by owning server, and how many each server gets.

    Args:
        keys: uint64, shape (n,); within a group their order stays, so increasing keys stay so.
        num_servers: length of the counts; by default the map's own number of servers.
    Returns:
        order: int64, shape (n,); `keys[order]` are server 0's keys, then server 1's, …
        counts: int64, shape (num_servers,).
    Raises:
        KVError: the map gives slots to more servers than `num_servers`.
    """
    owners = slots.num_servers if num_servers is None else num_servers
    if owners < slots.num_servers:
        raise KVError(f"{slots} gives slots to {slots.num_servers} servers, asked for {owners}")
    order = np.empty(keys.size, np.int64)
    counts = np.empty(owners, np.int64)
    if owners == 1:
        order[:] = np.arange(keys.size)
        counts[0] = keys.size
        return order, counts
    group_by_owner(
        frozen(keys),
        slots.owner,
        np.empty(keys.size, np.uint16),
        counts,
        np.empty(owners, np.int64),
        order,
    )
    return order, counts
