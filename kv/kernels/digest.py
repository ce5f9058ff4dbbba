"""64 bits that stand for a set of keys.

The sum of a mix of each key with a secret seed: the sum needs no order, so the additions do not
wait for each other, and the seed keeps those who choose keys from choosing two lists alike.
"""

from __future__ import annotations

import numpy as np

from kv.kernels.hash import mix64
from kv.kernels.jit import kernel


@kernel
def digest(keys, seed):
    """keys: uint64 (n,), only read; seed: uint64. Returns uint64."""
    total = np.uint64(0)
    for i in range(np.uint64(keys.size)):
        total += mix64(keys[i] ^ seed)
    return mix64(total ^ np.uint64(keys.size))
