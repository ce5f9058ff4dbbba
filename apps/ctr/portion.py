"""What one worker did, and what becomes of several."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from apps.ctr.metrics import row_losses
from apps.ctr.progress import Step


@dataclass
class Portion:
    """What one worker did, as it is gathered at rank 0; losses are those of the last epoch."""

    rank: int = 0
    rows: int = 0
    seconds: float = 0.0
    epoch: int = 0
    epoch_rows: int = 0
    epoch_loss: float = 0.0
    clicks: int = 0
    skipped: int = 0  # samples that were left out, of all epochs
    clipped_rows: int = 0  # by this worker, see `kv.clipping`
    clipped_steps: int = 0
    step_seconds: dict[str, float] = field(default_factory=dict)
    labels: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))
    scores: NDArray[np.float32] = field(default_factory=lambda: np.empty(0, np.float32))

    def add(self, step: Step) -> None:
        """A step was taken."""
        self.rows += len(step.labels)
        self.skipped += step.skipped
        self.clicks += int(np.count_nonzero(step.labels))
        if step.epoch < self.epoch:
            return  # a piece of an epoch before, which another worker has left
        if step.epoch > self.epoch:
            self.epoch, self.epoch_rows, self.epoch_loss = step.epoch, 0, 0.0
        self.epoch_rows += len(step.labels)
        self.epoch_loss += float(row_losses(step.labels, step.scores).sum())

    def absorb(self, other: Portion) -> None:
        """Take over what another worker did, who is not here any more."""
        if other.epoch > self.epoch:
            self.epoch, self.epoch_rows, self.epoch_loss = other.epoch, 0, 0.0
        if other.epoch == self.epoch:
            self.epoch_rows += other.epoch_rows
            self.epoch_loss += other.epoch_loss
        self.rows, self.clicks = self.rows + other.rows, self.clicks + other.clicks
        self.skipped += other.skipped
        self.clipped_rows += other.clipped_rows
        self.clipped_steps += other.clipped_steps
        self.seconds = max(self.seconds, other.seconds)

    def as_message(self) -> dict[str, Any]:
        """In types that travel."""
        return dict(vars(self))
