"""One server's share of a checkpoint, read back: by however many servers, in whatever slots.

Tables are compared first, all of them, so that what does not fit is said by name and nothing is
loaded. Each server reads the files of those servers whose slots it owns some of, and takes its own
rows from them.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, fields

import numpy as np
from numpy.typing import NDArray

from kv.checkpoint.errors import CheckpointMismatchError, DamagedCheckpointError
from kv.checkpoint.manifest import FileEntry, Manifest, ServerShard, TablePart, slots_of_ranges
from kv.checkpoint.places import Place
from kv.checkpoint.rowfile import read_blocks
from kv.checkpoint.saving import stores_of
from kv.checkpoint.state import unpack_state
from kv.engine import Engine
from kv.engine_table import Table
from kv.errors import KeyListError, ValueShapeError
from kv.executor import run_through
from kv.placement import slot_of
from kv.spec import TableSpec
from kv.store.layout import Layout, lay_out
from kv.store.rows import RowBatch

_SHAPE = ("kind", "dim", "shape", "storage")  # what rows look like, beside the optimiser's kind
Slots = NDArray[np.bool_]


@dataclass
class Loaded:
    """What a server has loaded: rows by table, and what is to be said about it."""

    rows: dict[str, int] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)


def mismatches(manifest: Manifest, specs: Sequence[TableSpec]) -> list[str]:
    """Why a checkpoint cannot be loaded into tables of these definitions; empty if it can."""
    saved = {spec["name"]: TableSpec.from_dict(spec) for spec in manifest.specs}
    here = {spec.name: spec for spec in specs}
    problems = [f"table {name} is in it, but not defined here" for name in saved.keys() - here]
    problems += [f"table {name} is defined here, but not in it" for name in here.keys() - saved]
    for name in saved.keys() & here.keys():
        old, new = saved[name], here[name]
        differ = [
            f"{key} is {getattr(old, key)} in it and {getattr(new, key)} here"
            for key in _SHAPE
            if getattr(old, key) != getattr(new, key)
        ]
        kinds = old.optimizer.name, new.optimizer.name
        floats = [spec.optimizer.state_floats(spec.dim) for spec in (old, new)]
        if kinds[0] != kinds[1] or floats[0] != floats[1]:
            differ.append(f"its optimizer is {old.optimizer!r} and {new.optimizer!r} here")
        if differ:
            problems.append(f"table {name}: " + ", ".join(differ))
    return sorted(problems)


def changes(manifest: Manifest, specs: Sequence[TableSpec]) -> list[str]:
    """Settings of tables that are others than in the checkpoint, and may be."""
    saved = {spec["name"]: TableSpec.from_dict(spec) for spec in manifest.specs}
    return [
        f"table {spec.name}: {key.name} is {getattr(saved[spec.name], key.name)} in checkpoint "
        f"{manifest.name} and {getattr(spec, key.name)} here, which counts from now on"
        for spec in specs
        if spec.name in saved
        for key in fields(TableSpec)
        if getattr(saved[spec.name], key.name) != getattr(spec, key.name)
    ]


class ShardLoader:
    """Loads a server's rows.

    Args:
        engine: the server's tables, all defined.
        slots: bool (1024,), those that are owned here; None is all.
    """

    def __init__(self, engine: Engine, slots: Slots | None) -> None:
        self._engine, self._slots = engine, slots

    def load(self, place: Place, chain: Sequence[Manifest], steps: Sequence[int]) -> Loaded:
        """Bring the tables to what the last of `chain` says, whatever is in them now.

        Args:
            chain: a full checkpoint and those that go on from it, in order; files are checked.
            steps: completed by the workers of this job, by rank.
        Raises:
            CheckpointMismatchError: the tables are others; nothing was changed.
            DamagedCheckpointError: a file is not as it was when it was checked.
            ArenaFullError: the rows do not fit.
        """
        last = chain[-1]
        specs = [table.spec for table in self._engine.tables]
        if problems := mismatches(last, specs):
            raise CheckpointMismatchError(place.url, last.name, problems)
        loaded = Loaded(notes=changes(last, specs))
        self._clear()
        for manifest in chain:
            for shard in manifest.servers:
                if self._is_wanted(shard) and not is_renewed(shard.rank, manifest, chain):
                    self._load_shard(place, manifest, shard)
        with self._engine.lock:
            self._engine.progress.resume(list(steps))
        for table in self._engine.tables:
            self._resume(place, last, table, loaded)
            loaded.rows[table.spec.name] = len(table.store)
        return loaded

    def _clear(self) -> None:
        """Forget the rows of sparse tables; dense ones are overwritten."""
        for table in self._engine.tables:
            if table.is_dense:
                continue
            for store, lock in stores_of(table):
                with lock:
                    while len(store):
                        start = 0
                        while start < store.top:
                            batch, start = store.export_scan(start, 1 << 16)
                            store.remove(batch.keys)

    def _is_wanted(self, shard: ServerShard) -> bool:
        return self._slots is None or bool((slots_of_ranges(shard.slots) & self._slots).any())

    def _load_shard(self, place: Place, manifest: Manifest, shard: ServerShard) -> None:
        for entry in shard.files:
            table = self._engine.table(self._engine.number_of(entry.table))
            path = f"{manifest.name}/{entry.path}"
            try:
                with place.open(path) as file:
                    for block in read_blocks(file, entry.nbytes):
                        self._apply(table, block)
            except (ValueError, KeyListError, ValueShapeError) as error:
                problem = f"file {path}: {error}"
                raise DamagedCheckpointError(place.url, manifest.name, problem) from error

    def _apply(self, table: Table, block: RowBatch | NDArray[np.uint64]) -> None:
        if isinstance(block, RowBatch):
            mine = block if self._slots is None else block.in_slots(self._slots)
            if len(mine):
                run_through(table.putting(mine, keep_versions=True))
        else:
            keys = block if self._slots is None else block[self._slots[slot_of(block)]]
            run_through(table.removing(keys))

    def _resume(self, place: Place, manifest: Manifest, table: Table, loaded: Loaded) -> None:
        """Clock, rate, versions and counters of a table."""
        shards = [shard for shard in manifest.servers if self._is_wanted(shard)]
        found = [shard.tables[table.spec.name] for shard in shards or manifest.servers]
        stores = stores_of(table)
        table.mode.resume(max(part.clock for part in found))
        saved = next(spec for spec in manifest.specs if spec["name"] == table.spec.name)
        if found[0].lr != TableSpec.from_dict(saved).optimizer.lr:  # set while it trained
            table.set_lr(found[0].lr)
        version = max(version for part in found for version in part.versions)
        for number, (store, lock) in enumerate(stores):
            own = version
            if len(found) == 1 and len(found[0].versions) == len(stores):
                own = found[0].versions[number]
            with lock:
                store.version = max(store.version, own)
        if stores[0][0].counter is not None:
            self._adopt_counters(place, manifest, table, found, loaded)
        if any(part.layouts for part in found):
            is_same = len(shards) == 1 and self._owns_just(shards[0])
            self._lay_out(place, manifest, table, found[0] if is_same else None, loaded)

    def _owns_just(self, shard: ServerShard) -> bool:
        """Whether that server had the slots that this one has."""
        slots = slots_of_ranges(shard.slots)
        return bool(slots.all() if self._slots is None else (slots == self._slots).all())

    def _lay_out(
        self,
        place: Place,
        manifest: Manifest,
        table: Table,
        part: TablePart | None,
        loaded: Loaded,
    ) -> None:
        """Bring the rows of a table that evicts to where they lay."""
        stores = stores_of(table)
        fits = part is not None and len(part.layouts) == len(stores)
        if fits and part is not None:
            for (store, lock), entry in zip(stores, part.layouts, strict=True):
                layout = Layout(**unpack_state(_read(place, manifest, entry).tobytes()))
                with lock:
                    fits = lay_out(store, layout) and fits
        if not fits:
            loaded.notes.append(
                f"table {table.spec.name} may evict other rows than it would have: servers, their "
                f"parts or the limit are others than in checkpoint {manifest.name}"
            )

    def _adopt_counters(
        self,
        place: Place,
        manifest: Manifest,
        table: Table,
        found: Sequence[TablePart],
        loaded: Loaded,
    ) -> None:
        stores = stores_of(table)
        for part in found:
            fits = len(part.gates) == len(stores)
            for (store, lock), entry, left in zip(stores, part.gates, part.left, strict=False):
                counters = _read(place, manifest, entry)
                assert store.counter is not None
                with lock:
                    fits = fits and store.counter.adopt(counters, left)
            if not fits:
                loaded.notes.append(
                    f"table {table.spec.name} counts sightings of keys without a row anew: the "
                    f"checkpoint has {len(part.gates)} parts or another number of counters"
                )


def is_renewed(rank: int, manifest: Manifest, chain: Sequence[Manifest]) -> bool:
    """Whether a later checkpoint of the chain has all rows of that server's slots.

    It wrote them itself, or it is gone: then who took its slots over did.
    """
    later = chain[chain.index(manifest) + 1 :]
    by_rank = [{shard.rank: shard.is_full for shard in part.servers} for part in later]
    return any(is_full.get(rank, True) for is_full in by_rank)


def _read(place: Place, manifest: Manifest, entry: FileEntry) -> NDArray[np.uint8]:
    with place.open(f"{manifest.name}/{entry.path}") as file:
        data = file.read()
    return np.frombuffer(data, np.uint8)
