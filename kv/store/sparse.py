"""The rows of one table, or of a part of it, on one server.

`SparseStore` joins what stands beside it: where the rows are (`space`), what happens when memory
is full (`limits`), which keys get rows and which rows go again (`lifecycle`), and how a row is made
and updated (`formats`). A change is numbered: a row's version is the store's version when the
row last changed.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from kv.errors import MissingKeyError, ScanError, ValueShapeError
from kv.initializers import table_seed
from kv.kernels import records
from kv.kernels.jit import frozen
from kv.spec import LINE, TableSpec
from kv.store import arena
from kv.store import rows as batches
from kv.store.delay import Delay, part_of
from kv.store.formats import format_of
from kv.store.index import Index, Note
from kv.store.lifecycle import Admissions, Counter, Sweep, gate_of
from kv.store.limits import Evict, Refuse, limit_of
from kv.store.removals import Removals
from kv.store.rows import RowBatch, Slots
from kv.store.stats import StoreStats, TopKeys

BATCH = 65536  # rows of one batch of `items`
EPOCH_SHIFT = 33  # where a scan's place has the store's epoch; fingerprints take the bits below
EPOCHS = 1 << 11
SWEEP = 4096  # rows that one push looks at for expiry, at most
ONE_SHOW = int(records.SHOW)
Keys = NDArray[np.uint64]
Values = NDArray[np.float32]
Rows = NDArray[np.int64]
Shows = NDArray[np.float32]


class SparseStore:
    """Rows of `spec.dim` float32 with their optimiser's state, by key. Not thread safe.

    All key arguments are uint64 (n,), strictly increasing, and all values float32 (n, dim); the
    engine has checked that.

    Args:
        spec: the table's definition, its mode and seed resolved.
        capacity: keys to expect; only a hint.
        reserve: bytes of address space for rows; by default this machine's memory.
        parts: stores of this server that share the table, and so its memory limit.
        now: the time in seconds, for what rows remember and for expiry.
        spill_dir: where rows that are spilled lie; empty is the system's directory for temporary
            files.
    """

    def __init__(
        self,
        spec: TableSpec,
        capacity: int = 0,
        reserve: int | None = None,
        *,
        parts: int = 1,
        now: Callable[[], float] = time.time,
        spill_dir: str = "",
    ) -> None:
        self.spec, self.dim, self._now = spec, spec.dim, now
        self.format = format_of(spec)
        self.stride = stride_of(self.format.floats, is_tight=spec.storage == "float16")
        self.version = 0  # grows with every change
        nbytes = arena.physical_memory() if reserve is None else reserve
        self.limit = limit_of(spec, self.stride, capacity, nbytes, parts, spill_dir)
        self.space = self.limit.space
        self._gate: Admissions | None = None
        if spec.admission is not None:
            self._gate = Admissions(
                gate_of(spec.name, spec.admission, table_seed(spec.seed or 0, spec.name), parts)
            )
        self._sweep = None if spec.expiry is None else Sweep(spec.expiry)
        self._rate = 0.0 if self._sweep is None else self._sweep.rate
        self._watches = self._sweep is not None or isinstance(self.limit, Evict)
        self._top = TopKeys()
        self._hits = self._misses = 0
        self._epoch = 0  # changes when places of scans do
        self._scanned_at = 0.0  # when a scan that is not over went on

    def __len__(self) -> int:
        return len(self.index)

    def __repr__(self) -> str:
        return f"<SparseStore {self.spec.name} rows={len(self)} version={self.version}>"

    @property
    def index(self) -> Index:
        """Keys and records of the rows."""
        return self.space.index

    @property
    def data(self) -> Values:
        """The rows in memory, float32 (capacity, stride): weights, then state, then padding."""
        return self.space.data

    @property
    def capacity(self) -> int:
        """Rows that address space is reserved for."""
        return self.space.capacity

    @property
    def generation(self) -> int:
        """Changes when the row number of a known key may have changed or become another key's."""
        return self.space.generation

    @property
    def nbytes(self) -> int:
        """Bytes of memory in use: rows ever given out, their records, index, counters."""
        return self.limit.nbytes + (self._gate.nbytes if self._gate else 0)

    @property
    def top(self) -> int:
        """Where a scan ends."""
        return self._position(self.space.end)

    def pull(
        self,
        keys: Keys,
        create: bool = True,
        out: Values | None = None,
        rows: Rows | None = None,
    ) -> Values:
        """Weights of `keys`, float32 (n, dim).

        A key without a row gets one if the table says missing=init, has no admission policy, and
        `create` is true; else it reads what it would be initialised to, or zeros under
        missing=zeros. With `create` the rows count as seen, where anything asks for that.

        Args:
            out: float32 (n, dim), C-contiguous, to be written and returned; None is new memory.
            rows: what `locate` said of `keys` in this `generation`.
        Raises:
            MissingKeyError: a key has no row and the table says missing=error.
            ArenaFullError: no room for the rows; nothing changed.
        """
        if out is None:
            out = np.empty((keys.size, self.dim), np.float32)
        now = self._seconds() if create and self._watches else 0
        if rows is not None:
            if now:
                self._see(rows, 0, now)
            self.limit.touch(rows)
            self._hits += rows.size
            self.format.gather(self.data, rows, out)
            return out
        keys, version = frozen(keys), self.version + 1
        if keys.size <= self.limit.at_once:
            self._pull(keys, create, out, now, version)
        else:
            for part in self._parts(keys):
                self._pull(keys[part], create, out[part], now, version)
        return out

    def push(
        self,
        keys: Keys,
        grads: Values,
        clock: int = 0,
        rows: Rows | None = None,
        shows: Shows | None = None,
        delay: Delay | None = None,
    ) -> Rows | None:
        """One optimiser step on the rows of `keys`; a key without a row gets one first.

        With an admission policy only if that admits it, else its gradient is dropped.
        Returns what `locate` would have said if the push found it, for the `generation` the store
        had before if it still has it; None also where that is not known.

        Args:
            clock: the table's, which schedules, rounding and WithProbability follow.
            rows: what `locate` said of `keys` in this `generation`.
            shows: what the push counts for each key, float32 (n,); None is 1.
            delay: of the gradients, if that changes the step.
        Raises:
            MissingKeyError: a key has no row and the table says missing=error; nothing changed.
            ArenaFullError: no room for the rows; nothing changed, except where the disk was full
                in the midst of a push of more rows than fit into memory together.
        """
        if keys.size == 0:
            return None
        keys, grads, version = frozen(keys), frozen(grads), self.version + 1
        if rows is not None:
            self._hits += rows.size
            records.see(self.index.records, rows, *self._note(version, shows))
            self._step(keys, rows, grads, clock, shows, version, delay)
        elif keys.size <= self.limit.at_once:
            rows = self._push(keys, grads, clock, shows, version, delay)
        else:
            for part in self._parts(keys):
                counts = None if shows is None else shows[part]
                late = part_of(delay, part)
                self._push(keys[part], grads[part], clock, counts, version, late)
        if self._sweep is not None and self._sweep.is_due(self._now()):
            self.expire(most=min(SWEEP, 64 + keys.size // 4))
        return rows

    def set_lr(self, lr: float) -> None:
        """The learning rate of later pushes, before the schedule's factor.

        Raises:
            SettingError: no finite number of 0 or more.
        """
        self.format.step.set_lr(lr)

    def create(self, keys: Keys) -> None:
        """Make and initialise rows for the keys that have none, whatever the table's policies.

        In a new store they are numbered 0, 1, … in the order of `keys`.
        """
        keys, version = frozen(keys), self.version + 1
        for some in self._slices(keys.size):
            part = keys[some]
            self.limit.settle(part)
            rows, absent, _ = self.index.find(part)
            if absent:
                self._bring(part, rows, absent, 0, version)
                self.limit.touch(rows)

    def locate(self, keys: Keys) -> Rows | None:
        """The row numbers of `keys`, int64 (n,), if all have rows in memory; else None."""
        rows, absent, on_disk = self.index.find(frozen(keys))
        return None if absent or on_disk else rows

    def row_versions(self, keys: Keys, rows: Rows | None = None) -> NDArray[np.int64]:
        """The version of each of the keys' rows, int64 (n,); 0 where there is none in memory.

        Args:
            rows: what `locate` said of `keys` in this `generation`.
        """
        if rows is None:
            rows, _, _ = self.index.find(frozen(keys))
        versions = self.index.records[np.maximum(rows, 0), records.VERSION].astype(np.int64)
        versions[rows < 0] = 0
        return versions

    def absent(self, keys: Keys) -> Keys:
        """Those of `keys` that have no row."""
        rows, absent, _ = self.index.find(frozen(keys))
        return keys[rows == -1] if absent else keys[:0]

    def assign(self, keys: Keys, values: Values) -> None:
        """Set rows outright, made where there are none; their optimiser state starts again.

        Raises:
            ArenaFullError: no room for the rows.
        """
        keys, values, now, version = frozen(keys), frozen(values), self._seconds(), self.version + 1
        for part in self._slices(keys.size):
            self.limit.settle(keys[part])
            rows, absent, on_disk = self.index.find(keys[part])
            if absent or on_disk:
                self._bring(keys[part], rows, absent, on_disk, version)
            self.version = version
            self.format.assign(self.data, rows, values[part])
            self._see(rows, version, now)
            self.limit.touch(rows)

    def delete(self, keys: Keys) -> int:
        """Forget rows; returns how many there were."""
        removed = self.space.remove(keys)
        self.version += bool(removed)
        return removed

    def expire(self, now: float | None = None, most: int | None = None) -> int:
        """Look at all rows, or at the next `most`, and forget those that the policy lets go.

        A push calls this for some rows. `now` is in seconds, by default the store's clock. Returns
        how many went.
        """
        if self._sweep is None:
            return 0
        gone = self._sweep.run(self.space, self._now() if now is None else now, most)
        self.version += bool(gone)
        return gone

    def own(self, mine: Slots) -> None:
        """Own the rows of these slots, bool (1024,); others are copies, and do not expire here."""
        if self._sweep is not None:
            self._sweep.own(mine, self._now())

    def stats(self) -> StoreStats:
        """Sizes of now and counts since the store was made."""
        cold = self.space.cold
        return StoreStats(
            rows=len(self),
            hot_rows=self.space.in_use,
            nbytes=self.nbytes,
            disk_nbytes=0 if cold is None else cold.nbytes,
            load_factor=self.index.load,
            admitted=self._gate.admitted if self._gate else 0,
            denied=self._gate.denied if self._gate else 0,
            dropped_gradients=self._gate.denied if self._gate else 0,
            evicted=self.limit.evicted,
            expired=0 if self._sweep is None else self._sweep.expired,
            spilled=self.limit.spilled,
            clipped_rows=self.format.step.clipped_rows,
            clipped_pushes=self.format.step.clipped_wholes,
            hot_hits=self._hits,
            hot_misses=self._misses,
            top=self._top.look(self.space),
        )

    def items(self, batch: int = BATCH) -> Iterator[tuple[Keys, Values]]:
        """All rows in batches of (keys, weights), at most `batch` each; keys rise within a batch.

        Between two batches the table may change: rows that are there throughout come once, those
        that are added or go meanwhile may come or not. (In a table that spills, keys with equal
        fingerprints come in one batch, even if it is then larger.)
        """
        start = 0
        while start < self.top:
            keys, values, start = self.scan(start, batch)
            if keys.size:
                yield keys, values

    def scan(self, start: int, count: int) -> tuple[Keys, Values, int]:
        """Rows from the place `start` on, `count` or fewer: (keys, weights, where to go on).

        The scan begins at 0 and is over when the returned place is not below `top`.
        """
        keys, data, rows, stop = self.space.scan(self._place(start), count)
        out = np.empty((rows.size, self.dim), np.float32)
        self.format.gather(data, rows, out)
        return keys, out, self._position(stop)

    def _place(self, start: int) -> int:
        """The place in memory that a scan has come to.

        Raises:
            ScanError: rows have got other places since.
        """
        if start <= 0:
            return 0
        epoch, place = start >> EPOCH_SHIFT, start & ((1 << EPOCH_SHIFT) - 1)
        if epoch != self._epoch:
            raise ScanError(self.spec.name)
        return place

    def _position(self, place: int) -> int:
        """What a scan that has come to that place is told."""
        if place < self.space.end:
            self._scanned_at = time.monotonic()
        return self._epoch << EPOCH_SHIFT | place

    def count(self, slots: Slots) -> int:
        """How many rows there are in these slots, bool (1024,)."""
        total, start = 0, 0
        while start < self.space.end:
            found, start = batches.look(self.space, start, BATCH, slots, 0, 0)
            total += found.size
        return total

    # -- rows as they are stored --------------------------------------------------------------

    @property
    def row_nbytes(self) -> int:
        """Bytes of a row in a `RowBatch`: weights and state, no padding."""
        return 4 * self.format.floats

    def export(self, keys: Keys) -> RowBatch:
        """The rows of those of `keys` that have one; nothing counts as seen or used."""
        rows, absent, _ = self.index.find(frozen(keys))
        found = rows[rows != -1] if absent else rows
        return batches.read(self.space, found, self.format.floats)

    def export_scan(
        self,
        start: int,
        count: int,
        slots: Slots | None = None,
        since: int = 0,
        seen_since: int = 0,
    ) -> tuple[RowBatch, int]:
        """Like `scan`, of whole rows: `count` places are looked at, so fewer rows may come.

        Args:
            slots: bool (1024,), the slots whose rows are wanted; None is all.
            since: only rows that changed after the store had this version;
            seen_since: and, unless it is 0, those seen in this second or later.
        """
        place = self._place(start)
        found, stop = batches.look(self.space, place, count, slots, since, seen_since)
        return batches.read(self.space, found, self.format.floats), self._position(stop)

    def remove_slots(self, slots: Slots, start: int, count: int) -> int:
        """Forget the rows of `slots`, bool (1024,), among the next `count` places of a scan.

        Returns where that goes on; it is over as a `scan` is.
        """
        found, stop = batches.look(self.space, self._place(start), count, slots, 0, 0)
        if found.size:
            keys = np.ascontiguousarray(batches.records_at(self.space, found)[:, 0])
            self.delete(frozen(keys))
        return self._epoch << EPOCH_SHIFT | stop

    def pack(self, most: int, quiet: float) -> bool | None:
        """Give memory back that removed rows have left, by moving `most` rows or fewer.

        Returns whether there is more to do; None: somebody scans, so nothing was done. A table that
        evicts or spills keeps what it has, which is what its limit says.

        Args:
            quiet: seconds without a scan under way; until then nothing is moved. One that takes
                longer between two calls hears a ScanError.
        """
        if type(self.limit) is not Refuse or not self.space.has_holes:
            return False
        if time.monotonic() < self._scanned_at + quiet:
            return None
        self._epoch = (self._epoch + 1) % EPOCHS
        return self.space.pack(most)

    def weights_of(self, batch: RowBatch) -> Values:
        """The weights of rows that were exported, float32 (n, dim), new memory."""
        out = np.empty((len(batch), self.dim), np.float32)
        data = np.ascontiguousarray(batch.data).view(np.float32)
        self.format.gather(data, np.arange(len(batch)), out)
        return out

    def put(self, batch: RowBatch, *, keep_versions: bool) -> None:
        """Set rows to what another store, or this one, has exported; made where there are none.

        The table's limits hold, admission does not.

        Args:
            keep_versions: leave the rows the versions that they come with, and let the store's
                version be none of them at least; else this is a change like any other.
        Raises:
            ValueShapeError: the rows are of another table's size, or a version is below 1.
            ArenaFullError: no room for the rows; those of keys that come before may be set.
        """
        self._check_batch(batch)
        if not len(batch):
            return
        if keep_versions:
            versions, version = batch.versions, max(self.version, int(batch.versions.max()))
        else:
            version = self.version + 1
            versions = np.full(len(batch), version, np.int64)
        for some in self._slices(len(batch)):
            part = batch.take(some)
            keys = frozen(part.keys)
            self.limit.settle(keys)
            rows, absent, on_disk = self.index.find(keys)
            if absent or on_disk:
                self._bring(keys, rows, absent, on_disk, version, is_blank=True)
            self.version = version
            batches.write(self.space, rows, part, versions[some])
            self.limit.touch(rows)

    def remove(self, keys: Keys) -> int:
        """Forget rows, as `delete`; what `put` makes, this takes away."""
        return self.delete(keys)

    @property
    def counter(self) -> Counter | None:
        """The sightings of keys that admission goes by, if it does."""
        return None if self._gate is None else self._gate.counter

    @property
    def lr(self) -> float:
        """The learning rate of pushes, before the schedule's factor."""
        return self.format.step.lr

    @property
    def seen_since(self) -> int:
        """The second from which on rows may be seen without a new version; 0: none ever are."""
        return self._seconds() if self._watches else 0

    def watch_removals(self) -> Removals:
        """From now on the keys that lose their rows are remembered, whatever takes them."""
        if self.space.removals is None:
            self.space.removals = Removals()
        return self.space.removals

    def _check_batch(self, batch: RowBatch) -> None:
        problem = ""
        if batch.row_nbytes != self.row_nbytes:
            problem = (
                f"rows of {batch.row_nbytes} bytes came, but with this dim, optimizer and storage "
                f"they have {self.row_nbytes}"
            )
        elif len(batch) and batch.versions.min() < 1:
            problem = f"a row came with version {batch.versions.min()}; they begin at 1"
        elif (batch.keys[1:] <= batch.keys[:-1]).any():
            problem = "rows came whose keys do not increase"
        if problem:
            raise ValueShapeError(self.spec.name, problem)

    def validate(self) -> None:
        """Assert what must always hold between index, rows and free numbers."""
        self.space.validate()
        self.limit.validate()
        versions = self.index.records[: self.space.numbers.top, records.VERSION]
        assert (versions <= self.version).all(), "a row is newer than the store"

    def _pull(self, keys: Keys, create: bool, out: Values, now: int, version: int) -> None:
        makes = create and self.spec.missing == "init" and self._gate is None
        if makes:
            self.limit.settle(keys)
        rows, absent, on_disk = self.index.find(keys)
        self._count(keys.size - absent, on_disk)
        if absent and not makes:
            self._refuse_missing(keys, rows)
        if on_disk or (absent and makes):
            self._bring(keys, rows, absent if makes else 0, on_disk, version)
        if now:
            self._see(rows if makes or not absent else rows[rows >= 0], 0, now)
        self.limit.touch(rows)
        if makes or not absent:
            self.format.gather(self.data, rows, out)
            return
        self.format.gather_or_zero(self.data, rows, out)
        if self.spec.missing == "init":
            places = np.flatnonzero(rows < 0)
            self.format.preview(out, places, frozen(keys[places]))

    def _push(
        self,
        keys: Keys,
        grads: Values,
        clock: int,
        shows: Shows | None,
        version: int,
        delay: Delay | None,
    ) -> Rows | None:
        """`push` of keys that fit into memory together; the rows of all of them, if it made all."""
        count = keys.size
        self.limit.settle(keys)
        note = self._note(version, shows)
        rows, absent, on_disk, is_noted = self._find(keys, note)
        if absent:
            self._refuse_missing(keys, rows)
            if self._gate is not None:
                kept = self._gate.kept(keys, rows, clock)
                absent -= keys.size - kept.size
                keys, grads, rows = frozen(keys[kept]), frozen(grads[kept]), rows[kept]
                shows = shows[kept] if shows is not None else None
                delay = part_of(delay, kept)
        late: Rows | slice | None = None if is_noted else slice(None)  # rows to be noted yet
        if absent or on_disk:
            late = np.flatnonzero(rows < 0) if is_noted else slice(None)
            self._bring(keys, rows, absent, on_disk, version)
        if rows.size:
            if late is not None:
                records.see(self.index.records, rows[late], *note)
            self._step(keys, rows, grads, clock, shows, version, delay)
        return rows if rows.size == count else None

    def _step(
        self,
        keys: Keys,
        rows: Rows,
        grads: Values,
        clock: int,
        shows: Shows | None,
        version: int,
        delay: Delay | None,
    ) -> None:
        """The step on rows that have been noted as seen, but for `shows`."""
        self.version = version
        if shows is not None:
            records.add_shows(self.index.records, rows, frozen(shows))
        self.limit.touch(rows)
        self.format.update(self.data, keys, rows, grads, clock, delay)

    def _find(self, keys: Keys, note: Note) -> tuple[Rows, int, int, bool]:
        """What the index says of `keys`, and whether `note` has been noted of the rows in memory.

        That is done in passing where nothing can be refused any more: a request that raises changes
        nothing.
        """
        is_noted = self.spec.missing != "error" and self.limit.has_room(keys.size)
        rows, absent, on_disk = self.index.find(keys, note if is_noted else None)
        self._count(keys.size - absent, on_disk)
        return rows, absent, on_disk, is_noted

    def _note(self, version: int, shows: Shows | None) -> Note:
        """What a push notes of its rows; shows that a caller has counted come later."""
        return version, ONE_SHOW if shows is None else 0, self._seconds(), self._rate

    def _bring(
        self,
        keys: Keys,
        rows: Rows,
        absent: int,
        on_disk: int,
        version: int,
        is_blank: bool = False,
    ) -> None:
        """Rows for `absent` of the keys, new, and for `on_disk` of them, read back.

        `rows` is completed in place. With `is_blank` new rows are the caller's to fill.

        Raises:
            ArenaFullError: no room for them; nothing changed.
        """
        self.limit.make_room(absent + on_disk, rows)
        if on_disk:
            places = np.flatnonzero(rows < -1)
            rows[places] = self.space.fetch(frozen(keys[places]), rows[places])
        if absent:
            self.version = version
            places = np.flatnonzero(rows == -1)
            wanted = frozen(keys[places])
            fresh = self.space.add(wanted, version, self._seconds())
            rows[places] = fresh
            if not is_blank:
                self.format.initialize(self.data, fresh, wanted)

    def _parts(self, keys: Keys) -> Iterator[slice]:
        """`keys` in slices that fit into memory together.

        Raises:
            MissingKeyError: a key has no row and the table says missing=error.
        """
        if self.spec.missing == "error":
            self._refuse_missing(keys, self.index.find(keys)[0])
        return self._slices(keys.size)

    def _slices(self, size: int) -> Iterator[slice]:
        start = 0
        while start < size:
            stop = start + self.limit.at_once  # another number for each slice, maybe
            yield slice(start, stop)
            start = stop

    def _see(self, rows: Rows, version: int, now: int, show: int = 0) -> None:
        records.see(self.space.index.records, rows, version, show, now, self._rate)

    def _count(self, found: int, on_disk: int) -> None:
        self._hits += found - on_disk
        self._misses += on_disk

    def _seconds(self) -> int:
        """The time as records keep it: whole seconds, never 0, which means that none is kept."""
        return max(1, int(self._now()))

    def _refuse_missing(self, keys: Keys, rows: Rows) -> None:
        if self.spec.missing == "error" and -1 in rows:
            key = int(keys[int(np.argmax(rows == -1))])
            raise MissingKeyError(
                self.spec.name,
                f"key {key} has no row and the table says missing=error; assign it first",
            )


def stride_of(floats: int, is_tight: bool = False) -> int:
    """Floats from one row to the next: whole cache lines where that costs little memory.

    Up to a cache line the next power of two, so that no row lies across two lines; above, whole
    lines if they add a third at most, else multiples of 4. `is_tight` is for tables that are to be
    small: multiples of 4 from 4 floats on.
    """
    if is_tight and floats > 4:
        return -(-floats // 4) * 4
    if floats <= LINE:
        return 1 << (floats - 1).bit_length()
    lines = -(-floats // LINE) * LINE
    return lines if 3 * lines <= 4 * floats else -(-floats // 4) * 4
