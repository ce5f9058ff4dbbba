"""Memory for the values of answers: where the node that asks sees it, or else from a pool."""

from __future__ import annotations

from functools import partial

import numpy as np

from kv.engine_table import Empty, Values
from postoffice.postoffice import Postoffice
from van.buffers import Buffers

POOLED = 1 << 14  # floats of an answer from which on its memory is worth a thought


class AnswerMemory:
    """Makes the arrays that values are copied into.

    Args:
        office: the node that sends them.
        buffers: pooled memory.
    """

    def __init__(self, office: Postoffice, buffers: Buffers) -> None:
        self._office, self._buffers = office, buffers

    def empty_for(self, node: int) -> Empty:
        """Makes arrays for an answer to `node`."""
        return partial(self._empty, node)

    def _empty(self, node: int, shape: tuple[int, int], kind: type[np.float32]) -> Values:
        """An array for an answer to `node`: in memory that it sees, or else in pooled memory."""
        if shape[0] * shape[1] < POOLED:
            return np.empty(shape, kind)
        made = self._office.van.empty(node, shape, kind)
        return self._buffers.empty(shape, kind) if made.base is None else made
