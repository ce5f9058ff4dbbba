"""Which process meets which fault, and when: decisions only, no process and no clock.

What the plan leaves open the seed decides: each clause without a rank draws from a generator of its
own, so that the same plan and seed hit the same nodes, whatever else the plan has.
"""

from __future__ import annotations

import heapq
import itertools
import random
from collections import Counter
from collections.abc import Collection, Mapping
from dataclasses import dataclass

from postoffice.node import Role
from pslite.chaos.plan import Act, Plan, ProcessFault
from pslite.lifecycle import NodeName


@dataclass(frozen=True)
class Deed:
    """Something to be done to a process now.

    Args:
        act: what.
        node: to whom; None where no process of that role runs.
        clause: because of what, as the plan has it.
    """

    act: Act
    node: NodeName | None
    clause: str


class Director:
    """Follows a plan.

    Args:
        plan: what is to happen.
        seed: of what it leaves open.
        counts: how many nodes each role has at first.
    """

    def __init__(self, plan: Plan, seed: int, counts: Mapping[Role, int]) -> None:
        self._plan, self._seed, self._counts = plan, seed, counts
        self._seen: Counter[str] = Counter()
        self._due: list[tuple[float, int, ProcessFault, Deed | None]] = []
        self._number = itertools.count()

    def happened(self, event: str, now: float) -> None:
        """One of `plan.EVENTS` has happened. `start` is that all nodes have met."""
        self._seen[event] += 1
        for fault in self._plan.processes:
            moment = fault.moment
            if (moment.event or "start") == event and moment.nth == self._seen[event]:
                self._add(now + moment.after, fault)

    @property
    def awaits_event(self) -> bool:
        """Whether something is to follow at once when it happens."""
        return any(
            fault.moment.event is not None and self._seen[fault.moment.event] < fault.moment.nth
            for fault in self._plan.processes
        )

    def next_due(self) -> float | None:
        """When `due` has something, if nothing else happens."""
        return self._due[0][0] if self._due else None

    def due(self, now: float, alive: Collection[NodeName]) -> list[Deed]:
        """What is to be done now, with the processes that run."""
        deeds = []
        while self._due and self._due[0][0] <= now:
            _, _, fault, deed = heapq.heappop(self._due)
            deed = deed or Deed(fault.act, self._choose(fault, alive), str(fault))
            deeds.append(deed)
            if fault.duration is not None and deed.act == "stop" and deed.node is not None:
                self._add(now + fault.duration, fault, Deed("cont", deed.node, str(fault)))
        return deeds

    def _add(self, at: float, fault: ProcessFault, deed: Deed | None = None) -> None:
        heapq.heappush(self._due, (at, next(self._number), fault, deed))

    def _choose(self, fault: ProcessFault, alive: Collection[NodeName]) -> NodeName | None:
        role, rank = fault.who.role, fault.who.rank
        there = [1 + name.rank for name in alive if name.role == role and name.rank is not None]
        most = max([self._counts[role], *there])  # more may have come meanwhile
        ranks = list(range(most)) if rank is None else [rank]
        clause = self._plan.clauses.index(fault)
        random.Random(f"{self._seed}/{clause}").shuffle(ranks)
        names = (NodeName(role, rank) for rank in ranks)
        return next((name for name in names if name in alive), None)
