"""The manifest of a checkpoint: all that is in it, and how to know that it is all there.

JSON that people can read, with a checksum over itself. A checkpoint of kind `incremental` goes on
from `base`; a server that could not say what has changed wrote all of its rows nevertheless
(`is_full`), and nothing before counts for it.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any, Self

import numpy as np
from numpy.typing import NDArray

from kv.checkpoint.rowfile import new_digest
from kv.leases.reading import Ranges
from kv.placement import NUM_SLOTS

FORMAT = 1
Slots = NDArray[np.bool_]


@dataclass(frozen=True)
class FileEntry:
    """A file of a checkpoint.

    Attributes:
        path: within the checkpoint.
        nbytes, digest: of the whole file.
        table, part: what it holds; empty and -1 for others than rows.
        rows, removed: how many.
    """

    path: str
    nbytes: int
    digest: str
    table: str = ""
    part: int = -1
    rows: int = 0
    removed: int = 0


@dataclass(frozen=True)
class TablePart:
    """What one server says of one table, beside the rows.

    Attributes:
        clock: of the table there.
        lr: the learning rate it works with.
        versions: of the store of each part.
        size: rows there when it began.
        gates: the files with admission counters, by part.
        left: sightings until they are halved, by part.
        layouts: the files that say where rows lie, by part, of tables that evict.
    """

    clock: int
    lr: float
    versions: list[int]
    size: int
    gates: list[FileEntry] = field(default_factory=list)
    left: list[int] = field(default_factory=list)
    layouts: list[FileEntry] = field(default_factory=list)


@dataclass(frozen=True)
class ServerShard:
    """One server's share of a checkpoint.

    Attributes:
        slots: ranges [first, last] of the slots it owns.
        completed: steps of the workers, by rank, as it knew them.
        tables: by name.
        files: of rows.
        is_full: whether all rows are there.
    """

    rank: int
    slots: list[list[int]]
    completed: list[int]
    tables: dict[str, TablePart]
    files: list[FileEntry]
    is_full: bool

    @classmethod
    def from_dict(cls, found: Mapping[str, Any]) -> Self:
        """What `dataclasses.asdict` gave."""
        values = dict(found)
        values["files"] = [FileEntry(**entry) for entry in values["files"]]
        values["tables"] = {
            name: TablePart(
                **{
                    **part,
                    "gates": [FileEntry(**entry) for entry in part["gates"]],
                    "layouts": [FileEntry(**entry) for entry in part["layouts"]],
                }
            )
            for name, part in values["tables"].items()
        }
        return cls(**values)

    def all_files(self) -> list[FileEntry]:
        """Files of rows, of counters and of layouts."""
        parts = self.tables.values()
        return [*self.files, *(file for part in parts for file in (*part.gates, *part.layouts))]


@dataclass(frozen=True, kw_only=True)
class Manifest:
    """What is in a checkpoint.

    Attributes:
        name: of the checkpoint; number: one more than that of any before.
        kind: `full` or `incremental`; base: what the latter goes on from.
        mode: `step`, taken at a barrier, or `fuzzy`, taken while training went on.
        created: when, ISO 8601 in UTC.
        steps: completed by each worker, by rank.
        specs: definitions of the tables, as `TableSpec.to_dict` has them.
        workers: files with the workers' own state, by rank; fewer, or none, where they gave none.
        note: the application's, such as a fingerprint of its settings.
        reading: of each data set that workers share, what is read: [epoch, start, stop] each.
    """

    name: str
    number: int
    kind: str
    base: str | None
    mode: str
    created: str
    steps: list[int]
    specs: list[dict[str, Any]]
    servers: list[ServerShard]
    workers: list[FileEntry] = field(default_factory=list)
    note: dict[str, Any] = field(default_factory=dict)
    reading: dict[str, Ranges] = field(default_factory=dict)
    seconds: float = 0.0

    def files(self) -> list[FileEntry]:
        """All files but the manifest."""
        return [*self.workers, *(file for shard in self.servers for file in shard.all_files())]

    @property
    def clocks(self) -> dict[str, int]:
        """By the name of a table the latest clock that a server had."""
        clocks: dict[str, int] = {}
        for shard in self.servers:
            for name, part in shard.tables.items():
                clocks[name] = max(part.clock, clocks.get(name, 0))
        return clocks

    @property
    def nbytes(self) -> int:
        """Of all files."""
        return sum(file.nbytes for file in self.files())

    def to_bytes(self) -> bytes:
        """As it is written."""
        body = {"format": FORMAT, **dataclasses.asdict(self)}
        return json.dumps({**body, "digest": _digest_of(body)}, indent=1).encode() + b"\n"

    @classmethod
    def from_bytes(cls, data: bytes) -> Self:
        """What `to_bytes` wrote.

        Raises:
            ValueError: it is torn, altered or of another format; the text says which.
        """
        try:
            body = json.loads(data)
            digest = body.pop("digest")
            number = body.pop("format")
        except (ValueError, TypeError, AttributeError, KeyError) as error:
            raise ValueError(f"its manifest cannot be read ({error})") from None
        if number != FORMAT:
            raise ValueError(f"its manifest is of format {number}; this version reads {FORMAT}")
        if digest != _digest_of({"format": number, **body}):
            raise ValueError("its manifest was altered: the checksum is another")
        try:
            body["servers"] = [ServerShard.from_dict(shard) for shard in body["servers"]]
            body["workers"] = [FileEntry(**entry) for entry in body["workers"]]
            found = cls(**body)
        except (TypeError, KeyError, AttributeError) as error:
            raise ValueError(f"its manifest lacks something ({error})") from None
        if problem := found.problem():
            raise ValueError(problem)
        return found

    def problem(self) -> str:
        """What is missing between servers, tables and slots; empty if nothing is."""
        owners = np.zeros(NUM_SLOTS, np.int64)
        for shard in self.servers:
            owners += slots_of_ranges(shard.slots)
        if (owners != 1).any():
            slot = int(np.flatnonzero(owners != 1)[0])
            return f"slot {slot} is in {owners[slot]} of its servers' shares"
        names = {spec["name"] for spec in self.specs}
        for shard in self.servers:
            for name in sorted(names ^ set(shard.tables)):
                where = "lacks" if name in names else "has an extra"
                return f"server {shard.rank} {where} table {name}"
            for name, part in shard.tables.items():
                parts = sorted(file.part for file in shard.files if file.table == name)
                if parts != list(range(len(part.versions))):
                    return (
                        f"server {shard.rank} has parts {parts} of table {name}, "
                        f"not 0 to {len(part.versions) - 1}"
                    )
        return ""


def ranges_of_slots(slots: Slots) -> list[list[int]]:
    """The marked slots as ranges [first, last]."""
    edges = np.flatnonzero(np.diff(np.concatenate([[False], slots, [False]]).astype(np.int8)))
    return [
        [int(first), int(stop) - 1] for first, stop in zip(edges[::2], edges[1::2], strict=True)
    ]


def slots_of_ranges(ranges: list[list[int]]) -> Slots:
    """The inverse, bool (1024,)."""
    slots = np.zeros(NUM_SLOTS, np.bool_)
    for first, last in ranges:
        slots[first : last + 1] = True
    return slots


def _digest_of(body: Mapping[str, Any]) -> str:
    digest = new_digest()
    digest.update(json.dumps(body, sort_keys=True, separators=(",", ":")).encode())
    return digest.hexdigest()
