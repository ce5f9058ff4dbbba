"""64 bits that stand for all key lists of one request."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
from numpy.typing import NDArray

from kv.kernels.digest import digest
from kv.kernels.jit import frozen

_MASK = (1 << 64) - 1
_ODD = 0x9E3779B97F4A7C15


def signature_of(lists: Iterable[tuple[int, NDArray[np.uint64]]], seed: int) -> int:
    """Of tables and their key lists, in their order; never 0.

    Args:
        lists: table id, and uint64, shape (n,), no key twice.
        seed: a secret of the worker's life.
    """
    found = seed
    for table, keys in lists:
        found = _mixed(found ^ table ^ int(digest(frozen(keys), np.uint64(seed))))
    return found or 1


def part_of(signature: int, ranges: Iterable[tuple[int, int, int]]) -> int:
    """Of a piece of a request of that signature; never 0.

    Args:
        ranges: (place of the list, start, stop) of the keys in it, of those of its server. How a
            request is cut depends on more than its lists, so each cut has signatures of its own.
    """
    for place, start, stop in ranges:
        signature = _mixed(_mixed(_mixed(signature + place) + start) + stop)
    return signature or 1


def _mixed(value: int) -> int:
    """One step of a 64-bit multiplicative hash, enough to tell lists' places apart."""
    value = (value & _MASK) * _ODD & _MASK
    return value ^ (value >> 32)
