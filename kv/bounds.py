"""The bounds of a table's weights as numbers that its storage can hold."""

from __future__ import annotations

import math

import numpy as np

from kv.errors import SettingError
from kv.optimizers import Optimizer

FORMATS: dict[str, type[np.float32] | type[np.float16]] = {
    "float32": np.float32,
    "float16": np.float16,
}


def stored_bounds(optimizer: Optimizer, storage: str) -> tuple[np.float32, np.float32] | None:
    """The least and the greatest weight that a table may store; None: it has no bounds.

    They are rounded inwards, so that no rounding of a weight between them leaves `weight_bounds`.

    Args:
        storage: `float32` or `float16`.
    Raises:
        SettingError: no stored number lies within `weight_bounds`.
    """
    if optimizer.weight_bounds is None:
        return None
    low, high = optimizer.weight_bounds
    least = -math.inf if low is None else _rounded(low, FORMATS[storage], math.inf)
    greatest = math.inf if high is None else _rounded(high, FORMATS[storage], -math.inf)
    if least > greatest or math.inf in (least, -greatest):
        problem = f"no {storage} lies within weight_bounds {optimizer.weight_bounds}"
        raise SettingError(f"optimizer {optimizer.name}", problem)
    return np.float32(least), np.float32(greatest)


def _rounded(bound: float, kind: type[np.float32] | type[np.float16], towards: float) -> float:
    """The number of that kind nearest to `bound` on the side that is given by ±infinity."""
    most = float(np.finfo(kind).max)
    nearest = kind(min(max(bound, -most), most))
    is_past = float(nearest) < bound if towards > 0 else float(nearest) > bound
    with np.errstate(over="ignore", under="ignore"):  # no number of that kind, or a tiny one
        return float(np.nextafter(nearest, kind(towards)) if is_past else nearest)
