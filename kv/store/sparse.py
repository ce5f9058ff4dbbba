"""The rows of one sparse table, or of a part of it, on one server: pulled, pushed, assigned.

`SparseStore` adds to rows by key (`keyed`), which others may read through and move (`transfer`),
what requests do: how a row is updated (`formats`), and which keys get rows and which rows go again
(`lifecycle`).
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator

import numpy as np
from numpy.typing import NDArray

from kv.initializers import table_seed
from kv.kernels import records
from kv.kernels.jit import frozen
from kv.spec import TableSpec
from kv.store import arena
from kv.store.delay import Delay, part_of
from kv.store.formats import format_of, stride_of
from kv.store.index import Note
from kv.store.keyed import Keys, Rows, Values, no_row
from kv.store.lifecycle import Admissions, Counter, Sweep, gate_of
from kv.store.limits import Evict, limit_of
from kv.store.rows import Slots
from kv.store.stats import StoreStats, TopKeys
from kv.store.transfer import MovableRows

SWEEP = 4096  # rows that one push looks at for expiry, at most
ONE_SHOW = int(records.SHOW)
Shows = NDArray[np.float32]


class SparseStore(MovableRows):
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
        format = format_of(spec)
        stride = stride_of(format.floats, is_tight=spec.storage == "float16")
        nbytes = arena.physical_memory() if reserve is None else reserve
        limit = limit_of(spec, stride, capacity, nbytes, parts, spill_dir)
        super().__init__(spec, format, limit, now)
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

    @property
    def lr(self) -> float:
        """The learning rate of pushes, before the schedule's factor."""
        return self.format.step.lr

    def set_lr(self, lr: float) -> None:
        """The learning rate of later pushes, before the schedule's factor.

        Raises:
            SettingError: no finite number of 0 or more.
        """
        self.format.step.set_lr(lr)

    @property
    def counter(self) -> Counter | None:
        """The sightings of keys that admission goes by, if it does."""
        return None if self._gate is None else self._gate.counter

    @property
    def seen_since(self) -> int:
        """The second from which on rows may be seen without a new version; 0: none ever are."""
        return self._seconds() if self._watches else 0

    @property
    def nbytes(self) -> int:
        """Bytes of memory in use: rows ever given out, their records, index, counters."""
        return self.limit.nbytes + (self._gate.nbytes if self._gate else 0)

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

    def _parts(self, keys: Keys) -> Iterator[slice]:
        """`keys` in slices that fit into memory together.

        Raises:
            MissingKeyError: a key has no row and the table says missing=error.
        """
        if self.spec.missing == "error":
            self._refuse_missing(keys, self.index.find(keys)[0])
        return self._slices(keys.size)

    def _see(self, rows: Rows, version: int, now: int, show: int = 0) -> None:
        records.see(self.space.index.records, rows, version, show, now, self._rate)

    def _count(self, found: int, on_disk: int) -> None:
        self._hits += found - on_disk
        self._misses += on_disk

    def _refuse_missing(self, keys: Keys, rows: Rows) -> None:
        if self.spec.missing == "error" and -1 in rows:
            raise no_row(self.spec.name, int(keys[int(np.argmax(rows == -1))]))
