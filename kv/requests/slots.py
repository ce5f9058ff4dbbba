"""Lists of slots."""

from __future__ import annotations

from collections.abc import Collection

import numpy as np
from numpy.typing import NDArray

Slots = NDArray[np.int64]
"""Slots touched, strictly rising."""


def no_slots() -> Slots:
    return np.empty(0, np.int64)


def among(slots: Slots, some: Collection[int]) -> NDArray[np.bool_]:
    """Which of `slots` are in `some`: bool (len(slots),)."""
    if not some:
        return np.zeros(slots.size, np.bool_)
    return np.isin(slots, np.fromiter(some, np.int64, len(some)))
