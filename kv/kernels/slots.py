"""Which slot a key lies in, and key lists grouped by the server that owns the slots.

A slot is the top ten bits of `mix64(key)`; `kv.placement` says the same in NumPy.
"""

from __future__ import annotations

import numpy as np

from kv.kernels.hash import mix64
from kv.kernels.jit import kernel

TOP10 = np.uint64(54)


@kernel
def slots_of(keys, slots):
    """Write the slot of each key.  keys: uint64 (n,); slots: uint16 (n,)."""
    for i in range(np.uint64(keys.size)):
        slots[i] = mix64(keys[i]) >> TOP10


@kernel
def group_by_owner(keys, owner_of_slot, owners, counts, starts, order):
    """Write the positions of `keys` grouped by owner, in their given order within a group.

    keys: uint64 (n,); owner_of_slot: uint16 (1024,), values below counts.size; owners: uint16 (n,),
    scratch; counts: int64 (num_owners,), keys of each owner; starts: int64 (num_owners,), scratch;
    order: int64 (n,).  A counting sort: two passes, each key mixed once."""
    count = np.uint64(keys.size)
    counts[:] = 0
    for i in range(count):
        owner = owner_of_slot[mix64(keys[i]) >> TOP10]
        owners[i] = owner
        counts[np.uint64(owner)] += 1
    start = 0
    for owner in range(np.uint64(counts.size)):
        starts[owner] = start
        start += counts[owner]
    for i in range(count):
        owner = np.uint64(owners[i])
        order[np.uint64(starts[owner])] = i
        starts[owner] += 1
