"""Whose request it is: the rank of the worker that asks, or that a dispatcher asks for."""

from __future__ import annotations

from kv.dispatcher.constituents import rank_of
from kv.errors import KVError
from postoffice.node import Role, role_and_rank
from van.message import Meta


class Ranks:
    """The ranks of the workers that ask."""

    def __init__(self) -> None:
        self._known: dict[int, int] = {}

    def of(self, meta: Meta) -> int:
        """The rank of the worker that asks, or that a dispatcher asks for.

        Raises:
            KVError: it is no worker.
        """
        rank = self._known.get(meta.sender)
        if rank is None:
            role, rank = role_and_rank(meta.sender)
            if role is Role.DISPATCHER:
                return rank_of(meta)
            if role is not Role.WORKER:
                raise KVError(f"only workers push and pull tables, not a {role}")
            self._known[meta.sender] = rank
        return rank
