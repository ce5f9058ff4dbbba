"""What a worker does to all gradients of a step before it pushes them.

Source: torch.nn.utils.clip_grad_value_ and clip_grad_norm_, one after the other; see
`kv.global_norm` for the formula of the norm.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Sequence
from dataclasses import Field, dataclass, field
from typing import Any, ClassVar

import numpy as np
from numpy.typing import NDArray

from kv.checks import refuse_non_finite
from kv.global_norm import scale_of
from kv.kernels.gradients import clip_rows, clipped_total
from kv.kernels.jit import frozen
from kv.keylist import as_values, prepare
from kv.optimizers import CLIPS
from kv.protocols import Write
from kv.settings import Named

Values = NDArray[np.float32]


@dataclass(frozen=True, kw_only=True)
class Clipping(Named):
    """What a worker does to the gradients of a step before it pushes them; 0 or None is off.

        worker.push_many(writes, clipping=clipping)

    Equal keys are added first. The settings are applied in the order in which they stand.

    Args:
        clip_value: each number of a gradient is brought into ±this.
        clip_norm: the gradient of a row, or of a dense table, whose L2 norm is larger is scaled
            down to it.
        clip_global_norm: all gradients of the step, of all tables, are scaled down to this L2 norm
            of them together.

    Attributes:
        counts: `rows`, arrays of dense tables among them, that the first two have changed; `steps`
            that the last one has scaled.
    """

    family: ClassVar[str] = "worker's clipping"
    name: ClassVar[str] = "clipping"
    clip_value: float = 0.0
    clip_norm: float = 0.0
    clip_global_norm: float = 0.0
    counts: Counter[str] = field(default_factory=Counter, init=False, compare=False, repr=False)

    def __post_init__(self) -> None:
        for setting in CLIPS:
            if getattr(self, setting) is None:
                object.__setattr__(self, setting, 0.0)
        super().__post_init__()

    def check(self) -> None:
        for setting in CLIPS:
            self.require(getattr(self, setting) >= 0, setting, "0 or more")

    def _fields(self) -> tuple[Field[Any], ...]:
        return tuple(entry for entry in super()._fields() if entry.init)

    def __bool__(self) -> bool:
        """Whether anything is on."""
        return any(getattr(self, setting) for setting in CLIPS)

    def clipped(self, writes: Sequence[Write]) -> list[Write]:
        """The same writes with merged keys and clipped gradients; the caller's arrays stay.

        Raises:
            KeyListError, ValueShapeError: keys or gradients do not fit their tables.
            NonFiniteError: NaN or infinity in a gradient, which clipping would hide.
        """
        if not self:
            return list(writes)
        found = [self._of_one(write) for write in writes]
        scale = self._scale(sum(square for _, _, square in found))
        return [(*where, grads if scale == 1 else grads * scale) for where, grads, _ in found]

    def _of_one(self, write: Write) -> tuple[tuple[Any, ...], Values, float]:
        """Where a write goes, its gradients clipped one by one, and their sum of squares."""
        if len(write) == 3:
            table, keys, given = write
            keylist = prepare(keys, table.name)
            grads = keylist.merge_grads(as_values(given, (keylist.size, table.dim), table.name))
            refuse_non_finite(table.name, grads, keylist.unique)
            clipped, square = self._clip(grads)
            return (table, keylist.unique), clipped, square
        dense, given = write
        array = as_values(given, dense.shape, dense.name)
        refuse_non_finite(dense.name, array)
        clipped, square = self._clip(array.reshape(1, -1))
        return (dense,), clipped.reshape(dense.shape), square

    def _clip(self, grads: Values) -> tuple[Values, float]:
        value, norm = (np.float32(most or math.inf) for most in (self.clip_value, self.clip_norm))
        grads = frozen(grads)
        if not (self.clip_value or self.clip_norm):
            return grads, float(clipped_total(grads, value, norm))
        out = np.empty(grads.shape, np.float32)
        rows, square = clip_rows(grads, value, norm, out)
        self.counts["rows"] += int(rows)
        return out, float(square)

    def _scale(self, square: float) -> np.float32:
        if not self.clip_global_norm:
            return np.float32(1)
        scale = scale_of(math.sqrt(square), self.clip_global_norm)
        self.counts["steps"] += int(scale < 1)
        return scale
