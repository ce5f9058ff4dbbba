"""Rows that an asker has already: it says of which version, and gets those that changed since.

A REFRESH is a pull. With each table's keys goes what is *known* of them: the server's versions as
of which the asker knows rows, and for each row how many versions before these. The answer has the
values of the rows that have changed since, a bit for each row, and the versions as of which all of
them are known now. So one request brings a copy from any mixture of versions to the latest, in
`(min_version, max_version]` what has changed and nothing else.

Versions are counted by each part of a table on each server (`kv.versions`). They mean nothing after
another life of the server, another slot map, or rows that were set with versions of their own, as
from a checkpoint: all this is their *origin*, and of another origin a server sends every row.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from numpy.typing import NDArray

from kv.errors import KVError
from kv.executor import Turns
from kv.keyed_table import KeyedTable
from kv.packed import PACKED
from kv.placement import slot_of
from kv.table_messages import Tables, is_whole, next_array, no_more
from van.message import Message, answer_to

Keys = NDArray[np.uint64]
Values = NDArray[np.float32]
Known = NDArray[np.uint16]
Versions = NDArray[np.int64]

UNKNOWN = (1 << 16) - 1  # the age of a row that is not known, or of a version too old to tell
NOTHING: Known = np.empty(0, np.uint16)
PACKED_ROWS = "packed_rows"  # in an answer's body: `packed`, of rows that have changed alone
_WORDS = 4  # uint16 in a version


class Origin(NamedTuple):
    """What versions are counted by.

    Args:
        life: of the server.
        loads: how often rows have been set with versions of their own.
        map_version: of the slot map.
    """

    life: int
    loads: int
    map_version: int


def known_rows(origin: Origin, versions: Sequence[int], ages: Known) -> Known:
    """What is known of rows, as it travels: uint16.

    Args:
        versions: of the table's parts.
        ages: by row how many versions of its part before these it is known of, or UNKNOWN.
    """
    head = np.array([*origin, len(versions), *versions], "<u8").view("<u2")
    return np.concatenate([head.astype(np.uint16), ages])


def since_of(known: NDArray[Any], keys: Keys, origin: Origin, parts: int) -> Versions | None:
    """By row the version that it is known of, int64 (n,), -1: of none; None: none is known.

    Args:
        known: as `known_rows` made it; NOTHING says that none is.
        origin: of the versions here.
        parts: of the table here.
    Raises:
        KVError: it is not of that form.
    """
    if known.dtype != np.uint16 or known.ndim != 1:
        raise KVError(f"what is known of rows is uint16, not {known.dtype} {known.shape}")
    head = len(origin) + 1
    if known.size < _WORDS * head:
        return None
    words = np.ascontiguousarray(known[: _WORDS * head]).astype("<u2").view("<u8").tolist()
    if tuple(words) != (*origin, parts):
        return None
    start = _WORDS * (head + parts)
    if known.size != start + keys.size:
        raise KVError(f"of {keys.size} rows {known.size - start} are said to be known or not")
    versions = np.ascontiguousarray(known[_WORDS * head : start]).astype("<u2").view("<u8")
    ages = known[start:]
    since: Versions = versions.astype(np.int64)[slot_of(keys) % parts] - ages
    since[ages == UNKNOWN] = -1
    return since


def answering(message: Message, tables: Tables, life: int, map_version: int) -> Turns[Message]:
    """The answer to a REFRESH that need not wait, its values not compressed."""
    meta, arrays = message.meta, iter(message.arrays)
    values: list[NDArray[Any]] = []
    bits: list[NDArray[Any]] = []
    counted: list[list[Any] | None] = []
    for _, table, _ in tables:
        keys = None if is_whole(meta, table) else next_array(arrays)
        known = next_array(arrays)
        if keys is None:
            values.append((yield from table.pulling(None, True)))
            counted.append(None)
            continue
        if not isinstance(table, KeyedTable) or table.mode.notes_pulls:
            raise KVError(f"table {table.spec.name} is pulled whole")
        if meta.key_list:
            table.remember(keys)
        origin = Origin(life, table.loads, map_version)
        some, has_changed, until = yield from _changed(table, keys, known, origin)
        values.append(some)
        bits.append(np.packbits(has_changed))
        counted.append([list(origin), until])
    no_more(arrays)
    return Message(answer_to(meta, body={"known": counted}), [*values, *bits])


def _changed(
    table: KeyedTable, keys: Keys, known: NDArray[Any], origin: Origin
) -> Turns[tuple[Values, NDArray[np.bool_], list[int]]]:
    """Rows that are not as they are known: values, which they are, and the versions before."""
    until = table.store.versions  # read first: what changes meanwhile is sent again next time
    since = since_of(known, keys, origin, len(until))
    values = yield from table.pulling(keys, True)
    if since is None:
        return values, np.ones(keys.size, np.bool_), until
    versions = yield from table.versions_of(keys)
    has_changed = (versions == 0) | (since < 0) | (versions > since)
    return values[has_changed], has_changed, until


def note_packed(answer: Message) -> None:
    """Say under a name of its own which values are packets: there are fewer rows than asked for."""
    body = answer.meta.body
    if body and PACKED in body:
        body[PACKED_ROWS] = body.pop(PACKED)


def has_changed(bits: NDArray[Any], rows: int) -> NDArray[np.bool_]:
    """Of each row whether its value came: bool (rows,).

    Raises:
        KVError: there are not as many.
    """
    if bits.dtype != np.uint8 or bits.shape != ((rows + 7) // 8,):
        raise KVError(f"a server told of {rows} rows by {bits.dtype} {bits.shape}")
    return np.unpackbits(bits, count=rows).astype(np.bool_)
