"""A piece of a request whose rows have got other owners: cut anew, its answers put together again.

A piece is applied whole by a server or refused whole, so of a refused one nothing has been applied
there; and what a dead server had applied goes with its slots, so that their next owner tells it.
The rows go out again under the same timestamp, in pieces with numbers not used before, by the
newest map, each with all tables that it has rows of: two of one timestamp must not share a slot.
Such pieces carry their rows outright, block numbers of dense tables as well.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kv.errors import KVError
from kv.placement import SlotMap, slot_of

Keys = NDArray[np.uint64]
Values = NDArray[np.float32]


@dataclass(slots=True)
class Rows:
    """Rows of one table in a piece.

    Args:
        place: of the table in the request.
        where: int64, shape (n,): their positions in the piece that was first cut.
        slots: uint16, shape (n,): of each row.
        names: uint64, shape (n,), increasing: keys of a sparse table, block numbers of a dense one.
        is_dense: whether they are that.
        values: float32, shape (n, dim), that are sent; None: none.
    """

    place: int
    where: NDArray[np.int64]
    slots: NDArray[np.uint16]
    names: Keys
    is_dense: bool
    values: Values | None = None

    def take(self, chosen: NDArray[np.bool_]) -> Rows:
        """Some of the rows, in their order."""
        return Rows(
            self.place,
            self.where[chosen],
            self.slots[chosen],
            self.names[chosen],
            self.is_dense,
            None if self.values is None else self.values[chosen],
        )

    @property
    def arrays(self) -> list[NDArray[Any]]:
        """As they are sent."""
        return [self.names] if self.values is None else [self.names, self.values]


def rows_of(
    place: int, names: Keys, keys: Keys, is_dense: bool, values: Values | None = None
) -> Rows:
    """All rows of a table in a piece."""
    where = np.arange(names.size)
    return Rows(place, where, slot_of(keys), names, is_dense, values)


@dataclass(eq=False, slots=True)
class Root:
    """A piece as it was first cut, whose answers come in parts.

    Args:
        sizes: rows and floats in a row of each of its tables, in order.
        done: called with the values of each table when all of them have come; None: none come.
        is_rest: its first table is carried on from another piece.
    """

    sizes: Sequence[tuple[int, int]]
    done: Callable[[list[Values]], None] | None
    is_rest: bool = False
    left: int = 0  # parts that have no answer
    found: list[Values] = field(default_factory=list)

    def __post_init__(self) -> None:
        if self.done is not None:
            self.found = [np.empty(size, np.float32) for size in self.sizes]

    def settle(self) -> None:
        """A part is answered, or cut anew."""
        self.left -= 1
        self.finish_if_whole()

    def finish_if_whole(self) -> None:
        """Give on the values, if nothing is to come."""
        if not self.left and self.done is not None:
            self.done(self.found)


@dataclass(eq=False, slots=True)
class Recut:
    """Rows of a piece that was cut anew, those of one server.

    Args:
        root: the piece that they are of.
        server: rank of who is asked.
        parts: rows by table, with the table's place in the root.
        rests: places of the tables that count no step with it.
    """

    root: Root
    server: int
    parts: list[tuple[int, Rows]]
    rests: frozenset[int] = frozenset()

    @property
    def shapes(self) -> list[tuple[int, int]]:
        """Of the values of each part."""
        return [(rows.names.size, self.root.sizes[index][1]) for index, rows in self.parts]

    def take(self, arrays: Sequence[NDArray[Any]]) -> None:
        """The answer has come, with values if it was a pull.

        Raises:
            KVError: it is not what was asked for.
        """
        if self.root.done is not None:
            shapes = self.shapes
            is_float = all(array.dtype == np.float32 for array in arrays)
            if not is_float or [array.shape for array in arrays] != shapes:
                raise KVError(f"a server answered {arrays!r} instead of float32 {shapes}")
            for (index, rows), values in zip(self.parts, arrays, strict=True):
                self.root.found[index][rows.where] = values
        self.root.settle()


def cut_anew(root: Root, parts: Sequence[tuple[int, Rows]], slots: SlotMap) -> list[Recut]:
    """The pieces, by owner, in the place of one with these rows of (index, Rows)."""
    owners = [slots.owner[rows.slots] for _, rows in parts]
    made = []
    for server in np.unique(np.concatenate(owners)):
        mine = [
            (index, rows.take(owner == server))
            for (index, rows), owner in zip(parts, owners, strict=True)
            if (owner == server).any()
        ]
        made.append(Recut(root, int(server), mine))
    root.left += len(made)
    return made
