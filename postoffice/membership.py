"""Who is in the cluster, who is dead, who has gone: the scheduler's book, without sockets or clock.

A node's *seat* is its role and rank. When the node dies its life is fenced, and another process may
take the seat: the same id with a larger incarnation, which the scheduler gives. Each change raises
the epoch.

Source: ps-lite, src/van.cc (ProcessAddNodeCommandAtScheduler, the recovery branch); there the
former self of a node is not fenced.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any, Literal

from postoffice.errors import RegistrationError
from postoffice.failure import FailurePolicy, Verdict
from postoffice.gathering import Gathering, Registration
from postoffice.node import SCHEDULER_ID, Group, Node, Role, node_id, node_name, role_and_rank
from postoffice.view import ClusterView


class Phase(Enum):
    """Where a cluster is in its life."""

    GATHERING = "gathering"  # nodes are registering
    RUNNING = "running"  # all are there
    STOPPING = "stopping"  # workers have finished; servers and dispatchers say goodbye
    STOPPED = "stopped"


@dataclass(frozen=True, slots=True)
class Change:
    """Something that has happened to a node, for those who must act on it."""

    kind: Literal["joined", "died", "left"]
    node: Node


class Membership:
    """The nodes of a cluster, from the first registration to the last goodbye.

    Args:
        expected: how many nodes of each role make the cluster complete.
        scheduler: the scheduler's own entry; incarnations of others are larger than its own.
        policy: what follows from a death.

    Attributes:
        nodes: by id, as in `ClusterView`: those who have gone stay, those who are dead do not.
        awaited: seats of dead nodes that somebody restarts; by id, since when.
        deaths: by id, why the node of a seat that nobody has is dead.
        lives: by id, how many nodes have had that seat.
        changes: what has happened since the caller last emptied it.
        ways: as in `ClusterView`.
        is_covered: whether a server's slots have a living backup.
        may_grow: whether a new rank of a role may be made.
    """

    def __init__(
        self, expected: Mapping[Role, int], scheduler: Node, policy: FailurePolicy | None = None
    ) -> None:
        self.expected = {role: count for role, count in expected.items() if count}
        self.policy = policy or FailurePolicy()
        self.phase = Phase.GATHERING
        self.epoch = 0
        self.nodes: dict[int, Node] = {scheduler.id: scheduler}
        self.gone: set[int] = set()
        self.fenced: dict[int, int] = {}
        self.awaited: dict[int, float] = {}
        self.deaths: dict[int, str] = {}
        self.lives: dict[int, int] = {}
        self.failure: str | None = None
        self.changes: list[Change] = []
        self.ways: dict[int, int] = {}
        self.is_covered: Callable[[int], bool] = lambda node: False
        self.may_grow: Callable[[Role], bool] = lambda role: False
        self.last_incarnation = scheduler.incarnation
        self._nonces: dict[int, int] = {}
        self._gathering = Gathering(self.expected)

    # -- coming -----------------------------------------------------------------------------

    def register(self, request: Registration, now: float = 0.0) -> bool:
        """Note a node; True when the table of nodes changes because of it.

        Raises:
            RegistrationError: there is no room for it; the text says what to do.
        """
        if self.node_of(request.address, request.nonce) is not None:
            return False  # a repeat
        if self.phase is Phase.GATHERING:
            if self._gathering.register(request, now):
                for rank, guest in self._gathering.seats():
                    self._seat(rank, guest)
                self.phase = Phase.RUNNING
                self.epoch += 1
                return True
            return False
        if self.phase is not Phase.RUNNING:
            raise self._too_late(request)
        rank = self._rank_for(request)
        seat = node_id(request.role, rank)
        if seat in self.gone:
            self._clear(seat)
        elif seat in self.nodes:
            self._bury(seat, f"another process took its place, {request.address}")
        self._seat(rank, request)
        self.epoch += 1
        return True

    def _rank_for(self, request: Registration) -> int:
        """The seat of one that comes when the cluster runs."""
        role, ranks = request.role, self.seats(request.role)
        new = len(ranks)
        if request.rank is None:
            empty = [rank for rank in ranks if self._is_empty(node_id(role, rank))]
            if empty:
                return empty[0]
        elif 0 <= request.rank < new:
            seat = node_id(role, request.rank)
            if self._is_empty(seat) or self._may_replace(seat):
                return request.rank
            raise self._too_late(request)
        if request.rank in (None, new) and self.may_grow(role):
            return new
        raise self._too_late(request)

    def _is_empty(self, seat: int) -> bool:
        """Whether nobody has that seat; one that was left is for who grows the cluster again."""
        return seat not in self.nodes or (seat in self.gone and self.may_grow(_role_of(seat)))

    def _may_replace(self, seat: int) -> bool:
        """Whether one that comes for the seat of a living node may be its next life."""
        can_return = self.policy.may_return(_role_of(seat)) or self.is_covered(seat)
        return seat not in self.gone and can_return

    def _too_late(self, request: Registration) -> RegistrationError:
        return RegistrationError(
            f"{request} comes too late: the cluster is {self.phase.value}; start it before the "
            f"others or raise [cluster] {request.role}s"
        )

    def _seat(self, rank: int, request: Registration) -> None:
        self.last_incarnation = max(self.last_incarnation, request.incarnation)
        if not request.incarnation:
            self.last_incarnation += 1
        incarnation = request.incarnation or self.last_incarnation
        node = Node(request.role, rank, request.address, incarnation)
        self.nodes[node.id] = node
        self._nonces[node.id] = request.nonce
        self.lives[node.id] = self.lives.get(node.id, 0) + 1
        self.awaited.pop(node.id, None)
        self.deaths.pop(node.id, None)
        self.changes.append(Change("joined", node))

    def adopt(self, node: Node, epoch: int, now: float) -> bool:
        """Take in a node of a cluster that has lost its scheduler, with its id and incarnation.

        True when this makes the cluster complete again.
        """
        if self.phase is not Phase.GATHERING:
            return False
        self.epoch = max(self.epoch, epoch)
        request = Registration(node.role, node.rank, node.address, 0, node.incarnation)
        return self.register(request, now)

    def node_of(self, address: str, nonce: int) -> Node | None:
        """The entry of a registered node, by what it said."""
        for node in self.nodes.values():
            if node.address == address and self._nonces.get(node.id) == nonce:
                return node
        return None

    def nonce_of(self, node: int) -> int:
        """What a node said to be told from others."""
        return self._nonces.get(node, 0)

    def end(self, nonce: int, why: str, now: float) -> None:
        """The process that came with `nonce` has ended: only its life is dead, if it has one."""
        if self.phase is Phase.GATHERING:
            self._gathering.forget(nonce)
        for node in self.of_nonce(nonce):
            self.die(node.id, why, now)

    def of_nonce(self, nonce: int) -> list[Node]:
        """The seats of the process that came with `nonce`: one, or none."""
        return [self.nodes[node] for node, its in self._nonces.items() if its == nonce]

    def waiting_addresses(self) -> list[str]:
        """Where the nodes listen that have registered."""
        return self._gathering.addresses()

    def forget_silent(self, now: float) -> list[Registration]:
        """Those who registered and ended before all had come."""
        return self._gathering.forget_silent(now) if self.phase is Phase.GATHERING else []

    def missing(self) -> dict[Role, int]:
        """How many nodes of each role have not come."""
        return self._gathering.missing()

    def describe_missing(self) -> str:
        """For people, such as `1 server, 2 workers`."""
        return _described(self.missing())

    # -- being there ------------------------------------------------------------------------

    def seats(self, role: Role) -> list[int]:
        """Ranks of `role` that somebody has or had."""
        ids = self.nodes.keys() | self.fenced.keys()
        most = self.expected.get(role, 0)
        while node_id(role, most) in ids:
            most += 1
        return list(range(most))

    def members(self, group: Group) -> set[int]:
        """Ids of the nodes in `group` that have not gone, and of those that are awaited."""
        alive = {
            node.id
            for node in self.nodes.values()
            if group.holds(node.role) and node.id not in self.gone
        }
        return alive | {node for node in self.awaited if group.holds(_role_of(node))}

    def view(self, map_version: int = 0, map_blob: bytes = b"") -> ClusterView:
        """What all may know."""
        return ClusterView(
            self.epoch,
            dict(self.nodes),
            dict(self.fenced),
            frozenset(self.gone),
            map_version,
            map_blob,
            dict(self.ways),
        )

    def redirect(self, ways: Mapping[int, int]) -> None:
        """Workers are to go through other dispatchers than before: a new epoch.

        Args:
            ways: as in `ClusterView`, all of them.
        """
        if dict(ways) != self.ways:
            self.ways = dict(ways)
            self.epoch += 1

    # -- going ------------------------------------------------------------------------------

    def goodbye(self, node: int, failure: str | None = None, now: float = 0.0) -> None:
        """Note that a node goes; with a `failure` it counts as dead.

        With the last worker's goodbye the cluster is stopping; with the last goodbye of all it has
        stopped.
        """
        if node not in self.nodes or node in self.gone or node == SCHEDULER_ID:
            return
        if failure is not None:
            self._die(node, f"failed: {failure}", now)
        else:
            self.gone.add(node)
            self.epoch += 1
            self.changes.append(Change("left", self.nodes[node]))
        self._move_on()

    def die(self, node: int, why: str, now: float) -> None:
        """A node is dead: its life is fenced, and the policy says what follows.

        Args:
            node: its id.
            why: for people, such as `was silent for 10 s`.
            now: the time.
        """
        if node in self.nodes and node not in self.gone and node != SCHEDULER_ID:
            self._die(node, why, now)
            self._move_on()

    def _die(self, node: int, why: str, now: float) -> None:
        role = self.nodes[node].role
        if self.phase is Phase.RUNNING:
            verdict = self.policy.verdict(role, self.is_covered(node))
            if verdict is Verdict.STOP and self.failure is None:
                self.failure = f"{node_name(node)} {why}"
            elif verdict is Verdict.AWAIT:
                self.awaited[node] = now
        self._bury(node, why)
        self.epoch += 1

    def _bury(self, node: int, why: str) -> None:
        self.changes.append(Change("died", self._clear(node)))
        self.deaths[node] = why

    def _clear(self, node: int) -> Node:
        """Nobody has that seat any more, and the life that had it is not listened to."""
        former = self.nodes.pop(node)
        self.gone.discard(node)
        self.fenced[node] = former.incarnation
        self._nonces.pop(node, None)
        return former

    def check_awaited(self, now: float) -> None:
        """End the job if one that is awaited has not come in time."""
        limit = self.policy.restart_timeout
        for node, since in self.awaited.items():
            if self.failure is None and now - since >= limit:
                self.failure = (
                    f"{node_name(node)} {self.deaths[node]}, and nobody has restarted it within "
                    f"{limit:g} s ([cluster] restart_timeout)"
                )
        self._move_on()

    def _move_on(self) -> None:
        if self.phase is Phase.RUNNING and not self.members(Group.WORKERS):
            if self.failure is None and not any(_role_of(n) is Role.WORKER for n in self.gone):
                dead = (n for n in self.deaths if _role_of(n) is Role.WORKER)
                self.failure = "; ".join(f"{node_name(n)} {self.deaths[n]}" for n in dead) or None
            self.phase = Phase.STOPPING
        if self.phase is Phase.RUNNING and self.failure:
            self.phase = Phase.STOPPING
        if self.phase is Phase.STOPPING:
            self.awaited.clear()
            if not self.members(Group.ALL & ~Group.SCHEDULER):
                self.phase = Phase.STOPPED

    # -- another scheduler ------------------------------------------------------------------

    def pack(self) -> dict[str, Any]:
        """All that another scheduler must know, as msgpack types."""
        return {
            "expected": {role.value: count for role, count in self.expected.items()},
            "phase": self.phase.value,
            "failure": self.failure,
            "epoch": self.epoch,
            "nodes": [
                [*node.pack(), self.nonce_of(node.id)]
                for node in self.nodes.values()
                if node.id != SCHEDULER_ID
            ],
            "gone": sorted(self.gone),
            "fenced": self.fenced,
            "awaited": self.awaited,
            "deaths": self.deaths,
            "lives": self.lives,
            "last_incarnation": self.last_incarnation,
            "ways": self.ways,
        }

    def restore(self, packed: dict[str, Any], now: float) -> None:
        """Go on from what another scheduler packed, as its next epoch.

        Raises:
            KeyError, TypeError, ValueError: it was no such thing, or another cluster's.
        """
        expected = {Role(role): count for role, count in packed["expected"].items()}
        if expected != self.expected:
            raise ValueError(f"it is of a cluster of {_described(expected)}")
        entries = [(Node.unpack(entry[:4]), int(entry[4])) for entry in packed["nodes"]]
        self.nodes |= {node.id: node for node, _ in entries}
        self._nonces = {node.id: nonce for node, nonce in entries}
        self.gone, self.fenced = set(packed["gone"]), dict(packed["fenced"])
        self.awaited = dict.fromkeys(packed["awaited"], now)
        self.deaths, self.lives = dict(packed["deaths"]), dict(packed["lives"])
        self.last_incarnation = max(self.last_incarnation, int(packed["last_incarnation"]))
        self.failure, self.ways = packed["failure"], dict(packed.get("ways", {}))
        self.phase, self.epoch = Phase(packed["phase"]), int(packed["epoch"]) + 1

    def validate(self) -> None:
        """Check that the book is consistent."""
        assert self.gone <= self.nodes.keys()
        assert all(count >= 0 for count in self.missing().values())
        for key, node in self.nodes.items():
            assert key == node.id
            assert node.incarnation > self.fenced.get(key, -1), "a fenced life has a seat"
            assert node.incarnation <= self.last_incarnation
        assert not self.awaited.keys() & self.nodes.keys()
        if self.phase is not Phase.GATHERING:
            assert self.epoch > 0


def _role_of(node: int) -> Role:
    return role_and_rank(node)[0]


def _described(counts: Mapping[Role, int]) -> str:
    return ", ".join(
        f"{count} {role}{'s' if count > 1 else ''}" for role, count in counts.items() if count
    )
