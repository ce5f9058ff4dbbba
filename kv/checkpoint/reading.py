"""The rows of a checkpoint without a server: for looking at them, comparing, exporting.

A chain is read backwards, so that the first that is seen of a key is what became of it: one part of
one table of one server at a time, whose keys have to fit into memory.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from kv.checkpoint.errors import CheckpointError, DamagedCheckpointError
from kv.checkpoint.manifest import FileEntry, Manifest
from kv.checkpoint.rowfile import Block, read_blocks
from kv.checkpoint.shelf import Shelf
from kv.spec import TableSpec, dense_keys
from kv.store.rows import RowBatch

Keys = NDArray[np.uint64]
Values = NDArray[np.float32]


class SavedTables:
    """The tables of one checkpoint.

    Args:
        shelf: where it lies.
        chain: the checkpoint and what it goes on from, see `Shelf.chain`.
    """

    def __init__(self, shelf: Shelf, chain: Sequence[Manifest]) -> None:
        self._shelf, self._chain = shelf, chain
        self.manifest = chain[-1]
        specs = [TableSpec.from_dict(spec) for spec in self.manifest.specs]
        self.specs = {spec.name: spec for spec in specs}

    def spec(self, table: str) -> TableSpec:
        """The definition of a table.

        Raises:
            CheckpointError: it has no such table.
        """
        if table not in self.specs:
            known = ", ".join(sorted(self.specs)) or "none"
            problem = f"{self.manifest.name} has no table {table}; it has {known}"
            raise CheckpointError(self._shelf.url, problem)
        return self.specs[table]

    def batches(self, table: str) -> Iterator[RowBatch]:
        """All rows of a table, no key twice; keys rise within a batch.

        Raises:
            CheckpointError: no such table, or a file cannot be read.
        """
        self.spec(table)
        for shard in self.manifest.servers:
            for part in range(len(shard.tables[table].versions)):
                yield from self._part(table, shard.rank, part)

    def _part(self, table: str, rank: int, part: int) -> Iterator[RowBatch]:
        settled = np.empty(0, np.uint64)  # keys of which it is known what became of them
        files = list(self._files(table, rank, part))
        for number, (manifest, entry) in enumerate(files):
            is_first = number == len(files) - 1
            if is_first and not settled.size and not entry.removed:
                yield from (b for b in self._blocks(manifest, entry) if isinstance(b, RowBatch))
                return
            for block in reversed(list(self._blocks(manifest, entry))):
                keys = block.keys if isinstance(block, RowBatch) else block
                new = ~np.isin(keys, settled, assume_unique=False)
                if isinstance(block, RowBatch) and new.any():
                    yield block.take(np.flatnonzero(new))
                settled = np.union1d(settled, keys)

    def _files(self, table: str, rank: int, part: int) -> Iterator[tuple[Manifest, FileEntry]]:
        """That part's files, the last first, as far back as they count."""
        for manifest in reversed(self._chain):
            for shard in manifest.servers:
                if shard.rank != rank:
                    continue
                for entry in shard.files:
                    if (entry.table, entry.part) == (table, part):
                        yield manifest, entry
                if shard.is_full:
                    return

    def _blocks(self, manifest: Manifest, entry: FileEntry) -> Iterator[Block]:
        path = f"{manifest.name}/{entry.path}"
        try:
            with self._shelf.place.open(path) as file:
                yield from read_blocks(file, entry.nbytes)
        except ValueError as error:
            problem = f"file {path}: {error}"
            raise DamagedCheckpointError(self._shelf.url, manifest.name, problem) from error

    def weights(self, table: str, batch: RowBatch) -> Values:
        """The weights of rows, float32 (n, dim)."""
        return weights_of(self.spec(table), batch)

    def array(self, table: str) -> Values:
        """A dense table's array.

        Raises:
            DamagedCheckpointError: blocks are missing.
        """
        spec = self.spec(table)
        layout = dense_keys(spec)
        rows = np.zeros((layout.keys.size, spec.dim), np.float32)
        found = 0
        for batch in self.batches(table):
            rows[np.searchsorted(layout.keys, batch.keys)] = self.weights(table, batch)
            found += len(batch)
        if found != layout.keys.size:
            problem = f"table {table} has {found} blocks of {layout.keys.size}"
            raise DamagedCheckpointError(self._shelf.url, self.manifest.name, problem)
        return layout.unpack(rows)

    def all_rows(self, table: str) -> RowBatch:
        """All rows by rising keys."""
        batches = list(self.batches(table))
        return RowBatch.together(batches or [RowBatch.empty(0)])


def weights_of(spec: TableSpec, batch: RowBatch) -> Values:
    """The weights in rows of a table, float32 (n, dim)."""
    kind = np.float16 if spec.storage == "float16" else np.float32
    found = np.ascontiguousarray(batch.data).view(kind)[:, : spec.dim]
    return found.astype(np.float32)


@dataclass(frozen=True)
class TableDifference:
    """How a table differs between two checkpoints.

    Attributes:
        only_first, only_second, changed, same: rows, by key; same is the same to the bit.
        largest: absolute difference of a weight; key: of that row.
        problem: why rows cannot be compared; empty if they can.
    """

    table: str
    only_first: int = 0
    only_second: int = 0
    changed: int = 0
    same: int = 0
    largest: float = 0.0
    key: int | None = None
    problem: str = ""

    @property
    def is_same(self) -> bool:
        return not (self.only_first or self.only_second or self.changed or self.problem)


def compare(first: SavedTables, second: SavedTables) -> Iterator[TableDifference]:
    """How the tables of two checkpoints differ, by name."""
    for name in sorted(first.specs.keys() | second.specs.keys()):
        if name not in second.specs or name not in first.specs:
            which = "first" if name in first.specs else "second"
            yield TableDifference(name, problem=f"only in the {which}")
            continue
        one, other = first.specs[name], second.specs[name]
        rows = first.all_rows(name), second.all_rows(name)
        widths = {batch.row_nbytes for batch in rows if len(batch)}
        if one.dim != other.dim or one.storage != other.storage or len(widths) > 1:
            yield TableDifference(name, problem=f"defined otherwise: {one.difference(other)}")
        else:
            yield _compare_rows(one, *rows)


def _compare_rows(spec: TableSpec, one: RowBatch, other: RowBatch) -> TableDifference:
    _, mine, yours = np.intersect1d(one.keys, other.keys, assume_unique=True, return_indices=True)
    mine_rows, your_rows = one.take(mine), other.take(yours)
    differs = (mine_rows.data != your_rows.data).any(axis=1) if mine.size else np.empty(0, np.bool_)
    places = np.flatnonzero(differs)
    largest, key = 0.0, None
    if places.size:
        weights = [weights_of(spec, batch.take(places)) for batch in (mine_rows, your_rows)]
        by_row = np.abs(weights[0] - weights[1]).max(axis=1)
        where = int(by_row.argmax())
        largest, key = float(by_row[where]), int(mine_rows.keys[places[where]])
    return TableDifference(
        spec.name,
        only_first=len(one) - mine.size,
        only_second=len(other) - mine.size,
        changed=places.size,
        same=mine.size - places.size,
        largest=largest,
        key=key,
    )
