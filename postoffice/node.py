"""Who a node is: role, rank, id, address; and groups, which are sets of roles.

Source: ps-lite, include/ps/internal/postoffice.h (ids: scheduler 1, server 8 + 2·rank, worker
9 + 2·rank; groups: 1, 2, 4 and their sums). Dispatchers are ours: ids from 2^20 on, group 8.
"""

from __future__ import annotations

from dataclasses import dataclass
from enum import IntFlag, StrEnum
from typing import Any

from van.addresses import key_of, place_of

SCHEDULER_ID = 1
_FIRST_DISPATCHER = 1 << 20


class Role(StrEnum):
    """What a node does in the cluster."""

    SCHEDULER = "scheduler"
    SERVER = "server"
    WORKER = "worker"
    DISPATCHER = "dispatcher"


class Group(IntFlag):
    """A set of roles; a type of its own, so that it never stands where a node id does."""

    SCHEDULER = 1
    SERVERS = 2
    WORKERS = 4
    DISPATCHERS = 8
    ALL = 15

    def holds(self, role: Role) -> bool:
        """Whether nodes of `role` belong to this group."""
        return bool(self & _GROUP_OF[role])


_GROUP_OF = {
    Role.SCHEDULER: Group.SCHEDULER,
    Role.SERVER: Group.SERVERS,
    Role.WORKER: Group.WORKERS,
    Role.DISPATCHER: Group.DISPATCHERS,
}


def node_id(role: Role, rank: int) -> int:
    """The id of the node of `role` with `rank`.

    >>> node_id(Role.SERVER, 0), node_id(Role.WORKER, 3), node_id(Role.SCHEDULER, 0)
    (8, 15, 1)
    """
    if role is Role.SERVER:
        return 8 + 2 * rank
    if role is Role.WORKER:
        return 9 + 2 * rank
    if role is Role.DISPATCHER:
        return _FIRST_DISPATCHER + rank
    return SCHEDULER_ID


def role_and_rank(node: int) -> tuple[Role, int]:
    """The role and rank behind an id; the inverse of `node_id`.

    >>> role_and_rank(15)
    (<Role.WORKER: 'worker'>, 3)
    """
    if node == SCHEDULER_ID:
        return Role.SCHEDULER, 0
    if node >= _FIRST_DISPATCHER:
        return Role.DISPATCHER, node - _FIRST_DISPATCHER
    if node < 8:
        raise ValueError(f"{node} is no node's id")
    return (Role.WORKER, (node - 9) // 2) if node % 2 else (Role.SERVER, (node - 8) // 2)


def node_name(node: int) -> str:
    """How messages to people call a node, such as `server 1`."""
    try:
        role, rank = role_and_rank(node)
    except ValueError:
        return f"node {node}"
    return "scheduler" if role is Role.SCHEDULER else f"{role} {rank}"


@dataclass(frozen=True, slots=True)
class Node:
    """An entry of the node table."""

    role: Role
    rank: int
    address: str  # under CURVE with the node's key, see `van.addresses`
    incarnation: int

    @property
    def id(self) -> int:
        return node_id(self.role, self.rank)

    @property
    def place(self) -> str:
        """Its address without the key."""
        return place_of(self.address)

    @property
    def key(self) -> str:
        """The public key it has registered with; empty without CURVE."""
        return key_of(self.address)

    def pack(self) -> list[Any]:
        """As msgpack types."""
        return [self.role.value, self.rank, self.address, self.incarnation]

    @staticmethod
    def unpack(packed: Any) -> Node:
        """The inverse of `pack`; raises ValueError or TypeError on anything else."""
        role, rank, address, incarnation = packed
        if type(rank) is not int or type(address) is not str or type(incarnation) is not int:
            raise ValueError(f"{packed!r} is no entry of a node table")
        return Node(Role(role), rank, address, incarnation)

    def __str__(self) -> str:
        return f"{node_name(self.id)} at {self.place}"
