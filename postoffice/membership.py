"""Who has come, who is missing, who has gone: the scheduler's book, without sockets or clock.

Ranks: a node that asks for a rank gets it when it is free; the others are numbered in the order
of their addresses, so that the same addresses get the same ranks whatever the order of arrival.

Source: ps-lite, src/van.cc (ProcessAddNodeCommandAtScheduler), whose sort is no strict order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from enum import Enum

from postoffice.errors import RegistrationError
from postoffice.node import Group, Node, Role, node_name


class Phase(Enum):
    """Where a cluster is in its life."""

    GATHERING = "gathering"  # nodes are registering
    RUNNING = "running"  # all are there
    STOPPING = "stopping"  # workers have finished; servers and dispatchers say goodbye
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Registration:
    """What a node says when it comes."""

    role: Role
    rank: int | None  # the rank it would like
    address: str
    incarnation: int


class Membership:
    """The nodes of a cluster, from the first registration to the last goodbye.

    Args:
        expected: how many nodes of each role make the cluster complete.
        scheduler: the scheduler's own entry.
    """

    def __init__(self, expected: Mapping[Role, int], scheduler: Node) -> None:
        self.expected = {role: count for role, count in expected.items() if count}
        self.phase = Phase.GATHERING
        self.epoch = 0
        self.nodes: dict[int, Node] = {scheduler.id: scheduler}
        self.gone: set[int] = set()
        self.failure: str | None = None
        self._waiting: dict[tuple[str, int], Registration] = {}

    def register(self, request: Registration) -> bool:
        """Note a node; True when this makes the cluster complete.

        Raises:
            RegistrationError: there is no room for it; the text says what to do.
        """
        identity = (request.address, request.incarnation)
        if identity in self._waiting:
            return False  # a repeat
        if self.phase is not Phase.GATHERING:
            raise RegistrationError(
                f"a {request.role} at {request.address} comes too late: the cluster is "
                f"{self.phase.value}; start it before the others or raise [cluster] "
                f"{request.role}s"
            )
        present = [r for r in self._waiting.values() if r.role is request.role]
        wanted = self.expected.get(request.role, 0)
        if len(present) >= wanted:
            raise RegistrationError(
                f"a {request.role} at {request.address} is one too many: [cluster] "
                f"{request.role}s = {wanted}"
            )
        self._check_rank(request, present, wanted)
        self._waiting[identity] = request
        if any(self.missing().values()):
            return False
        self._seat_all()
        return True

    @staticmethod
    def _check_rank(request: Registration, present: list[Registration], wanted: int) -> None:
        if request.rank is None:
            return
        if not 0 <= request.rank < wanted:
            raise RegistrationError(
                f"a {request.role} asks for rank {request.rank}, but there are {wanted}: 0 to "
                f"{wanted - 1}"
            )
        for other in present:
            if other.rank == request.rank:
                raise RegistrationError(
                    f"two {request.role}s ask for rank {request.rank}: {other.address} and "
                    f"{request.address}; is the program started twice?"
                )

    def _seat_all(self) -> None:
        for role, count in self.expected.items():
            requests = [r for r in self._waiting.values() if r.role is role]
            seats = {r.rank: r for r in requests if r.rank is not None}
            others = sorted((r for r in requests if r.rank is None), key=lambda r: r.address)
            free = (rank for rank in range(count) if rank not in seats)
            seats.update(dict(zip(free, others, strict=True)))
            for rank, request in seats.items():
                assert rank is not None
                node = Node(role, rank, request.address, request.incarnation)
                self.nodes[node.id] = node
        self.phase = Phase.RUNNING
        self.epoch += 1

    def node_of(self, address: str, incarnation: int) -> Node | None:
        """The entry of a registered node, by what it said."""
        for node in self.nodes.values():
            if (node.address, node.incarnation) == (address, incarnation):
                return node
        return None

    def waiting_addresses(self) -> list[str]:
        """Where the nodes listen that have registered."""
        return [address for address, _ in self._waiting]

    def missing(self) -> dict[Role, int]:
        """How many nodes of each role have not come."""
        count = dict.fromkeys(self.expected, 0)
        for request in self._waiting.values():
            count[request.role] += 1
        return {role: wanted - count[role] for role, wanted in self.expected.items()}

    def members(self, group: Group) -> set[int]:
        """Ids of the nodes in `group` that have not gone."""
        return {
            node.id
            for node in self.nodes.values()
            if group.holds(node.role) and node.id not in self.gone
        }

    def goodbye(self, node: int, failure: str | None = None) -> bool:
        """Note that a node goes; True when the cluster's phase changes because of it.

        With the last worker's goodbye, or with any `failure`, the cluster is stopping; with the
        last goodbye of all it has stopped.
        """
        if node not in self.nodes:
            return False
        self.gone.add(node)
        before = self.phase
        if failure is not None and self.failure is None:
            self.failure = f"{node_name(node)} failed: {failure}"
        if self.phase is Phase.RUNNING and (self.failure or not self.members(Group.WORKERS)):
            self.phase = Phase.STOPPING
        if self.phase is Phase.STOPPING and not self.members(Group.ALL & ~Group.SCHEDULER):
            self.phase = Phase.STOPPED
        return self.phase is not before

    def describe_missing(self) -> str:
        """For people, such as `1 server, 2 workers`."""
        return ", ".join(
            f"{count} {role}{'s' if count > 1 else ''}"
            for role, count in self.missing().items()
            if count
        )

    def validate(self) -> None:
        """Check that the book is consistent."""
        assert self.gone <= self.nodes.keys()
        assert all(count >= 0 for count in self.missing().values())
        for key, node in self.nodes.items():
            assert key == node.id
        if self.phase is not Phase.GATHERING:
            assert not any(self.missing().values())
