"""Two buffers for each group of tables that are pushed together: one fills, one is merged and sent.

A push to several tables stays whole, or a worker could not be told that all of it has counted; so
buffers are those of a group: of one table, mostly, or of all tables of a model. A round has its
own, for all tables: what a worker pushes to one table in several groups is added up in one order.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field

from kv.dispatcher.receiving import Shard

Place = tuple[tuple[int, ...], int | None, bool]
"""Ids of the tables, none of a round; the round's number or None; whether it is for hot rows."""


@dataclass(eq=False, slots=True)
class Buffer:
    """Shards that will leave together.

    Attributes:
        since: when the first of them came.
        closed: when it took no more.
    """

    since: float = 0.0
    closed: float = 0.0
    shards: list[Shard] = field(default_factory=list)
    nbytes: int = 0
    workers: set[int] = field(default_factory=set)

    def add(self, shard: Shard, now: float) -> None:
        """Take one in."""
        if not self.shards:
            self.since = now
        self.shards.append(shard)
        self.nbytes += shard.nbytes
        self.workers.add(shard.rank)

    def drop_former(self, rank: int, life: int, step: int) -> None:
        """Drop what that worker has pushed in a life before this one, from that step on."""
        former = [
            shard
            for shard in self.shards
            if shard.rank == rank and shard.step >= step and shard.message.meta.incarnation < life
        ]
        if former:
            self.shards = [shard for shard in self.shards if shard not in former]
            self.nbytes -= sum(shard.nbytes for shard in former)
            self.workers = {shard.rank for shard in self.shards}

    def holds(self, rank: int, step: int) -> bool:
        """Whether it has something of that worker of a step up to this one."""
        return rank in self.workers and any(
            shard.rank == rank and shard.step <= step for shard in self.shards
        )


class Pair:
    """The two buffers of a group.

    Args:
        place: which group.
        is_merged: whether its pushes may become one.

    Attributes:
        filling: takes what comes.
        leaving: is merged and sent; None: the next may leave.
        in_pieces: what comes is sent on one by one, as a part of its round has been.
    """

    def __init__(self, place: Place, is_merged: bool) -> None:
        self.place, self.is_merged = place, is_merged
        self.filling = Buffer()
        self.leaving: Buffer | None = None
        self.in_pieces = False

    @property
    def round(self) -> int | None:
        """The number of its round; None where there are none."""
        return self.place[1]

    @property
    def is_ahead(self) -> bool:
        """Whether it is for hot rows."""
        return self.place[2]

    def swap(self, now: float) -> Buffer:
        """Close the one that fills; another takes its place, with what has to wait for hot rows."""
        assert self.leaving is None, "one buffer leaves at a time"
        former, self.leaving, self.filling = self.filling, Buffer(), Buffer()
        for shard in former.shards:
            (self.filling if shard.waits else self.leaving).add(shard, former.since)
        self.leaving.closed = now
        return self.leaving

    def holds(self, rank: int, step: int) -> bool:
        """Whether something of that worker up to this step has not been sent."""
        buffers = [self.filling] if self.leaving is None else [self.leaving, self.filling]
        return any(buffer.holds(rank, step) for buffer in buffers)


class Pairs:
    """The buffers of all groups."""

    def __init__(self) -> None:
        self._pairs: dict[Place, Pair] = {}

    def of(self, place: Place, is_merged: bool) -> Pair:
        """Those of a group, made if need be."""
        pair = self._pairs.get(place)
        if pair is None:
            pair = self._pairs[place] = Pair(place, is_merged)
        return pair

    def drop_rounds(self, slowest: int | None) -> None:
        """Nothing more comes of rounds whose step the slowest worker has ended."""
        for pair in self:
            is_over = pair.round is not None and (slowest is None or pair.round < slowest)
            if is_over and pair.leaving is None and not pair.filling.shards:
                del self._pairs[pair.place]

    def drop_former(self, rank: int, life: int, step: int) -> None:
        """See `Buffer.drop_former`; what is leaving already belongs to steps that have ended."""
        for pair in self:
            pair.filling.drop_former(rank, life, step)

    def __iter__(self) -> Iterator[Pair]:
        return iter(list(self._pairs.values()))

    def holds(self, rank: int, step: int) -> bool:
        """Whether something of that worker up to this step has not been sent."""
        return any(pair.holds(rank, step) for pair in self._pairs.values())

    @property
    def waiting(self) -> int:
        """How many shards have not been sent."""
        return sum(
            len(pair.filling.shards) + len(pair.leaving.shards if pair.leaving else ())
            for pair in self._pairs.values()
        )
