"""`clip_global_norm` on a server: one scale for all gradients of a table that are applied together.

Source: torch.nn.utils.clip_grad_norm_, whose formula this is: gradients are multiplied with
min(1, c / (norm + 1e-6)); Pascanu et al., On the difficulty of training recurrent neural networks,
ICML 2013, algorithm 1.
"""

from __future__ import annotations

import math
import threading

import numpy as np
from numpy.typing import NDArray

from kv.executor import Turns, run_through
from kv.kernels.gradients import clipped_total
from kv.kernels.jit import frozen
from kv.optimizers import Optimizer

EPS = 1e-6  # torch's
ROWS = 1 << 16  # whose squares are added up in one go
Values = NDArray[np.float32]


def scale_of(norm: float, most: float) -> np.float32:
    """What brings gradients of this L2 norm to `most`; 1 for those that are not above it."""
    return np.float32(min(1.0, most / (norm + EPS)))


class GlobalNorm:
    """`clip_global_norm` of one table on one server. Any thread.

    Args:
        optimizer: has it, and the limits that come before it.
        is_whole: whether all rows are one array, to which `clip_norm` applies.

    Attributes:
        clipped: how many pushes, or rounds, were scaled.
    """

    def __init__(self, optimizer: Optimizer, is_whole: bool) -> None:
        self._most, self._is_whole = optimizer.clip_global_norm, is_whole
        self._value = np.float32(optimizer.clip_value or math.inf)
        self._norm = optimizer.clip_norm or math.inf
        self.clipped = 0
        self._lock = threading.Lock()

    def scale(self, grads: Values) -> np.float32:
        """What all gradients of an update, float32 (n, dim), are to be multiplied with."""
        return run_through(self.scaling(grads))

    def scaling(self, grads: Values) -> Turns[np.float32]:
        """`scale` in turns. The sum has one order, whoever asks for it."""
        row_norm, total = np.float32(math.inf if self._is_whole else self._norm), 0.0
        for start in range(0, len(grads), ROWS):
            total += clipped_total(frozen(grads[start : start + ROWS]), self._value, row_norm)
            if start + ROWS < len(grads):
                yield
        norm = math.sqrt(total)
        is_counted = self._is_whole and norm > self._norm  # by the step, which scales it as well
        scale = scale_of(min(norm, self._norm) if self._is_whole else norm, self._most)
        if scale < 1 and not is_counted:
            with self._lock:
                self.clipped += 1
        return scale
