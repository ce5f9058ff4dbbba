"""The ini section `[chaos]`: faults on purpose."""

from __future__ import annotations

from dataclasses import dataclass

from postoffice.config import ClusterConfig
from postoffice.node import Role
from pslite.chaos.parsing import PlanError, parse_plan
from pslite.chaos.plan import Plan
from van.errors import ConfigError


@dataclass(frozen=True, kw_only=True)
class ChaosConfig:
    """What is to go wrong in a job of `pslite local`, to see what comes of it.

    Raises:
        ConfigError: the plan cannot be read; the text shows where.
    """

    plan: str = ""  # such as: kill server@20s, drop 2%; empty: nothing on purpose
    seed: int = 1  # of what the plan leaves to chance

    def __post_init__(self) -> None:
        if not 0 <= self.seed < 2**63:
            problem = f"expected 0 to 2^63-1, got {self.seed}"
            raise ConfigError(problem, section="chaos", key="seed")
        try:
            parse_plan(self.plan)
        except PlanError as error:
            raise ConfigError(str(error), section="chaos", key="plan") from None

    def check(self, cluster: ClusterConfig) -> None:
        """See that every node that the plan names is one of the job's.

        Raises:
            ConfigError: one is not; the text shows where.
        """
        try:
            parse_plan(self.plan, counts_of(cluster))
        except PlanError as error:
            raise ConfigError(str(error), section="chaos", key="plan") from None

    @property
    def parsed(self) -> Plan:
        """The plan as objects."""
        return parse_plan(self.plan)


def counts_of(cluster: ClusterConfig) -> dict[Role, int]:
    """How many nodes of each role a job begins with."""
    return {
        Role.SCHEDULER: 1,
        Role.SERVER: cluster.servers,
        Role.WORKER: cluster.workers,
        Role.DISPATCHER: cluster.dispatchers,
    }
