"""Requests about tables taken apart: which arrays are names of rows, which are values, of whom."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from kv.engine import Write
from kv.engine_table import Table
from kv.errors import KVError, ValueShapeError, VersionMismatchError, in_step
from kv.placement import slot_of
from kv.spec import dense_keys
from kv.table_protocol import PUSHES, Command, key_places
from postoffice.node import role_and_rank
from van.errors import PsliteError
from van.message import Clock, Message, Meta, answer_to

Tables = Sequence[tuple[int, Table, int]]
"""The tables of a request: number and table of the engine, and the worker's step."""

_CREATING = {"create": True}  # nobody changes it


class OfKind(Protocol):
    """A table of one kind or the other."""

    @property
    def is_dense(self) -> bool: ...


def is_whole(meta: Meta, table: OfKind) -> bool:
    """Whether a request means all blocks of a dense table that are on the server, unnamed."""
    return table.is_dense and not (meta.body and "blocks" in meta.body)


def row_slots(table: Table, names: NDArray[Any]) -> NDArray[np.uint16]:
    """The slots of rows: of keys or, in a dense table, of numbers of blocks.

    Raises:
        ValueShapeError: the table has no such block.
    """
    if not table.is_dense:
        return slot_of(names.astype(np.uint64))
    layout = dense_keys(table.spec)
    slots = np.empty(layout.keys.size, np.uint16)
    slots[layout.blocks] = slot_of(layout.keys)
    if names.size and int(names.max()) >= slots.size:
        raise ValueShapeError(table.spec.name, f"it has no block {int(names.max())}")
    return slots[names.astype(np.int64)]


def leave_pull(message: Message, tables: Tables) -> None:
    """Make a pull of a push and pull whose push is done."""
    meta = message.meta
    message.arrays = [message.arrays[place] for place in name_places(meta, tables, has_values=True)]
    blocks = {"blocks": True} if meta.body and "blocks" in meta.body else {}
    meta.cmd, meta.body = Command.PULL, {**_CREATING, **blocks}


def name_places(meta: Meta, tables: Tables, has_values: bool) -> list[int]:
    return key_places([is_whole(meta, table) for _, table, _ in tables], has_values)


def clocks_of(tables: Tables, server: int) -> tuple[Clock, ...]:
    """The tables' clocks and the versions of their rows on this server, for an answer."""
    return tuple(
        (table.id, table.mode.clock, ((server, table.store.version),)) for _, table, _ in tables
    )


def bases_of(meta: Meta) -> list[int]:
    """By table of a push the clock here at which its worker pulled; -1 where it does not say."""
    return [pairs[0][1] if pairs else -1 for _, _, pairs in meta.clocks]


def writes_of(message: Message, tables: Tables) -> list[Write]:
    """Table, keys and values of each table of a push or assignment."""
    arrays = iter(message.arrays)
    writes: list[Write] = [
        (number, None if is_whole(message.meta, table) else next_array(arrays), next_array(arrays))
        for number, table, _ in tables
    ]
    no_more(arrays)
    return writes


def error_of(meta: Meta, error: Exception) -> Exception:
    """The error of a request; that of a push says of which step and worker.

    Who pushes may wait for it some steps later. One that is too stale says it in a form of its own.
    """
    if not isinstance(error, PsliteError) or isinstance(error, VersionMismatchError):
        return error
    if meta.cmd not in PUSHES or not meta.clocks:
        return error
    return in_step(error, meta.clocks[0][1], role_and_rank(meta.sender)[1])


def next_array(arrays: Iterator[NDArray[Any]]) -> NDArray[Any]:
    for array in arrays:
        return array
    raise KVError("a request has fewer arrays than its tables need")


def no_more(arrays: Iterator[NDArray[Any]]) -> None:
    for _ in arrays:
        raise KVError("a request has more arrays than its tables need")


def counted(meta: Meta, count: int) -> Message:
    return Message(answer_to(meta, body={"count": count}))
