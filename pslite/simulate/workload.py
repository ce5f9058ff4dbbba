"""What the workers of a simulation do: which keys they use, and how long they compute.

Both depend on the seed, the worker and the step alone, so all modes have the same work to do.
"""

from __future__ import annotations

import math
from dataclasses import dataclass
from functools import cached_property

import numpy as np
from numpy.typing import NDArray

from kv.consistency.settings import Consistency
from kv.optimizers import SGD
from kv.spec import TableSpec
from pslite.simulate.config import SimulateConfig, mode_of

TABLE = "simulated"
_SPACE = 16  # keys that there are, for each that a worker uses


@dataclass(frozen=True)
class Workload:
    """One simulation: so many workers under one mode.

    Args:
        config: all there is to know of the cluster and the work.
        workers: how many.
        mode: an entry of `[simulate] modes`.
        seed: of this one.
    """

    config: SimulateConfig
    workers: int
    mode: str
    seed: int

    @property
    def consistency(self) -> Consistency:
        """The mode's settings."""
        return mode_of(self.mode)

    @cached_property
    def spec(self) -> TableSpec:
        """The one table."""
        spec = TableSpec.sparse(TABLE, self.config.dim, optimizer=SGD(lr=0.1))
        return spec.resolved(self.consistency, 1)

    @cached_property
    def times(self) -> NDArray[np.float64]:
        """Seconds that each worker computes in each step, shape (workers, steps)."""
        return np.stack([self._times_of(rank) for rank in range(self.workers)])

    def _times_of(self, rank: int) -> NDArray[np.float64]:
        config, chance = self.config, np.random.default_rng([self.seed, rank])
        slow = chance.random(config.steps) < config.straggler_share
        # Log-normal of mean 1 with the wanted deviation.
        variance = math.log1p(config.jitter**2)
        spread = chance.lognormal(-variance / 2, math.sqrt(variance), config.steps)
        return config.compute * spread * np.where(slow, config.straggler_factor, 1.0)

    def keys_of(self, rank: int) -> NDArray[np.uint64]:
        """The keys that a worker uses in all its steps, increasing."""
        chance = np.random.default_rng([self.seed, rank, 1])
        count = self.config.keys
        return np.sort(chance.choice(_SPACE * count, count, replace=False)).astype(np.uint64)
