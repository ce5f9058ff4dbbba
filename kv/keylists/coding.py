"""Strictly increasing keys as their differences, in as few bytes as each block of them needs.

    count   uint64             keys in the list
    first   uint64             absent from an empty list
    widths  uint8 each         bytes of a difference, by block of 64 of them
    rest                       the differences less one, little endian, block after block

Ids of a small range take one or two bytes a key instead of eight; spread ones some five to seven.
What comes from elsewhere is checked before anything is allocated or read.
"""

from __future__ import annotations

import sys
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kv.errors import KVError
from kv.kernels import deltas
from kv.kernels.jit import frozen

WORTH = 0.8  # a coded list is used when it takes at most this share of the plain one

assert sys.byteorder == "little"


def encode(keys: NDArray[np.uint64]) -> NDArray[np.uint8] | None:
    """`keys`, strictly increasing, coded; None where that saves too little.

    Args:
        keys: uint64, shape (n,).
    Returns:
        uint8, shape (nbytes,).
    """
    blocks = deltas.blocks_of(keys.size)
    if not blocks:
        return None
    keys, widths = frozen(keys), np.empty(blocks, np.uint8)
    size = deltas.measure(keys, widths)
    if deltas.HEAD + blocks + size > WORTH * keys.nbytes:
        return None
    coded = np.empty(deltas.HEAD + blocks + size, np.uint8)
    coded[: deltas.HEAD].view(np.uint64)[:] = keys.size, keys[0]
    coded[deltas.HEAD : deltas.HEAD + blocks] = widths
    deltas.write(keys, widths, coded[deltas.HEAD + blocks :])
    return coded


def decode(coded: NDArray[Any]) -> NDArray[np.uint64]:
    """The keys that `encode` coded, strictly increasing.

    Raises:
        KVError: `coded` is nothing that `encode` makes.
    """
    if coded.dtype != np.uint8 or coded.ndim != 1 or coded.size < deltas.HEAD:
        raise KVError(
            f"coded keys are bytes, {deltas.HEAD} or more, not {coded.dtype} {coded.shape}"
        )
    count, first = (int.from_bytes(coded[at : at + 8].tobytes(), "little") for at in (0, 8))
    blocks = deltas.blocks_of(count)
    if not 2 <= count <= coded.size or deltas.HEAD + blocks > coded.size:
        raise KVError(f"{coded.size} bytes are no {count} coded keys")
    coded = frozen(coded)
    widths = coded[deltas.HEAD : deltas.HEAD + blocks]
    keys = np.empty(count, np.uint64)
    if not deltas.read(np.uint64(first), widths, coded[deltas.HEAD + blocks :], keys):
        raise KVError(f"{coded.size} bytes are no {count} coded keys in increasing order")
    return frozen(keys)
