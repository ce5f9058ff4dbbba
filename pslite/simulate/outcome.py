"""What a simulation found."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field


@dataclass
class Outcome:
    """Times and counts of one simulation, or of several like it with other seeds.

    Attributes:
        nodes: `real`, or `cores` where the modes alone were simulated.
        computing: seconds that each worker computed.
        lasting: seconds from the start to the end of each worker's last computation.
        staleness: by staleness, how many pushes counted with it at one server.
        dropped: pushes that never counted, at one server.
        messages, nbytes: between the nodes, in all.
    """

    mode: str
    workers: int
    nodes: str
    steps: int
    computing: Sequence[float]
    lasting: Sequence[float]
    staleness: Counter[int] = field(default_factory=Counter)
    dropped: int = 0
    messages: int = 0
    nbytes: int = 0

    @property
    def idle_share(self) -> float:
        """The share of the workers' time in which they did not compute, until each one's end."""
        return 1.0 - sum(self.computing) / sum(self.lasting)

    @property
    def steps_per_second(self) -> float:
        """The workers' rates together, each until its own end: who ends last has no company."""
        return sum(self.steps / seconds for seconds in self.lasting)


def mean_of(counts: Counter[int]) -> float:
    """The mean of what was counted; 0 of nothing."""
    total = counts.total()
    return sum(value * count for value, count in counts.items()) / total if total else 0.0


def quantile(counts: Counter[int], share: float) -> int:
    """The least value that at least `share` of what was counted does not exceed; 0 of nothing.

    >>> quantile(Counter({0: 98, 5: 1, 9: 1}), 0.99), quantile(Counter({3: 1}), 0.0)
    (5, 3)
    """
    wanted, seen = share * counts.total(), 0
    for value in sorted(counts):
        seen += counts[value]
        if seen >= wanted:
            return value
    return max(counts, default=0)


@dataclass
class Repeated:
    """The same simulation with several seeds."""

    outcomes: list[Outcome]

    @property
    def first(self) -> Outcome:
        return self.outcomes[0]

    @property
    def staleness(self) -> Counter[int]:
        """Of all together."""
        return sum((one.staleness for one in self.outcomes), Counter[int]())

    @property
    def idle_share(self) -> float:
        return mean(one.idle_share for one in self.outcomes)

    @property
    def steps_per_second(self) -> float:
        return mean(one.steps_per_second for one in self.outcomes)


def mean(values: Iterable[float]) -> float:
    """The mean of at least one value."""
    known = list(values)
    return sum(known) / len(known)
