"""A pull of rows of which some are here: servers are asked for what has changed since."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kv.cutting import Cut, Range
from kv.dense import BlockShare
from kv.dispatcher.copies import Copies, Copy, Counted
from kv.dispatcher.known_tables import KnownTable
from kv.dispatcher.receiving import Keys, Values
from kv.errors import KVError
from kv.packed import PACKED, unpack_values
from kv.pulling import DenseRead, Pull, Reading, SparseRead
from kv.refreshing import NOTHING, PACKED_ROWS, Known, Origin, has_changed
from postoffice.node import role_and_rank
from van.message import Message


class RowsHaveMovedError(KVError):
    """Rows have got other owners meanwhile: they are pulled whole."""


class RowsRead:
    """Rows of one table, and what is known of them; an `asking.Entry`.

    Args:
        table: whose.
        keys: increasing; None of a dense table.
        read: of all of them.
        copy: what is here; None: nothing is, and nothing is to be kept.
    """

    def __init__(
        self, table: KnownTable, keys: Keys | None, read: Reading, copy: Copy | None
    ) -> None:
        self.table, self._read, self._keys, self._copy = table, read, keys, copy
        self.cut: Cut = read.cut
        self.has_keys = keys is not None
        self._known: dict[int, Known] = {}  # by rank of the server
        if keys is not None and copy is not None:
            self._values, self._versions = copy.look(keys)

    def share(self, server: int) -> BlockShare | None:
        return self._read.share(server)

    def arrays(self, server: int, part: Range) -> list[NDArray[Any]]:
        """Keys, and what is known of their rows."""
        if self._keys is None or self._copy is None:
            return [*self._read.arrays(server, part), NOTHING]
        if server not in self._known:
            keys = self._keys[self._rows(server)]
            self._known[server] = self._copy.known(server, keys, self._versions[self._rows(server)])
        return [*self._read.arrays(server, part), self._known[server]]

    def _rows(self, server: int) -> Any:
        """Places of a server's rows: a message has all of them."""
        base, stop = self.cut.bounds[server], self.cut.bounds[server + 1]
        return slice(base, stop) if self.cut.order is None else self.cut.order[base:stop]

    def take(
        self,
        server: int,
        values: Values,
        bits: NDArray[Any] | None,
        counted: Counted | None,
        is_ours: bool,
        counts: Counter[str],
    ) -> None:
        """What a server has answered: values of rows that have changed, and which these are.

        Raises:
            KVError: it is not what was asked for.
        """
        whole = Range(0, 0, self.cut.bounds[server + 1] - self.cut.bounds[server])
        if self._keys is None or self._copy is None or bits is None or counted is None:
            self._read.put(server, whole, values, is_ours)
            return
        places = np.arange(self._keys.size)[self._rows(server)]
        found = has_changed(bits, places.size)
        dim = self.cut.dim
        if values.dtype != np.float32 or values.shape != (int(found.sum()), dim):
            raise KVError(f"a server answered with {values.dtype} {values.shape} of changed rows")
        if (self._versions[places[~found]] < 0).any():
            raise KVError("a server says that rows are as before which are not known here")
        known = self._known.get(server, NOTHING)
        counts["refreshed_rows"] += int((self._versions[places[found]] >= 0).sum())
        counts["unchanged_rows"] += places.size - len(values)
        counts["refresh_bytes_saved"] += (places.size - len(values)) * 4 * dim
        counts["refresh_bytes_saved"] -= known.nbytes + bits.nbytes
        self._values[places[found]] = values
        self._copy.fill(server, counted, self._keys[places], self._values[places])

    def result(self) -> Values:
        """All rows, in the order of their keys."""
        if self._keys is None or self._copy is None:
            return self._read.result()
        return self._values


class Refresh:
    """One request about several tables.

    Args:
        reads: by table.
        counts: of `refreshed_rows`, that had changed, `unchanged_rows`, and `refresh_bytes_saved`:
            of values as float32 less what was told of rows.
    """

    def __init__(self, reads: Sequence[RowsRead], counts: Counter[str]) -> None:
        self.reads, self._counts = reads, counts
        self._by_table = {read.table.id: read for read in reads}
        self._pull = Pull([])

    def finish(self, answers: Sequence[Message]) -> None:
        """Put the servers' answers together.

        Raises:
            KVError: they are not what was asked for.
        """
        for answer in answers:
            self._take(answer)

    def _take(self, answer: Message) -> None:
        meta, arrays = answer.meta, answer.arrays
        reads = [self._by_table[table] for table, _, _ in meta.clocks]
        body: Mapping[str, Any] = meta.body if isinstance(meta.body, dict) else {}
        known = body.get("known", [])
        bits = iter(arrays[len(reads) :])
        if len(known) != len(reads) or len(arrays) < len(reads):
            raise KVError(f"a server answered {len(reads)} reads with {len(arrays)} arrays")
        server = role_and_rank(meta.sender)[1]
        found = [None if one is None else next(bits) for one in known]
        self._unpack(answer, reads, found, server)
        for place, read in enumerate(reads):
            counted = known[place]
            if counted is not None:
                counted = Counted(Origin(*map(int, counted[0])), tuple(map(int, counted[1])))
            values, is_ours = answer.arrays[place], answer.is_ours
            read.take(server, values, found[place], counted, is_ours, self._counts)
        self._pull.note(meta.clocks)

    @staticmethod
    def _unpack(
        answer: Message,
        reads: Sequence[RowsRead],
        bits: Sequence[NDArray[Any] | None],
        server: int,
    ) -> None:
        if PACKED_ROWS not in answer.meta.body:
            return
        shapes = []
        for read, some in zip(reads, bits, strict=True):
            rows = read.cut.bounds[server + 1] - read.cut.bounds[server]
            count = rows if some is None else int(has_changed(some, rows).sum())
            shapes.append((count, read.cut.dim))
        answer.meta.body[PACKED] = answer.meta.body.pop(PACKED_ROWS)
        unpack_values(answer, shapes)

    @property
    def clocks(self) -> dict[tuple[int, int], int]:
        """By table and rank of the server, the clock that rows are of."""
        return self._pull.clocks

    def results(self) -> list[Values]:
        """Values by table."""
        return [read.result() for read in self.reads]


def reads_of(
    copies: Copies,
    tables: Sequence[KnownTable],
    keys: Sequence[Keys | None],
    reads: Sequence[SparseRead | DenseRead],
) -> list[RowsRead] | None:
    """What a pull reads, with what is here; None: it is of no table that has copies."""
    found = [copies.of(table) for table in tables]
    if not any(copy is not None for copy in found):
        return None
    return [RowsRead(*each) for each in zip(tables, keys, reads, found, strict=True)]
