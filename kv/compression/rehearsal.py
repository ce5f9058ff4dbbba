"""Kernels of compression are loaded before the first message: by messages that nobody sends.

A kernel compiles, or is loaded from Numba's cache, when it is first called. Whoever makes an
encoder or expects packets calls `play` first; launchers compile everything once with `play_all`.
"""

from __future__ import annotations

import threading

import numpy as np

from kv.compression.bases import Base
from kv.compression.coding import NAMED, decode
from kv.compression.encoder import Encoder
from kv.compression.kept import KeptRows
from kv.compression.schemes import Chain, Delta, Int8, Scheme, Selective, TopK, Zstd
from kv.kernels.jit import frozen

ALL = ("fp16", "bf16", "int8", "onebit", "selective:1+delta+topk:0.1+fp16")
SHARES = (0.05, 0.9)  # of numbers, whose places are then told as gaps or as a mask
DIM, MEMORY = 16, 1 << 16
_known: set[tuple[type, ...]] = set()
_lock = threading.Lock()


def play(chain: Chain) -> None:
    """Load what messages of such a chain call, at either end."""
    kinds = tuple(type(scheme) for scheme in chain.schemes if not isinstance(scheme, Zstd))
    if kinds[-1:] == (Delta,):
        kinds += (Int8,)
    with _lock:
        if kinds and kinds not in _known:
            for share in SHARES if TopK in kinds else SHARES[:1]:
                for by_row in (False, True):
                    _play(Chain(tuple(_like(kind, share) for kind in kinds)), by_row)
            _known.add(kinds)


def _like(kind: type[Scheme], share: float) -> Scheme:
    """A scheme of that kind which leaves something out, if any of it does."""
    if kind is TopK:
        return TopK(share=share)
    return Selective(eps=1.0) if kind is Selective else kind()


def play_all() -> None:
    """Load all there is."""
    for text in ALL:
        play(Chain.parse(text))


def _play(chain: Chain, by_row: bool) -> None:
    keys = frozen(np.arange(40, dtype=np.uint64))
    values = np.ones((keys.size, DIM), np.float32)
    values[:, 1:3] = (-1.0, 2.0)
    values[5:] *= 3
    kept = KeptRows("nobody's", DIM, MEMORY)
    encoder, base = Encoder(chain, DIM, kept, by_row, MEMORY), Base(DIM, MEMORY)
    for _ in range(2):
        coded = encoder.encode(keys, values, NAMED)
        if coded.is_packed:
            found = decode(frozen(coded.array), keys.size, DIM)
            if coded.updates is not None:
                found.on(base, keys)
        encoder.give_back(keys, values, coded)
