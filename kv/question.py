"""What a request is about: what its messages have in common, and its part in each table."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from numpy.typing import NDArray

from kv.cutting import Cut, Range
from kv.dense import BlockShare
from kv.placement import SlotMap
from kv.table_protocol import Command
from van.message import Clock, Flag


class Entry(Protocol):
    """What a request has to do with one table."""

    @property
    def cut(self) -> Cut:
        """How its rows lie on servers."""

    @property
    def has_keys(self) -> bool:
        """Whether the first of `arrays` is keys."""

    def arrays(self, server: int, part: Range) -> list[NDArray[Any]]:
        """What is sent about a range of a server's rows."""

    def share(self, server: int) -> BlockShare | None:
        """The blocks of a dense table on a server; None of a sparse one."""


@dataclass(slots=True)
class Question:
    """What the messages of a request have in common. Nobody changes one.

    Args:
        tables: ids, by place.
        step: the worker's, in which the request is made.
        signature: of its key lists; 0 where they are not to be remembered.
        slots: the map by which it is cut.
        bases: by table and rank of the server, the clock that its values were pulled at.
        constituents: of a dispatcher's merged push, what is in it.
    """

    command: Command
    flags: Flag
    tables: Sequence[int]
    step: int
    slots: SlotMap
    body: Mapping[str, Any] | None = None
    priority: int = 0
    signature: int = 0
    bases: Mapping[tuple[int, int], int] | None = None
    constituents: tuple[tuple[Any, ...], ...] = ()

    def clock(self, place: int, server: int) -> Clock:
        """What a message to the server of that rank says of a table's clock."""
        table, bases = self.tables[place], self.bases
        base = None if bases is None else bases.get((table, server))
        return table, self.step, () if base is None else ((server, base),)

    def clocks(self, place: int) -> Clock:
        """What a message to a dispatcher says of a table's clocks, on all servers."""
        table, bases = self.tables[place], self.bases or {}
        pairs = [(server, base) for (name, server), base in bases.items() if name == table]
        return table, self.step, tuple(pairs)
