"""What all of a push does to each of its steps: a scale, a smaller rate, a corrected gradient."""

from __future__ import annotations

from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray


class Delay(NamedTuple):
    """Of one push.

    Args:
        rate: what the learning rate is multiplied with.
        seen: the weights that the gradients were computed with, float32 (n, dim), NaN where that is
            not known; None: gradients are not corrected.
        lam: how much they are (`kv.kernels.delay`).
        scale: what brings all gradients of the push to the norm allowed.
    """

    rate: float = 1.0
    seen: NDArray[np.float32] | None = None
    lam: np.float32 = np.float32(0)
    scale: np.float32 = np.float32(1)

    def take(self, places: slice | NDArray[Any]) -> Delay:
        """That of the rows at `places` of the push."""
        return self if self.seen is None else self._replace(seen=self.seen[places])


def part_of(delay: Delay | None, places: slice | NDArray[Any]) -> Delay | None:
    """`take` of what may be absent."""
    return None if delay is None else delay.take(places)
