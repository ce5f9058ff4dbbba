"""The blocks of a dense table on one server: always read and written all at once.

They are rows of a store like any other, so that optimisers and storage know one mechanism, but
their row numbers are known and follow the order of the blocks: a pull is one sequential copy, a
push one pass of the optimiser, neither with an index. Both hold the table's lock from beginning to
end, so that what is read is the array as it was between two pushes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
from numpy.typing import NDArray

from kv.dense import BlockShare
from kv.engine_log import Cause, RowLog
from kv.errors import KeyListError, ValueShapeError
from kv.executor import Turns
from kv.fairlock import FairLock
from kv.kernels.jit import frozen
from kv.placement import NUM_SLOTS, slot_of
from kv.spec import TableSpec, dense_keys
from kv.store.delay import Delay
from kv.store.rows import RowBatch, Slots
from kv.store.sparse import SparseStore
from kv.store.stats import StoreStats

Keys = NDArray[np.uint64]
Values = NDArray[np.float32]
_NO_CAUSE = Cause()
Places = NDArray[np.int64] | None
"""Some of the blocks by their positions; None: all."""


class Blocks:
    """A dense table's blocks here, in increasing number.

    Args:
        spec: the table's definition, its mode and seed resolved.
        share: which blocks they are.
    """

    def __init__(self, spec: TableSpec, share: BlockShare) -> None:
        self.spec = spec
        self.log: RowLog | None = None  # hears of changes, where copies of the blocks are kept
        self.lock = FairLock()
        # Address space for all blocks of the table: this server may come to own or copy them.
        self.store = SparseStore(spec, capacity=dense_keys(spec).keys.size, reserve=0)
        self._own(share)

    def _own(self, share: BlockShare) -> None:
        self.share = share
        self.keys = np.empty_like(share.keys)  # in the order of the blocks
        self.keys[share.order] = share.keys
        self.keys.flags.writeable = False
        self.numbers = share.blocks.astype(np.uint64)  # what names the blocks in a push
        self.numbers.flags.writeable = False
        self.store.create(self.keys)
        self.rows = self.store.locate(self.keys)

    def own(self, share: BlockShare) -> None:
        """Serve these blocks from now on; copies of them that there are here become the blocks."""
        with self.lock:
            self._own(share)

    def __len__(self) -> int:
        """Blocks of this server's own; copies of others' do not count."""
        return int(self.keys.size)

    @property
    def copies(self) -> int:
        """Blocks that are copies of another server's."""
        return len(self.store) - len(self)

    def __repr__(self) -> str:
        return f"<Blocks {self.spec.name} blocks={len(self)}>"

    @property
    def shape(self) -> tuple[int, int]:
        """Of all values together."""
        return self.keys.size, self.spec.dim

    @property
    def chunk(self) -> int:
        """Rows that are worked on at a time: all of them."""
        return self.keys.size

    @property
    def version(self) -> int:
        """Grows with every change."""
        return self.store.version

    @property
    def versions(self) -> list[int]:
        """Of its only part."""
        return [self.store.version]

    def pull(self, out: Values) -> Values:
        """All blocks into `out`, float32 of `shape`: the array between two pushes."""
        with self.lock:
            return self.store.pull(self.keys, out=out, rows=self.rows)

    def keys_of(self, numbers: Keys) -> Keys:
        """The keys of blocks, of this server or another."""
        layout = dense_keys(self.spec)
        by_number = np.empty_like(layout.keys)
        by_number[layout.blocks] = layout.keys
        return by_number[numbers.astype(np.int64)]

    @property
    def stores(self) -> list[tuple[FairLock, SparseStore]]:
        """Its only store, and the lock to hold around it."""
        return [(self.lock, self.store)]

    def places(self, numbers: NDArray[np.uint64]) -> Places:
        """Where some of the blocks here stand among all; None: they are all.

        Args:
            numbers: uint64, shape (n,), increasing: what names the blocks.
        Raises:
            ValueShapeError: some are not here.
        """
        if numbers is self.numbers:
            return None
        places = np.searchsorted(self.numbers, numbers)
        is_here = places < self.numbers.size
        is_here[is_here] = self.numbers[places[is_here]] == numbers[is_here]
        if not is_here.all():
            number = int(numbers[~is_here][0])
            problem = f"it is dense: its values come without keys; no block {number} is here"
            raise ValueShapeError(self.spec.name, problem)
        return None if numbers.size == self.numbers.size else places

    def push(
        self,
        grads: Values,
        clock: int,
        places: Places = None,
        cause: Cause = _NO_CAUSE,
        delay: Delay | None = None,
    ) -> None:
        """One optimiser step on all blocks, or those at `places`; the caller holds the lock."""
        if places is None:
            self.store.push(self.keys, grads, clock, rows=self.rows, delay=delay)
        else:
            assert self.rows is not None
            keys, rows = self.keys[places], self.rows[places]
            self.store.push(keys, grads, clock, rows=rows, delay=delay)
        if self.log is not None:
            self.log.changed(self.store, self._rising(places), cause)

    def _rising(self, places: Places) -> Keys:
        return self.share.keys if places is None else np.sort(self.keys[places])

    def assign(self, values: Values, places: Places = None) -> None:
        """Set all blocks outright, or those at `places`."""
        with self.lock:
            self.store.assign(self.keys if places is None else self.keys[places], values)
            if self.log is not None:
                self.log.changed(self.store, self._rising(places), _NO_CAUSE)

    # -- rows as they are stored ----------------------------------------------------------------

    @property
    def row_nbytes(self) -> int:
        """Bytes of a row in a `RowBatch`."""
        return self.store.row_nbytes

    def export(self, keys: Keys) -> Turns[RowBatch]:
        """Those of the blocks that have these keys, all of one moment."""
        with self.lock:
            return self.store.export(keys)
        yield

    def export_scan(
        self,
        start: int,
        count: int,
        slots: Slots | None = None,
        since: Sequence[int] | None = None,
        seen_since: int = 0,
    ) -> tuple[RowBatch, int]:
        """All blocks at once, whatever the count: the array between two pushes, and -1.

        Args:
            slots: bool (1024,), the slots whose blocks are wanted; None is this server's own.
            since: of its only part: none unless a block changed after the store had this version.
            seen_since: blocks have no expiry; not looked at.
        """
        with self.lock:
            if start > 0:
                return RowBatch.empty(self.row_nbytes), -1
            version = 0 if since is None else since[0]
            if slots is None:
                slots = np.zeros(NUM_SLOTS, np.bool_)
                slots[slot_of(self.keys)] = True
            return self.store.export_scan(0, self.store.top, slots, version)[0], -1

    def put(self, batch: RowBatch, *, keep_versions: bool) -> Turns[None]:
        """Set blocks, of this server's own or copies of others', to what was exported.

        Raises:
            KeyListError: a key is none of the table's blocks.
            ValueShapeError: see `SparseStore.put`.
        """
        with self.lock:
            foreign = batch.keys[~np.isin(batch.keys, dense_keys(self.spec).keys)]
            if foreign.size:
                raise KeyListError(
                    self.spec.name, f"key {int(foreign[0])} is none of the blocks of this table"
                )
            self.store.put(batch, keep_versions=keep_versions)
            self.rows = self.store.locate(self.keys)
            if self.log is not None:
                self.log.changed(self.store, batch.keys, _NO_CAUSE)
        yield

    def remove(self, keys: Keys) -> Turns[int]:
        """Forget copies of others' blocks; how many there were.

        Raises:
            KeyListError: one of this server's own is among them.
        """
        with self.lock:
            if np.isin(keys, self.keys).any():
                raise KeyListError(self.spec.name, "it is dense: its blocks cannot be removed")
            removed = self.store.remove(frozen(keys))
            self.rows = self.store.locate(self.keys)
        return removed
        yield

    def pack(self, number: int, most: int, quiet: float) -> bool | None:
        """See `SparseStore.pack`, of the only part, number 0."""
        with self.lock:
            has_more = self.store.pack(most, quiet)
            self.rows = self.store.locate(self.keys)
        return has_more

    def stats(self) -> list[StoreStats]:
        """Of its only part."""
        with self.lock:
            return [replace(self.store.stats(), rows=len(self))]

    def set_lr(self, lr: float) -> None:
        """The learning rate of later pushes, before the schedule's factor."""
        with self.lock:
            self.store.set_lr(lr)

    def validate(self) -> None:
        """Assert what must always hold."""
        self.store.validate()
        assert self.store.absent(self.keys).size == 0, "blocks are lost"
