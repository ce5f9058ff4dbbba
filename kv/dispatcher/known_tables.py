"""The tables that a dispatcher's workers have defined, as it needs to know them."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kv.compression.encoder import Encoder
from kv.cutting import Cut, cut_blocks
from kv.dense import BlockShare, shares_of
from kv.dispatcher.resolving import has_rounds, may_merge
from kv.errors import UnknownTableError
from kv.placement import SlotMap
from kv.spec import TableSpec, dense_keys
from kv.table_protocol import table_id
from van.message import Meta


class KnownTable:
    """One table.

    Args:
        encoder: of merged gradients on their way to servers; None: they go as they are.

    Attributes:
        may_merge: whether pushes of several workers may become one.
        has_rounds: whether they become one round by round.
    """

    def __init__(self, spec: TableSpec, encoder: Encoder | None = None) -> None:
        self.spec, self.id, self.encoder = spec, table_id(spec.name), encoder
        self.is_dense = spec.kind == "dense"
        self.may_merge, self.has_rounds = may_merge(spec), has_rounds(spec)
        self.blocks = dense_keys(spec).keys.size if self.is_dense else 0
        self._slots: SlotMap | None = None
        self._shares: list[BlockShare] = []

    @property
    def names(self) -> NDArray[np.uint64]:
        """The numbers of a dense table's blocks, all of which are here."""
        return np.arange(self.blocks, dtype=np.uint64)

    def shares(self, slots: SlotMap) -> list[BlockShare]:
        """The blocks of a dense table on each server."""
        if self._slots is not slots:
            self._slots, self._shares = slots, shares_of(self.spec, slots)
        return self._shares

    def cut(self, slots: SlotMap) -> Cut:
        """A dense table by server."""
        return cut_blocks(self.shares(slots), self.spec.dim)


class KnownTables:
    """All of them, by id."""

    def __init__(self) -> None:
        self._tables: dict[int, KnownTable] = {}

    def add(self, spec: TableSpec, encoder: Encoder | None = None) -> None:
        """Servers have taken this definition."""
        table = KnownTable(spec, encoder)
        self._tables.setdefault(table.id, table)

    def of(self, meta: Meta) -> list[KnownTable]:
        """The tables of a request.

        Raises:
            UnknownTableError: one was not defined by way of this dispatcher.
        """
        return self.named([table for table, _, _ in meta.clocks])

    def named(self, ids: Sequence[int]) -> list[KnownTable]:
        """The tables of these ids; errors as for `of`."""
        try:
            return [self._tables[one] for one in ids]
        except KeyError as error:
            problem = "it is not defined on this dispatcher"
            raise UnknownTableError(f"id {error.args[0]:x}", problem) from None

    def all(self) -> list[KnownTable]:
        """All of them."""
        return list(self._tables.values())
