"""Tables as a worker of a cluster sees them: any list of keys in, rows out, whoever holds them.

They fit `kv.protocols` as `kv.local_tables` does for one process; `kv.remote_worker` moves their
requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kv.cutting import Cut, cut_blocks
from kv.dense import BlockShare, shares_of
from kv.errors import KeyListError, KVError
from kv.given import since_of
from kv.kernels.jit import frozen
from kv.keylist import KeyList, as_keys, as_values, checked_out
from kv.protocols import Read, Request, Write
from kv.spec import TableSpec
from kv.table_protocol import Command, table_id
from kv.versions import Changed, TableMeta, Version, described
from postoffice.node import Role, role_and_rank
from van.message import Message

if TYPE_CHECKING:
    from kv.remote_worker import RemoteWorker

_SCAN_ROWS = 65536  # rows of one SCAN answer

Keys = NDArray[np.uint64]
Values = NDArray[np.float32]


class Table:
    """What remote sparse and dense tables share."""

    def __init__(self, worker: RemoteWorker, spec: TableSpec) -> None:
        self.worker, self.spec = worker, spec
        self.id = table_id(spec.name)
        self.take_link(worker.link)

    def take_link(self, link: str) -> None:
        """Compress gradients as the definition says of `link` from now on."""
        self.link, self.encoder = link, self.worker.encoders.of(self.spec, link)

    @property
    def name(self) -> str:
        return self.spec.name

    def stats(self) -> list[dict[str, Any]]:
        """What each server says of its share of the table, by rank; see `Engine.stats`."""
        found: list[dict[str, Any]] = self.worker.ask_all(
            Command.STATS, [self], finish=lambda answers: [answer.meta.body for answer in answers]
        )
        return found

    def get_meta(self, keys: ArrayLike | None = None) -> TableMeta:
        """Clocks and versions of the table and, of a sparse one, of the rows of `keys`.

        Raises:
            KeyListError: `keys` of a dense table, or no list of keys.
        """
        answers: list[Message] = self.worker.ask_all(Command.STATS, [self], finish=list)
        said = {role_and_rank(a.meta.sender)[1]: a.meta.body for a in answers}
        clocks = {rank: int(said[rank]["clock"]) for rank in sorted(said)}
        version = {rank: tuple(said[rank]["versions"]) for rank in sorted(said)}
        asked = np.empty(0, np.uint64) if keys is None else as_keys(keys, self.name)
        found: list[Any] = []
        if keys is not None:
            if not isinstance(self, RemoteSparseTable):
                raise KeyListError(self.name, "it is dense: it has no keys to tell of")
            wanted = wanted_of((self, asked))
            found = [a.arrays for a in self.worker.ask_owners(Command.META, wanted)]
        return described(asked, clocks, version, found)

    def _count(self, answers: Sequence[Message]) -> int:
        return sum(int(answer.meta.body["count"]) for answer in answers)


class RemoteSparseTable(Table):
    """See `kv.protocols.SparseTable`."""

    @property
    def dim(self) -> int:
        return self.spec.dim

    def pull(
        self,
        keys: ArrayLike,
        *,
        create: bool = True,
        out: Values | None = None,
        priority: int = 0,
    ) -> Values:
        """Values of `keys`, float32 (len(keys), dim), in the order of `keys`; a copy.

        Args:
            out: writable C-contiguous float32 (len(keys), dim), filled and returned; after an
                error its content is undefined.
        Raises:
            KeyListError: no list of integers from 0 to 2^64 - 1.
            ValueShapeError: `out` is not as above.
            MissingKeyError: a key has no row and the table says missing=error.
        """
        return self.worker.pull_wanted([wanted_of((self, keys), out)], create, priority)[0]

    def prefetch(self, keys: ArrayLike, *, create: bool = True, priority: int = 0) -> None:
        """Start a pull for the next `pull` of these keys; see `RemoteWorker.prefetch_many`."""
        self.worker.prefetch_many([(self, keys)], create=create, priority=priority)

    def push(
        self, keys: ArrayLike, grads: ArrayLike, *, weight: float = 1.0, priority: int = 0
    ) -> Request:
        """Give gradients, float32 (len(keys), dim); those of equal keys are added.

        Raises:
            KeyListError, ValueShapeError, NonFiniteError: keys or gradients are not as above.
            SettingError: `weight` is no finite number of 0 or more.
        """
        return self.worker.push_many([(self, keys, grads)], weight=weight, priority=priority)

    def push_pull(
        self,
        keys: ArrayLike,
        grads: ArrayLike,
        *,
        out: Values | None = None,
        weight: float = 1.0,
        priority: int = 0,
    ) -> Values:
        """`push`, and what a `pull` right after it returns, in one request.

        Raises:
            as `push` and `pull` do.
        """
        wanted = wanted_of((self, keys), out)
        writes: list[Write] = [(self, keys, grads)]
        return self.worker.push_pull_wanted([wanted], writes, weight, priority)[0]

    def assign(self, keys: ArrayLike, values: ArrayLike) -> None:
        """Set rows outright, optimiser state reset; of a repeated key the last value counts."""
        wanted = wanted_of((self, keys))
        assert wanted.keylist is not None
        shape = (wanted.keylist.size, self.dim)
        last = wanted.keylist.last_of_each(as_values(values, shape, self.name, "values"))
        self.worker.ask_owners(Command.ASSIGN, wanted, last)

    def delete(self, keys: ArrayLike) -> int:
        """Forget rows; returns how many there were."""
        return self._count(self.worker.ask_owners(Command.DELETE, wanted_of((self, keys))))

    def items(self) -> Iterator[tuple[Keys, Values]]:
        """All rows in batches of (keys, values); keys rise within a batch.

        In a deterministic job they rise from batch to batch, too, and the table is collected first.
        """
        batches = self._batches()
        return by_rising_keys(batches) if self.worker.is_deterministic else batches

    def _batches(self) -> Iterator[tuple[Keys, Values]]:
        start = dict.fromkeys(self.worker.office.members(Role.SERVER), 0)
        while start:
            for server in list(start):
                keys, values, go_on = self._scan(server, start[server])
                if go_on < 0:
                    del start[server]
                else:
                    start[server] = go_on
                if keys.size:
                    yield keys, values

    def pull_changed(self, since: Version | None = None) -> Changed:
        """Rows that changed after `since`, which an earlier call returned; None: all rows.

        Rows that change meanwhile may be missing here: the next call has them. That rows are gone
        is not told. A server that `since` does not know tells all of its rows.
        """
        known = since_of(since, self.name)
        keys, values = [np.empty(0, np.uint64)], [np.empty((0, self.dim), np.float32)]
        version: dict[int, tuple[int, ...]] = {}
        for server in self.worker.office.members(Role.SERVER):
            rank = role_and_rank(server)[1]
            some_keys, some_values, version[rank] = self._changed(server, known.get(rank))
            keys += some_keys
            values += some_values
        all_keys, all_values = np.concatenate(keys), np.concatenate(values)
        if self.worker.is_deterministic:
            order = np.argsort(all_keys)
            all_keys, all_values = all_keys[order], all_values[order]
        return Changed(all_keys, all_values, version)

    def _changed(
        self, server: int, since: tuple[int, ...] | None
    ) -> tuple[list[Keys], list[Values], tuple[int, ...]]:
        """What has changed on one server, in parts, and until when."""
        keys, values, start, until = [], [], 0, None
        while start >= 0:
            body = {"start": start, "count": _SCAN_ROWS, "since": since, "until": until}
            answer = self.worker.ask_one(server, Command.CHANGED, self, body)
            keys.append(answer.arrays[0])
            values.append(answer.arrays[1])
            start, until = int(answer.meta.body["next"]), answer.meta.body["until"]
        assert until is not None, "a server said something"
        return keys, values, tuple(until)

    def _scan(self, server: int, start: int) -> tuple[Keys, Values, int]:
        body = {"start": start, "count": _SCAN_ROWS}
        answer = self.worker.ask_one(server, Command.SCAN, self, body)
        keys, values = answer.arrays
        return keys, values, int(answer.meta.body["next"])

    def __len__(self) -> int:
        return int(self.worker.ask_all(Command.SIZE, [self], finish=self._count))

    def __repr__(self) -> str:
        return f"<RemoteSparseTable {self.name} dim={self.dim}>"


class RemoteDenseTable(Table):
    """See `kv.protocols.DenseTable`."""

    def __init__(self, worker: RemoteWorker, spec: TableSpec) -> None:
        super().__init__(worker, spec)
        self._slots = worker.slots
        self._shares = shares_of(spec, worker.slots)
        self._cut = cut_blocks(self._shares, spec.dim)

    @property
    def shares(self) -> Sequence[BlockShare]:
        """The blocks of each server, by rank."""
        if self._slots is not self.worker.slots:
            self._slots = self.worker.slots
            self._shares = shares_of(self.spec, self._slots)
            self._cut = cut_blocks(self._shares, self.spec.dim)
        return self._shares

    @property
    def cut(self) -> Cut:
        """By server."""
        assert self.shares  # as they are now
        return self._cut

    @property
    def shape(self) -> tuple[int, ...]:
        return self.spec.shape

    def pull(self, *, out: Values | None = None, priority: int = 0) -> Values:
        """The array, a copy; in `out`, writable C-contiguous float32 of its shape, if given."""
        return self.worker.pull_wanted([wanted_of(self, out)], True, priority)[0]

    def prefetch(self, *, priority: int = 0) -> None:
        """Start a pull for the next `pull`; see `RemoteWorker.prefetch_many`."""
        self.worker.prefetch_many([self], priority=priority)

    def push(self, grad: ArrayLike, *, weight: float = 1.0, priority: int = 0) -> Request:
        """Give the gradient of the whole array; errors as for a sparse table."""
        return self.worker.push_many([(self, grad)], weight=weight, priority=priority)

    def push_pull(
        self,
        grad: ArrayLike,
        *,
        out: Values | None = None,
        weight: float = 1.0,
        priority: int = 0,
    ) -> Values:
        """`push`, and what a `pull` right after it returns, in one request."""
        wanted, writes = wanted_of(self, out), [(self, grad)]
        return self.worker.push_pull_wanted([wanted], writes, weight, priority)[0]

    def assign(self, value: ArrayLike) -> None:
        """Set the array outright, optimiser state reset."""
        values = as_values(value, self.shape, self.name, "the value")
        self.worker.ask_owners(Command.ASSIGN, Wanted(self, None), values)

    def __repr__(self) -> str:
        return f"<RemoteDenseTable {self.name} shape={self.shape}>"


@dataclass(slots=True)
class Wanted:
    """A table and what of it a request is about. Nobody changes one.

    Args:
        keylist: of a sparse table; None of a dense one.
        out: the caller's array for the answer, if it gave one.
    """

    table: Table
    keylist: KeyList | None
    out: Values | None = None

    def unique(self) -> Wanted:
        """The same without order and repeats, and with keys of its own."""
        if self.keylist is None:
            return Wanted(self.table, None)
        unique = self.keylist.unique
        copy = unique.copy() if self.keylist.inverse is None else unique
        return Wanted(self.table, KeyList(frozen(copy), None))

    def filled(self, values: Values) -> Values:
        """Values of the merged keys, in memory that is not needed any more, as the caller's."""
        if self.keylist is not None:
            values = self.keylist.expand(values)
        if self.out is None:
            return values
        np.copyto(self.out, values)
        return self.out

    def values_of(self, given: ArrayLike) -> Values:
        """Gradients as the caller gave them, summed to those of the merged keys."""
        table = self.table
        if isinstance(table, RemoteDenseTable):
            return as_values(given, table.shape, table.name)
        assert self.keylist is not None
        values = as_values(given, (self.keylist.size, table.spec.dim), table.name)
        return self.keylist.merge_grads(values, table.worker.buffers.empty)


def own_table(table: object) -> Table:
    """`table` if it is one of a cluster's; raises KVError on any other."""
    if not isinstance(table, Table):
        raise KVError(f"{table!r} is not a table of this cluster")
    return table


def wanted_of(read: Read, out: object = None) -> Wanted:
    """What a read or a write asks for: (sparse table, keys), or a dense table.

    Raises:
        KVError: it is neither, or a table of elsewhere.
        KeyListError: no list of keys.
        ValueShapeError: `out` has another shape or type than the answer.
    """
    if isinstance(read, tuple):
        table = own_table(read[0])
        if not isinstance(table, RemoteSparseTable) or len(read) != 2:
            raise KVError(f"{table!r} is read and written without keys: {read!r}")
        keylist = table.worker.merged.prepare(read[1], table.name)
        shape: tuple[int, ...] = (keylist.size, table.dim)
        return Wanted(table, keylist, _checked_or_none(out, shape, table))
    table = own_table(read)
    if not isinstance(table, RemoteDenseTable):
        raise KVError(f"{table!r} is read and written with keys: (table, keys)")
    return Wanted(table, None, _checked_or_none(out, table.shape, table))


def _checked_or_none(out: object, shape: tuple[int, ...], table: Table) -> Values | None:
    return None if out is None else checked_out(out, shape, table.name)


def by_rising_keys(batches: Iterator[tuple[Keys, Values]]) -> Iterator[tuple[Keys, Values]]:
    """The same rows in batches whose keys rise from one to the next, too."""
    found = list(batches)
    if found:
        keys, values = (np.concatenate(column) for column in zip(*found, strict=True))
        order = np.argsort(keys)
        for start in range(0, keys.size, _SCAN_ROWS):
            some = order[start : start + _SCAN_ROWS]
            yield keys[some], values[some]
