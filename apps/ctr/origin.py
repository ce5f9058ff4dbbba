"""Where a batch's rows came from, and which of them a number that is none came from.

Nothing is kept for it: a window knows the line of its first row, and a batch which rows of which
windows it is.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np
from numpy.typing import NDArray

from apps.ctr.batch import Block, Rows
from apps.ctr.dataset import Batch

Floats = NDArray[np.float32]
Mask = NDArray[np.bool_]

SHOWN = 3  # lines that are named


class Origin(NamedTuple):
    """Rows `start` to `stop` of a batch of a file."""

    file: str
    batch: Batch
    start: int
    stop: int

    def lines(self, rows: NDArray[np.int64]) -> NDArray[np.int64]:
        """Lines of the file, from 1, of these rows."""
        return self.batch.lines(self.start, self.stop)[rows]

    def describe(self, rows: NDArray[np.int64]) -> str:
        """Such as `sample line 10432 of part-0003.parquet`."""
        lines = self.lines(rows).tolist()
        named = ", ".join(map(str, lines[:SHOWN]))
        more = f" and {len(lines) - SHOWN} more" if len(lines) > SHOWN else ""
        return f"sample line{'s' * (len(lines) > 1)} {named}{more} of {Path(self.file).name}"


class Suspects(NamedTuple):
    """What a step was made of, looked at when a gradient of it is no number.

    Args:
        rows: of the step.
        inputs: by block float32 (n, width), what the network was given.
        grads: by block float32 (n, width), the loss's gradients with respect to that, or None.
        scores: float32 (n,), what the network gave.
        key: whose gradient it is; None: a parameter's of the network.
    """

    rows: Rows
    inputs: Mapping[str, Floats]
    grads: Mapping[str, Floats | None]
    scores: Floats
    key: int | None

    def culprits(self) -> NDArray[np.int64]:
        """The rows that it came from, as nearly as can be said; all of them if nothing tells.

        A row whose input is no number is to blame before those whose gradients are none: some
        networks mix rows. A key's gradient may be too large though that of each row is not.
        """
        count = len(self.rows)
        grads = [grad for grad in self.grads.values() if grad is not None]
        for arrays in (list(self.inputs.values()), grads, [self.scores.reshape(count, -1)]):
            found = np.zeros(count, np.bool_)
            for array in arrays:
                found |= ~np.isfinite(array).all(axis=1)
            if found.any():
                return np.flatnonzero(found)
        found = self._with_key() if self.key is not None else np.ones(count, np.bool_)
        return np.flatnonzero(found if found.any() else np.ones(count, np.bool_))

    def _with_key(self) -> Mask:
        found = np.zeros(len(self.rows), np.bool_)
        for block in self.rows.blocks.values():
            places = np.flatnonzero(block.keys == np.uint64(self.key or 0))
            found[np.searchsorted(block.starts, places, side="right") - 1] = True
        return found


def bad_feature(block: Block, row: int, names: Sequence[str]) -> str:
    """The first dense feature of a row that is no number, as `NAME is inf`; or nothing."""
    wrong = np.flatnonzero(~np.isfinite(block.dense[row]))
    return f"{names[wrong[0]]} is {block.dense[row, wrong[0]]}" if len(wrong) else ""
