"""Registrations until all nodes have come, and who gets which rank then. Pure.

A node repeats its registration every second until it is answered. So one whose repeats stop has
ended, and its place is free again: a process that was restarted while others are still missing
takes the place of its former self instead of being one too many.

Ranks: a node that asks for a rank gets it; the others are numbered in the order of their
addresses, so that the same addresses get the same ranks whatever the order of arrival.

Source: ps-lite, src/van.cc (ProcessAddNodeCommandAtScheduler), whose sort is no strict order.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

from postoffice.errors import RegistrationError
from postoffice.node import Role

FORGOTTEN_AFTER = 5.0  # seconds without a repeat


@dataclass(frozen=True, slots=True)
class Registration:
    """What a node says when it comes."""

    role: Role
    rank: int | None  # the rank it would like
    address: str
    nonce: int  # tells this process from all others
    incarnation: int = 0  # of a node that has one: from a scheduler before this one

    def __str__(self) -> str:
        return f"a {self.role} at {self.address}"


@dataclass(slots=True)
class _Guest:
    """A registration, when it first came and when it was last repeated."""

    request: Registration
    since: float
    heard: float


class Gathering:
    """The nodes that have come so far.

    Args:
        expected: how many of each role there must be.
    """

    def __init__(self, expected: Mapping[Role, int]) -> None:
        self.expected = expected
        self._guests: dict[tuple[str, int], _Guest] = {}
        self._held: dict[tuple[str, int], _Guest] = {}  # want a place that seems to be taken

    def register(self, request: Registration, now: float) -> bool:
        """Note a node; True when all have come.

        Raises:
            RegistrationError: there is no room for it; the text says what to do.
        """
        key = (request.address, request.nonce)
        guest = self._guests.get(key)
        if guest is not None:
            guest.heard = now
            return False
        held = self._held.setdefault(key, _Guest(request, now, now))
        held.heard = now
        if self._is_taken(request, held.since):
            return False  # not yet: whoever has the place may have ended
        del self._held[key]
        self._guests[key] = _Guest(request, now, now)
        return not any(self.missing().values())

    def _is_taken(self, request: Registration, since: float) -> bool:
        """Whether all places that `request` may have are taken by nodes not heard after `since`."""
        wanted = self.expected.get(request.role, 0)
        if request.rank is not None and not 0 <= request.rank < wanted:
            raise RegistrationError(
                f"{request} asks for rank {request.rank}, but there are {wanted}: "
                f"[cluster] {request.role}s = {wanted}"
            )
        others = [g for g in self._guests.values() if g.request.role is request.role]
        for other in others:
            if request.rank is not None and other.request.rank == request.rank:
                if other.heard > since:
                    raise RegistrationError(
                        f"two {request.role}s ask for rank {request.rank}: "
                        f"{other.request.address} and {request.address}; is the program started "
                        f"twice?"
                    )
                return True
        if len(others) < wanted:
            return False
        if all(other.heard > since for other in others):
            raise RegistrationError(
                f"{request} is one too many: [cluster] {request.role}s = {wanted}"
            )
        return True

    def forget_silent(self, now: float) -> list[Registration]:
        """Those who have not repeated themselves and have lost their places."""
        silent = [key for key, g in self._guests.items() if now - g.heard > FORGOTTEN_AFTER]
        self._held = {k: g for k, g in self._held.items() if now - g.heard <= FORGOTTEN_AFTER}
        return [self._guests.pop(key).request for key in silent]

    def forget(self, nonce: int) -> None:
        """The process that came with `nonce` has ended."""
        self._guests = {key: g for key, g in self._guests.items() if key[1] != nonce}
        self._held = {key: g for key, g in self._held.items() if key[1] != nonce}

    def missing(self) -> dict[Role, int]:
        """How many nodes of each role have not come."""
        count = dict.fromkeys(self.expected, 0)
        for guest in self._guests.values():
            count[guest.request.role] += 1
        return {role: wanted - count[role] for role, wanted in self.expected.items()}

    def addresses(self) -> list[str]:
        """Where the nodes listen that have registered."""
        return [guest.request.address for guest in self._guests.values()]

    def seats(self) -> list[tuple[int, Registration]]:
        """The rank of each node, when all have come."""
        seated: list[tuple[int, Registration]] = []
        for role, count in self.expected.items():
            requests = [g.request for g in self._guests.values() if g.request.role is role]
            seats = {r.rank: r for r in requests if r.rank is not None}
            others = sorted((r for r in requests if r.rank is None), key=lambda r: r.address)
            free = [rank for rank in range(count) if rank not in seats]
            seated += [(rank, r) for rank, r in seats.items() if rank is not None]
            seated += zip(free, others, strict=True)
        return seated
