"""Tables as a worker of a cluster sees them: any list of keys in, rows out, whoever holds them.

They fit `kv.protocols` as `kv.local_tables` does for one process; `kv.remote_worker` moves their
requests.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import ArrayLike, NDArray

from kv.errors import KVError
from kv.keylist import KeyList, as_values, prepare
from kv.protocols import DenseTable, Read, Request, SparseTable, Write
from kv.spec import TableSpec, dense_keys
from kv.table_protocol import Command, table_id
from postoffice.node import Role
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

    @property
    def name(self) -> str:
        return self.spec.name

    def _count(self, answers: Sequence[Message]) -> int:
        return sum(int(answer.meta.body["count"]) for answer in answers)


class RemoteSparseTable(Table):
    """See `kv.protocols.SparseTable`."""

    @property
    def dim(self) -> int:
        return self.spec.dim

    def pull(self, keys: ArrayLike, *, create: bool = True) -> Values:
        """Values of `keys`, float32 (len(keys), dim), in the order of `keys`; a copy.

        Raises:
            KeyListError: no list of integers from 0 to 2^64 - 1.
            MissingKeyError: a key has no row and the table says missing=error.
        """
        return self.worker.pull_many([(self, keys)], create=create)[0]

    def push(self, keys: ArrayLike, grads: ArrayLike) -> Request:
        """Give gradients, float32 (len(keys), dim); those of equal keys are added."""
        return self.worker.push_many([(self, keys, grads)])

    def assign(self, keys: ArrayLike, values: ArrayLike) -> None:
        """Set rows outright, optimiser state reset; of a repeated key the last value counts."""
        keylist = prepare(keys, self.name)
        shape = (keylist.size, self.dim)
        last = keylist.last_of_each(as_values(values, shape, self.name, "values"))
        self.worker.ask_owners(Command.ASSIGN, self, keylist.unique, last)

    def delete(self, keys: ArrayLike) -> int:
        """Forget rows; returns how many there were."""
        unique = prepare(keys, self.name).unique
        return self._count(self.worker.ask_owners(Command.DELETE, self, unique))

    def items(self) -> Iterator[tuple[Keys, Values]]:
        """All rows in batches of (keys, values); keys rise within a batch."""
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
        self.layout = dense_keys(spec)

    @property
    def shape(self) -> tuple[int, ...]:
        return self.spec.shape

    def pull(self) -> Values:
        """The array, a copy."""
        return self.worker.pull_many([self])[0]

    def push(self, grad: ArrayLike) -> Request:
        """Give the gradient of the whole array."""
        return self.worker.push_many([(self, grad)])

    def assign(self, value: ArrayLike) -> None:
        """Set the array outright, optimiser state reset."""
        blocks = self.layout.pack(as_values(value, self.shape, self.name, "the value"))
        self.worker.ask_owners(Command.ASSIGN, self, self.layout.keys, blocks)

    def __repr__(self) -> str:
        return f"<RemoteDenseTable {self.name} shape={self.shape}>"


def own_table(table: SparseTable | DenseTable) -> Table:
    """`table` if it is one of a cluster's; raises KVError on any other."""
    if not isinstance(table, Table):
        raise KVError(f"{table!r} is not a table of this cluster")
    return table


def keys_of(read: Read) -> KeyList:
    """The keys that a read asks for, merged."""
    if isinstance(read, tuple):
        table, keys = read
        return prepare(keys, table.name)
    if not isinstance(read, RemoteDenseTable):
        raise KVError(f"{read!r} is read with keys: (table, keys)")
    return KeyList(read.layout.keys, None)


def answer_of(table: Table, keylist: KeyList, values: Values) -> Values:
    """What the caller of a read gets for the values of its merged keys."""
    if isinstance(table, RemoteDenseTable):
        return table.layout.unpack(values)
    return keylist.expand(values)


def merged_write(write: Write) -> tuple[Keys, Values]:
    """Strictly increasing keys and their summed gradients."""
    table = write[0]
    if isinstance(table, RemoteDenseTable):
        grad = as_values(write[1], table.shape, table.name)
        return table.layout.keys, table.layout.pack(grad)
    if not isinstance(table, RemoteSparseTable) or len(write) != 3:
        raise KVError(f"a write is (table, keys, gradients) or (dense table, gradient): {write!r}")
    keylist = prepare(write[1], table.name)
    grads = as_values(write[2], (keylist.size, table.dim), table.name)
    return keylist.unique, keylist.merge_grads(grads)
