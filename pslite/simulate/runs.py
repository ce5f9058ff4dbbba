"""All simulations of a section `[simulate]`, one after the other."""

from __future__ import annotations

from collections.abc import Callable

from pslite.simulate.config import SimulateConfig
from pslite.simulate.cores import run_cores
from pslite.simulate.outcome import Outcome, Repeated
from pslite.simulate.workload import Workload


def simulate(
    config: SimulateConfig, tell: Callable[[int], None] = lambda steps: None
) -> list[Repeated]:
    """Each mode with each number of workers, by workers.

    Args:
        tell: hears of each step of each worker; `total_steps` there will be.
    Raises:
        ConfigError: messages are lost that nobody sends again.
    """
    config.check()
    return [
        Repeated(
            [
                run_one(Workload(config, workers, mode, config.seed + number), tell)
                for number in range(config.repeats)
            ]
        )
        for workers in config.workers
        for mode in config.modes
    ]


def run_one(work: Workload, tell: Callable[[int], None] = lambda steps: None) -> Outcome:
    """One simulation: of real nodes, where it has no more workers than `real_up_to`."""
    if work.workers > work.config.real_up_to:
        return run_cores(work, tell)
    from pslite.simulate.real import RealCluster  # Numba's kernels of the tables

    return RealCluster(work, tell).run()


def total_steps(config: SimulateConfig) -> int:
    """Steps of all workers of all simulations."""
    return sum(config.workers) * config.steps * len(config.modes) * config.repeats
