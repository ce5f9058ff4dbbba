"""Step 1 of a push: what came becomes a shard, without a copy.

A shard's arrays are views of the frames that were received, kept alive by it: in shared memory on
one host, in ZeroMQ's own buffers across hosts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kv.dispatcher.folding import folded_parts, is_folded
from kv.dispatcher.known_tables import KnownTable
from kv.errors import KVError, ValueShapeError
from kv.table_messages import next_array, no_more
from postoffice.node import role_and_rank
from van.message import Message

Keys = NDArray[np.uint64]
Values = NDArray[np.float32]


@dataclass(eq=False, slots=True)
class Shard:
    """One message of a worker's push.

    Args:
        message: the request, to be answered when all servers have it.
        rank: of its worker.
        step: the worker's.
        tables: ids, by place.
        parts: by place keys, uint64 (n,), increasing, None of a dense table, and gradients,
            float32 (n, dim), of a dense table all of its blocks.
        weight: what it counts in a weighted mean.
        rests: so many of its first tables carry on another shard of the same push.
        cold: if these are the hot rows of a push, the rest of it.
        waits: if this is such a rest, how many of its hot parts servers have not answered.
    """

    message: Message
    rank: int
    step: int
    tables: tuple[int, ...]
    parts: list[tuple[Keys | None, Values]]
    weight: float
    rests: int
    cold: Shard | None = None
    waits: int = 0

    @property
    def rows(self) -> int:
        """How many rows it brings."""
        return sum(len(values) for _, values in self.parts)

    @property
    def nbytes(self) -> int:
        """Bytes of its arrays."""
        return self.message.nbytes


def parts_of(message: Message, tables: Sequence[KnownTable]) -> list[tuple[Keys | None, Values]]:
    """What a push brings, as it names it; its key lists are complete.

    Raises:
        KVError, ValueShapeError: it is not as the protocol says.
    """
    arrays = iter(message.arrays)
    parts: list[tuple[Keys | None, Values]] = []
    for table in tables:
        keys = None if table.is_dense else _checked_keys(table, next_array(arrays))
        values = next_array(arrays)
        rows = table.blocks if keys is None else keys.size
        if values.dtype != np.float32 or values.shape != (rows, table.spec.dim):
            wanted = f"float32 ({rows}, {table.spec.dim})"
            problem = f"gradients are {values.dtype} {values.shape} instead of {wanted}"
            raise ValueShapeError(table.spec.name, problem)
        parts.append((keys, values))
    no_more(arrays)
    return parts


def received(message: Message, tables: Sequence[KnownTable]) -> Shard:
    """The push as a shard, in which each table stands once; errors as for `parts_of`."""
    meta, parts = message.meta, parts_of(message, tables)
    steps = {step for _, step, _ in meta.clocks}
    if len(steps) > 1:
        raise KVError(f"one push belongs to one step, not to {sorted(steps)}")
    body = meta.body or {}
    names, rests = tuple(table.id for table in tables), int(body.get("rest", 0))
    if not is_folded(names):
        if set(names[:rests]) & set(names[rests:]):
            rests = 0  # a table of which another push begins here counts
        names, parts = folded_parts(names, parts)
    return Shard(
        message,
        role_and_rank(meta.sender)[1],
        steps.pop() if steps else 0,
        names,
        parts,
        float(body.get("weight", 1.0)),
        rests,
    )


def _checked_keys(table: KnownTable, keys: NDArray[Any]) -> Keys:
    if keys.dtype != np.uint64 or keys.ndim != 1:
        raise ValueShapeError(table.spec.name, f"keys are {keys.dtype} {keys.shape}")
    return keys
