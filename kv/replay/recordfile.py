"""The record of one server on disk: blocks, each with its size and checksum.

    HEAD  JSON: what the cluster is, `Head`
    LIST  JSON: the tables that requests are about, a list of names; lists are numbered from 0
    SPEC  JSON: the definition of a table
    TURN  entries of `ENTRY`, the requests in the order in which they were worked on
    DONE  JSON: how many requests there were, and why the run ended

A file that does not end with DONE is not complete: its server was killed, or it was cut off.
"""

from __future__ import annotations

import json
import os
import struct
import zlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field, fields
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kv.replay.entry import ENTRY, MOST_RANKS, MOST_TIMESTAMPS, Entry
from kv.replay.errors import RecordError

MAGIC = b"PSLREC1\n"
BUFFERED = 4096  # entries that wait to be written
_BLOCK = struct.Struct("<4sII")  # kind, bytes that follow, CRC-32 of kind and bytes
_HEAD, _LIST, _SPEC, _TURN, _DONE = b"HEAD", b"LIST", b"SPEC", b"TURN", b"DONE"


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
    """

    server: int
    servers: int
    workers: int
    mode: str
    seed: int
    threads: int
    max_staleness: int = -1

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
        self.path = path
        self._lists: dict[tuple[str, ...], int] = {}
        self._specs: set[str] = set()
        self._entries = bytearray()
        self._count = 0
        self.is_writing = False  # a block is half done, so that a signal may find
        if head.workers > MOST_RANKS:
            raise RecordError(path, f"there can be {MOST_RANKS} workers, not {head.workers}")
        try:
            path.parent.mkdir(parents=True, exist_ok=True)
            self._file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o644)
        except FileExistsError:
            problem = "there is one already; take another folder, or remove that"
            raise RecordError(path, problem) from None
        except OSError as error:
            raise RecordError(path, f"cannot be written: {error.strerror}") from error
        self._write(MAGIC)
        self._write_json(_HEAD, asdict(head))

    def number_of(self, tables: Sequence[str]) -> int:
        """The number of a list of tables, the same each time."""
        names = tuple(tables)
        number = self._lists.get(names)
        if number is None:
            number = self._lists[names] = len(self._lists)
            if number >= MOST_RANKS:
                raise RecordError(self.path, "requests are about too many combinations of tables")
            self._write_json(_LIST, names)
        return number

    def define(self, spec: Mapping[str, Any]) -> None:
        """Note the definition of a table, once."""
        name = str(spec.get("name"))
        if name not in self._specs:
            self._specs.add(name)
            self._write_json(_SPEC, dict(spec))

    def add(self, entry: Entry) -> None:
        """Note a request as the next one."""
        if entry.timestamp >= MOST_TIMESTAMPS:
            raise RecordError(self.path, f"a worker made {entry.timestamp} requests, too many")
        self._entries += entry.pack()
        self._count += 1
        if len(self._entries) >= BUFFERED * ENTRY.itemsize:
            self.flush()

    def flush(self) -> None:
        """Write what is buffered."""
        if self._entries:
            entries, self._entries = self._entries, bytearray()
            self._write_block(_TURN, bytes(entries))

    def close(self, ended: str = "") -> None:
        """Write the end; a second call does nothing.

        Args:
            ended: why the run ended early.
        """
        if self._file >= 0:
            self.flush()
            self._write_json(_DONE, {"requests": self._count, "ended": ended})
            os.close(self._file)
            self._file = -1

    def _write_json(self, kind: bytes, value: Any) -> None:
        self._write_block(kind, json.dumps(value).encode())

    def _write_block(self, kind: bytes, payload: bytes) -> None:
        self._write(_BLOCK.pack(kind, len(payload), _checksum(kind, payload)) + payload)

    def _write(self, block: bytes) -> None:
        self.is_writing = True
        try:
            while block:
                block = block[os.write(self._file, block) :]
        except OSError as error:
            raise RecordError(self.path, f"cannot be written: {error.strerror}") from error
        self.is_writing = False


def read_head(path: Path) -> Head:
    """The head of a record, without reading the rest; errors as of `read_record`."""
    for kind, payload in _blocks(path):
        return _head_of(path, kind, payload)
    raise RecordError(path, "is empty")


def read_record(path: Path) -> Record:
    """A whole record.

    Raises:
        RecordError: it cannot be read, is torn, altered or not complete.
    """
    head: Head | None = None
    lists: list[list[str]] = []
    specs: dict[str, dict[str, Any]] = {}
    turns: list[NDArray[Any]] = []
    end: dict[str, Any] | None = None
    for kind, payload in _blocks(path):
        if end is not None:
            raise RecordError(path, "goes on after its end; was it put together of several?")
        if head is None:
            head = _head_of(path, kind, payload)
        elif kind == _TURN:
            turns.append(np.frombuffer(payload, ENTRY))
        elif kind == _LIST:
            lists.append(json.loads(payload))
        elif kind == _SPEC:
            spec = json.loads(payload)
            specs[spec["name"]] = spec
        else:
            end = json.loads(payload)
    entries = np.concatenate([np.empty(0, ENTRY), *turns])
    if head is None or end is None:
        problem = "is not complete: the server that wrote it was killed, or the file was cut off"
        raise RecordError(path, problem)
    if entries.size != end["requests"]:
        problem = f"has {entries.size} requests where it says {end['requests']}"
        raise RecordError(path, f"{problem}: a part of it is missing")
    if entries.size and int(entries["tables"].max()) >= len(lists):
        raise RecordError(path, "names tables that it does not list")
    return Record(path, head, lists, specs, entries, str(end["ended"]))


def _head_of(path: Path, kind: bytes, payload: bytes) -> Head:
    if kind != _HEAD:
        raise RecordError(path, "does not begin with what its cluster was")
    try:
        return Head(**json.loads(payload))
    except TypeError as error:
        raise RecordError(path, f"is of another version of pslite: {error}") from None


def _checksum(kind: bytes, payload: bytes) -> int:
    return zlib.crc32(payload, zlib.crc32(kind))


def _blocks(path: Path) -> Iterator[tuple[bytes, bytes]]:
    """The blocks of a file, each checked."""
    try:
        with path.open("rb") as file:
            if file.read(len(MAGIC)) != MAGIC:
                raise RecordError(path, "is no record of a server's requests")
            while raw := file.read(_BLOCK.size):
                place = file.tell() - len(raw)
                if len(raw) < _BLOCK.size:
                    raise RecordError(path, f"is cut off at byte {place}")
                kind, size, crc = _BLOCK.unpack(raw)
                if kind not in (_HEAD, _LIST, _SPEC, _TURN, _DONE):
                    raise RecordError(path, f"is damaged at byte {place}: no block begins there")
                payload = file.read(size)
                if len(payload) < size:
                    raise RecordError(path, f"is cut off in its block at byte {place}")
                if _checksum(kind, payload) != crc or (kind == _TURN and size % ENTRY.itemsize):
                    raise RecordError(path, f"is damaged: its block at byte {place} was altered")
                yield kind, payload
    except OSError as error:
        raise RecordError(path, f"cannot be read: {error.strerror}") from error
