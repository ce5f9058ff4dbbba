"""Sparse first: rows of frequently used keys leave ahead of the others of their push.

Uses are counted in a sketch of a fixed size (`kv.kernels.bloom`), all counts halved from time to
time, so that a key is hot that is used often now. A push's hot rows make a shard of their own,
whose buffer is sent after a shorter interval; the rest, which the worker is answered for, is sent
when servers have the hot rows. Servers note which rows those were, push by push, so that a push
that its worker must send again is applied without them: a bit for each push inside goes with each
row, hence no more than 64 of them leave together.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kv.dispatcher.receiving import Keys, Shard, Values
from kv.kernels import bloom
from kv.kernels.jit import frozen

MOST = 64  # pushes whose hot rows leave together
_COUNTERS = 1 << 20  # bytes
_PERIOD = 1 << 20  # uses between two halvings: each counter of a quarter as many keys is then small

Masks = NDArray[np.uint64]


class HotKeys:
    """Counts uses of keys.

    Args:
        least: uses from which on a key is hot, 1 to 255.
        seed: of the sketch.
    """

    def __init__(self, least: int, seed: int = 0, period: int = _PERIOD) -> None:
        self._least, self._seed, self._period = np.uint8(least), np.uint64(seed), period
        self._counters = np.zeros(_COUNTERS, np.uint8)
        self._uses = 0

    def note(self, keys: Keys) -> NDArray[np.bool_]:
        """Count one use of each key; which of them are hot, bool (n,). Never too few."""
        counts = np.empty(keys.size, np.uint8)
        bloom.sight(self._counters, self._seed, frozen(keys), counts)
        self._uses += keys.size
        if self._uses >= self._period:
            self._uses //= 2
            bloom.halve(self._counters)
        return counts >= self._least


def parted(shard: Shard, hot: HotKeys) -> tuple[Shard | None, Shard]:
    """A push's hot rows, None if there are none, and the rest of it."""
    ahead: list[tuple[Keys, Values]] = []
    rest: list[tuple[Keys | None, Values]] = []
    for keys, values in shard.parts:
        if keys is None:
            rest.append((keys, values))
            continue
        is_hot = hot.note(keys)
        if is_hot.any():
            ahead.append((keys[is_hot], values[is_hot]))
            rest.append((keys[~is_hot], values[~is_hot]))
        else:
            ahead.append((keys[:0], values[:0]))
            rest.append((keys, values))
    if not any(keys.size for keys, _ in ahead):
        return None, shard
    sparse = [t for t, (keys, _) in zip(shard.tables, shard.parts, strict=True) if keys is not None]
    cold = replace(shard, parts=rest, waits=1)
    return replace(shard, tables=tuple(sparse), parts=[*ahead], cold=cold), cold


def masks_of(merged: Keys, lists: Sequence[Keys]) -> Masks:
    """Which pushes have a row: bit i of a merged key says that list i has it.

    Args:
        merged: uint64 (n,), increasing: the union of `lists`, at most 64, each increasing.
    """
    masks = np.zeros(merged.size, np.uint64)
    for place, keys in enumerate(lists):
        masks[np.searchsorted(merged, keys)] |= np.uint64(1) << np.uint64(place)
    return masks


def keys_within(merged: Keys, masks: Masks, place: int) -> Keys:
    """The keys of the list of that place."""
    found: Keys = merged[(masks >> np.uint64(place)) & np.uint64(1) == 1]
    return found
