"""From a batch's feature values to the unique keys a table is asked for, and back."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from apps.ctr import kernels
from apps.ctr.batch import Block
from kv.kernels.jit import frozen


class Lookup:
    """The feature values of some blocks, merged.

    Attributes:
        keys: uint64 (u,), each value that occurs, rising.
    """

    def __init__(self, blocks: Sequence[Block]) -> None:
        total = sum(len(block.keys) for block in blocks)
        slots = np.full(1 << max(4, (2 * total).bit_length()), -1, np.int32)
        unique = np.empty(total, np.uint64)
        codes = [np.empty(len(block.keys), np.int32) for block in blocks]
        count = 0
        for block, out in zip(blocks, codes, strict=True):
            count = int(kernels.merge_keys(block.keys, slots, unique, count, out))
        order = np.argsort(unique[:count])
        place = np.empty(count, np.int32)
        place[order] = np.arange(count, dtype=np.int32)
        self.keys = unique[:count][order]
        self._blocks, self._codes = blocks, [place[code] for code in codes]

    def fill(self, values: NDArray[np.float32], out: Sequence[NDArray[np.float32]]) -> None:
        """Write each block's input: mean embeddings feature by feature, then dense features.

        Args:
            values: float32 (u, dim), the rows of `keys`.
            out: for each block float32 (n, features * dim + dense).
        """
        dim = values.shape[1]
        for block, codes, matrix in zip(self._blocks, self._codes, out, strict=True):
            kernels.mean_bags(frozen(values), codes, block.lengths, matrix)
            matrix[:, block.lengths.shape[1] * dim :] = block.dense

    def gradients(self, grads: Sequence[NDArray[np.float32]], dim: int) -> NDArray[np.float32]:
        """Gradients of the rows of `keys`, float32 (u, dim), summed over their occurrences.

        Args:
            grads: for each block the gradient of what `fill` wrote.
        """
        total = np.zeros((len(self.keys), dim), np.float32)
        for block, codes, grad in zip(self._blocks, self._codes, grads, strict=True):
            kernels.spread_gradients(grad, codes, block.lengths, total)
        return total
