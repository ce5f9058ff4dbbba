"""Step 4 of a push: what it means that several workers have gradients of one key.

    mode       pushes of several workers become
    async      one update, their sum; or, of a dense table whose optimiser normalises gradients
    ssp        (adam, adamw, rmsprop, adadelta), their mean with the learning rate times their
               number: one step of a sum would be no longer than one of theirs. The base is the
               smallest of theirs, server by server: so a learning rate by staleness is that of the
               stalest. The clock counts all of them.
    sync       the dispatcher's part of the round: the sum in rank order (aggregators sum and mean)
    others     nothing: each goes on by itself. A delay can only be compensated for one gradient; a
               late push of `semi_sync` counts elsewhere; a longest or a weighted one is not a sum

Nor are pushes merged to sparse tables with such an optimiser (each row would need the number of its
own gradients), with clipping (of each gradient, not of the sum), or where servers may refuse single
keys (missing=error: one worker's unknown key would be the other's error).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kv.consistency.settings import SSP, Async, Sync
from kv.dispatcher.constituents import Constituent, constituent_of
from kv.spec import TableSpec

if TYPE_CHECKING:
    from kv.dispatcher.receiving import Shard

_SUMS = ("sum", "mean")  # aggregators that need no more than sums


def has_rounds(spec: TableSpec) -> bool:
    """Whether pushes of a table are merged round by round."""
    return isinstance(spec.mode, Sync)


def may_merge(spec: TableSpec) -> bool:
    """Whether pushes of several workers to a table may become one."""
    if spec.kind == "sparse" and spec.missing == "error":
        return False
    if has_rounds(spec):
        return spec.aggregator in _SUMS
    optimizer = spec.optimizer
    if optimizer.clip_value or optimizer.clip_norm:
        return False
    if spec.kind == "sparse" and optimizer.normalises:
        return False
    return isinstance(spec.mode, Async | SSP)


@dataclass(frozen=True)
class Resolved:
    """What a merged push says beside its rows.

    Args:
        step: the earliest of the workers'.
        weight: of a single push its own.
        rests: of a single push its own.
        bases: by table and rank of the server the smallest clock that a gradient knew.
        constituents: the pushes inside, by rank, then in order.
        priority: the highest.
    """

    step: int
    weight: float
    rests: int
    bases: Mapping[tuple[int, int], int]
    constituents: tuple[Constituent, ...]
    priority: int


def resolve(shards: Sequence[Shard]) -> Resolved:
    """One push of the shards, at least one, which are in order (see `aggregating.in_order`)."""
    bases: dict[tuple[int, int], int] = {}
    for shard in shards:
        for table, _, pairs in shard.message.meta.clocks:
            for server, base in pairs:
                place = table, server
                bases[place] = min(base, bases.get(place, base))
    is_single = len(shards) == 1
    return Resolved(
        min(shard.step for shard in shards),
        shards[0].weight if is_single else 1.0,
        shards[0].rests if is_single else 0,
        bases,
        tuple(_inside(shard) for shard in shards),
        max(shard.message.meta.priority for shard in shards),
    )


def _inside(shard: Shard) -> Constituent:
    """The shard as part of a merged push; tables that it carries on are counted elsewhere."""
    one = constituent_of(shard.message.meta)
    if shard.cold is not None:  # it counts with the rest of it
        return one._replace(clocks=())
    return one._replace(clocks=one.clocks[shard.rests :])
