"""Step 3 of a push: the shards of a buffer added up, each part of the keys by another thread.

A part is a range of keys, of a dense table one of blocks, so shards are cut without a copy and
sums need no sorting. Ranges are small (`max_shard_size`), and threads take turns between them, so
one giant push delays nobody's by more than one of its ranges.

Sums are made as servers make them (`kv.consistency.rounds`): a worker's shards in the order of its
timestamps, then workers in rank order; per key, so that no cut into ranges changes a bit.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import numpy as np

from kv.dispatcher.receiving import Keys, Shard, Values
from kv.executor import Turns
from kv.kernels.sums import sum_parts

Part = tuple[Keys | None, Values]


def in_order(shards: Sequence[Shard]) -> list[Shard]:
    """The shards by rank, then by timestamp."""
    return sorted(shards, key=lambda shard: (shard.rank, shard.message.meta.timestamp))


def tables_of(shards: Sequence[Shard]) -> tuple[int, ...]:
    """The tables that shards are about, each once."""
    return tuple(dict.fromkeys(table for shard in shards for table in shard.tables))


def aggregating(shards: Sequence[Shard], parallel: int, nbytes: int) -> Turns[list[Part]]:
    """Add up shards, in order; for each of `tables_of` them keys, increasing, and sums.

    Args:
        parallel: so many ranges at least, where there are enough rows.
        nbytes: of the largest shard's rows in a range.
    """
    if len(shards) == 1:
        return shards[0].parts
    sums: list[Part] = []
    for table in tables_of(shards):
        parts = [
            (shard.rank, *part)
            for shard in shards
            for name, part in zip(shard.tables, shard.parts, strict=True)
            if name == table
        ]
        if parts[0][1] is None:
            sums.append((yield from _adding_blocks(parts, parallel, nbytes)))
        else:
            sums.append((yield from _adding_rows(parts, parallel, nbytes)))
    return sums


def _adding_rows(
    parts: Sequence[tuple[int, Keys | None, Values]], parallel: int, nbytes: int
) -> Turns[Part]:
    known = [(rank, keys, values) for rank, keys, values in parts if keys is not None and keys.size]
    if not known:
        return np.empty(0, np.uint64), parts[0][2][:0]
    largest = max((keys for _, keys, _ in known), key=len)
    count = _ranges(largest.size, known[0][2].shape[1], parallel, nbytes)
    ends = [largest[(i + 1) * largest.size // count] for i in range(count - 1)]
    bounds = [[0, *np.searchsorted(keys, ends).tolist(), keys.size] for _, keys, _ in known]
    found: list[tuple[Keys, Values] | None] = [None] * count

    def adding(number: int) -> Turns[None]:
        cut = [
            (rank, keys[b[number] : b[number + 1]], values[b[number] : b[number + 1]])
            for (rank, keys, values), b in zip(known, bounds, strict=True)
        ]
        found[number] = _sum([part for part in cut if part[1].size] or cut[:1])
        return
        yield

    yield [adding(number) for number in range(count)]
    done = [part for part in found if part is not None]
    if count == 1:
        return done[0]
    return np.concatenate([keys for keys, _ in done]), np.concatenate([rows for _, rows in done])


def _sum(parts: Sequence[tuple[int, Keys, Values]]) -> tuple[Keys, Values]:
    return sum_parts([sum_parts(list(of_one)) for of_one in _by_rank(parts)])


def _by_rank(
    parts: Sequence[tuple[int, Keys, Values]],
) -> Iterator[list[tuple[Keys, Values]]]:
    ranks: dict[int, list[tuple[Keys, Values]]] = {}
    for rank, keys, values in parts:
        ranks.setdefault(rank, []).append((keys, values))
    yield from ranks.values()


def _adding_blocks(
    parts: Sequence[tuple[int, Keys | None, Values]], parallel: int, nbytes: int
) -> Turns[Part]:
    rows, dim = parts[0][2].shape
    total = np.empty((rows, dim), np.float32)
    count = _ranges(rows, dim, parallel, nbytes)

    def adding(start: int, stop: int) -> Turns[None]:
        ranks: dict[int, Values] = {}
        for rank, _, values in parts:
            mine = values[start:stop]
            ranks[rank] = ranks[rank] + mine if rank in ranks else mine
        sums = iter(ranks.values())
        out = total[start:stop]
        out[:] = next(sums)
        for one in sums:
            out += one
        return
        yield

    yield [adding(i * rows // count, (i + 1) * rows // count) for i in range(count)]
    return None, total


def _ranges(rows: int, dim: int, parallel: int, nbytes: int) -> int:
    """Into how many ranges so many rows are cut: not below a few thousand floats each."""
    size = rows * (8 + 4 * dim)
    useful = min(parallel, 1 + rows * dim // _SHORT)
    return max(1, min(rows, max(useful, -(-size // nbytes))))


_SHORT = 1 << 14  # floats; a range of fewer costs more to hand over than to add up
