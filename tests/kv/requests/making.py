"""Small makers of what the unit tests need."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
from hypothesis import settings

from kv.requests import Answer, Constituent, Kind, Request, Signature, View, Work

S0, S1, S2, W0, W1, D0 = 8, 10, 12, 9, 11, 1 << 20

FIXED = settings(derandomize=True, database=None, deadline=None)


def array(*slots: int) -> np.ndarray:
    return np.array(slots, np.int64)


def view(*owners: int, epoch: int = 1, map_version: int = 1, fenced=None, **lives: int) -> View:
    """A view of a cluster whose nodes are in their first life; `d0=2` says other, 0: gone."""
    incarnations = dict.fromkeys([S0, S1, S2, W0, W1, D0], 1)
    incarnations |= {{"w0": W0, "w1": W1, "d0": D0, "s0": S0}[name]: n for name, n in lives.items()}
    living = {node: life for node, life in incarnations.items() if life}
    return View(epoch, map_version, array(*owners), living, fenced or {})


def push(timestamp: int = 0, *slots: int, sender: int = W0, life: int = 1, **fields) -> Request:
    """A push as server 8 receives it."""
    made = Request(
        Signature(sender, life, 0, 0, timestamp),
        push=True,
        recipient=S0,
        recipient_incarnation=1,
        piece=1,
        epoch=1,
        map_version=1,
        slots=array(*slots),
    )
    return replace(made, **fields)


def pull(timestamp: int = 0, *slots: int, **fields) -> Request:
    return push(timestamp, *slots, push=False, pull=True, **fields)


def inside(push: Request) -> Constituent:
    return Constituent(push.signature, push.oldest)


def reply(request: Request, kind: Kind = Kind.OK, *refused: int, **fields) -> Answer:
    """What the recipient of a request might say."""
    answer = Answer(
        kind=kind,
        request=request.signature,
        piece=request.piece,
        sender=request.recipient,
        sender_incarnation=1,
        epoch=request.epoch,
        map_version=request.map_version,
        refused=refused,
    )
    return replace(answer, **fields)


class Gate:
    """Lets pass or holds, as told; remembers what it was asked."""

    def __init__(self, *, holds: bool = False) -> None:
        self.holds = holds
        self.asked: list[Work] = []
        self.gone: list[int] = []

    def admits(self, work: Work) -> bool:
        self.asked.append(work)
        return not self.holds

    def dropped(self, ticket: int) -> None:
        self.gone.append(ticket)
