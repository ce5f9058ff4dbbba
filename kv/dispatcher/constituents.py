"""The pushes inside a merged push, as its header lists them.

Servers recognise each of them by its names, as if its worker had sent it; so a worker whose
dispatcher died may send it again.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import NamedTuple

from kv.errors import KVError
from postoffice.node import Role, role_and_rank
from van.message import Clock, Meta


class Constituent(NamedTuple):
    """One push: who made it, and the clocks that its gradients were computed with.

    clocks: by table, with the worker's step and (server, clock) pairs of its last pull.
    """

    sender: int
    incarnation: int
    app: int
    customer: int
    timestamp: int
    oldest: int
    clocks: tuple[Clock, ...]


def constituent_of(meta: Meta) -> Constituent:
    """A worker's push as an entry of a merged one."""
    return Constituent(
        meta.sender,
        meta.incarnation,
        meta.app,
        meta.customer,
        meta.timestamp,
        meta.oldest,
        meta.clocks,
    )


def constituents_of(meta: Meta) -> Iterator[Constituent]:
    """The pushes inside a request; none, if it is a worker's own."""
    for packed in meta.constituents:
        yield Constituent(*packed)


def rank_of(meta: Meta) -> int:
    """The rank of the worker that a dispatcher's request counts for: of several the lowest.

    Raises:
        KVError: the request names no worker.
    """
    ranks = [role_and_rank(one[0]) for one in meta.constituents]
    if not ranks:
        named = meta.body.get("rank") if isinstance(meta.body, dict) else None
        if type(named) is not int:
            raise KVError("a dispatcher's request names no worker")
        return named
    if any(role is not Role.WORKER for role, _ in ranks):
        raise KVError("only workers' pushes are merged")
    return min(rank for _, rank in ranks)


def bases_at(meta: Meta, table: int, server: int) -> list[int]:
    """The clocks of a table on a server that the pushes inside were computed with, where known."""
    return [
        clock
        for one in constituents_of(meta)
        for name, _, pairs in one.clocks
        if name == table
        for rank, clock in pairs
        if rank == server
    ]


def count_of(meta: Meta, table: int) -> int:
    """How many of the pushes inside count as one of that table: further pieces of one do not."""
    return sum(name == table for one in constituents_of(meta) for name, _, _ in one.clocks)
