"""The record of one server on disk, a file of blocks:

HEAD  JSON: what the cluster is, `Head`
LIST  JSON: the tables that requests are about, a list of names; lists are numbered from 0
SPEC  JSON: the definition of a table
TURN  entries of `ENTRY`, the requests in the order in which they were worked on
DONE  JSON: how many requests there were, and why the run ended
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kv.replay.blocks import DONE, BlockWriter, read_blocks
from kv.replay.entry import ENTRY, MOST_RANKS, MOST_TIMESTAMPS, Entry
from kv.replay.errors import RecordError

BUFFERED = 4096  # entries that wait to be written
_HEAD, _LIST, _SPEC, _TURN = b"HEAD", b"LIST", b"SPEC", b"TURN"


def server_file(folder: Path, rank: int) -> Path:
    """Where the record of a server lies in the folder of its run's."""
    return folder / f"server-{rank}.record"


@dataclass(frozen=True, kw_only=True)
class Head:
    """What a run must have in common with the recorded one, as a server sees it.

    Attributes:
        server: its rank.
        mode: the job's consistency with its settings, as text.
        seed: of initial values.
        threads: of the server, and parts of its sparse tables; a replaying server has as many.
        max_staleness: -1 where any is taken.
        deterministic: rows came by their keys.
    """

    server: int
    servers: int
    workers: int
    mode: str
    seed: int
    threads: int
    max_staleness: int = -1
    deterministic: bool = False

    def differences(self, other: Head) -> list[str]:
        """What `other` says otherwise and must not, for people."""
        return [
            f"{item.name} = {getattr(other, item.name)} where it was {getattr(self, item.name)}"
            for item in fields(self)
            if item.name != "threads" and getattr(self, item.name) != getattr(other, item.name)
        ]


@dataclass(frozen=True)
class Record:
    """A record that was read.

    Attributes:
        lists: the names of tables that entries mean by their number.
        specs: definitions of tables by name.
        entries: the requests, of type `ENTRY`, in order.
        ended: why the run ended early; empty: it came to its end.
    """

    path: Path
    head: Head
    lists: Sequence[Sequence[str]]
    specs: Mapping[str, Mapping[str, Any]]
    entries: NDArray[Any] = field(repr=False)
    ended: str = ""

    def entry(self, place: int) -> Entry:
        """The entry at a place."""
        return Entry(*(int(value) for value in self.entries[place]))


class RecordWriter:
    """Writes the record of one server. One thread at a time.

    Args:
        path: of the file, which must not be there.
    Raises:
        RecordError: it is, or cannot be written; so do all calls here.
    """

    def __init__(self, path: Path, head: Head) -> None:
        if head.workers > MOST_RANKS:
            raise RecordError(path, f"there can be {MOST_RANKS} workers, not {head.workers}")
        self.blocks = BlockWriter(path)
        self._lists: dict[tuple[str, ...], int] = {}
        self._specs: set[str] = set()
        self._entries = bytearray()
        self._count = 0
        self.blocks.add_json(_HEAD, asdict(head))

    def number_of(self, tables: Sequence[str]) -> int:
        """The number of a list of tables, the same each time."""
        names = tuple(tables)
        number = self._lists.get(names)
        if number is None:
            number = self._lists[names] = len(self._lists)
            if number >= MOST_RANKS:
                problem = "requests are about too many combinations of tables"
                raise RecordError(self.blocks.path, problem)
            self.blocks.add_json(_LIST, names)
        return number

    def define(self, spec: Mapping[str, Any]) -> None:
        """Note the definition of a table, once."""
        name = str(spec.get("name"))
        if name not in self._specs:
            self._specs.add(name)
            self.blocks.add_json(_SPEC, dict(spec))

    def add(self, entry: Entry) -> None:
        """Note a request as the next one."""
        if entry.timestamp >= MOST_TIMESTAMPS:
            problem = f"a worker made {entry.timestamp} requests, too many"
            raise RecordError(self.blocks.path, problem)
        self._entries += entry.pack()
        self._count += 1
        if len(self._entries) >= BUFFERED * ENTRY.itemsize:
            self.flush()

    def flush(self) -> None:
        """Write what is buffered."""
        if self._entries:
            entries, self._entries = self._entries, bytearray()
            self.blocks.add(_TURN, bytes(entries))

    def close(self, ended: str = "") -> None:
        """Write the end; a second call does nothing, nor does one of a signal amid a write.

        Args:
            ended: why the run ended early.
        """
        if self.blocks.is_open:
            self.flush()
            self.blocks.close(requests=self._count, ended=ended)


def read_head(path: Path) -> Head:
    """The head of a record, without reading the rest; errors as of `read_record`."""
    kind, payload = next(read_blocks(path))
    return _head_of(path, kind, payload)


def read_record(path: Path) -> Record:
    """A whole record.

    Raises:
        RecordError: it cannot be read, is torn, altered or not complete.
    """
    head: Head | None = None
    lists: list[list[str]] = []
    specs: dict[str, dict[str, Any]] = {}
    turns = [np.empty(0, ENTRY)]
    end: dict[str, Any] = {}
    for kind, payload in read_blocks(path):
        if head is None:
            head = _head_of(path, kind, payload)
        elif kind == _TURN:
            turns.append(np.frombuffer(payload, ENTRY))
        elif kind == _LIST:
            lists.append(json.loads(payload))
        elif kind == _SPEC:
            spec = json.loads(payload)
            specs[spec["name"]] = spec
        elif kind == DONE:
            end = json.loads(payload)
        else:
            raise RecordError(
                path, f"has a block of unknown kind {kind!r}; is it of a later pslite?"
            )
    assert head is not None, "a file without blocks is not complete"
    entries = np.concatenate(turns)
    if entries.size != end["requests"]:
        problem = f"has {entries.size} requests where it says {end['requests']}"
        raise RecordError(path, f"{problem}: a part of it is missing")
    return Record(path, head, lists, specs, entries, str(end["ended"]))


def _head_of(path: Path, kind: bytes, payload: bytes) -> Head:
    try:
        if kind == _HEAD:
            return Head(**json.loads(payload))
    except TypeError:
        pass
    raise RecordError(path, "does not begin with what its cluster was; is it of another pslite?")
