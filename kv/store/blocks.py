"""The blocks of a dense table on one server: always read and written all at once.

They are rows of a store like any other, so that optimisers and storage know one mechanism, but
their row numbers are known and follow the order of the blocks: a pull is one sequential copy, a
push one pass of the optimiser, neither with an index. Both hold the table's lock from beginning to
end, so that what is read is the array as it was between two pushes.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kv.dense import BlockShare
from kv.errors import KeyListError
from kv.executor import Turns
from kv.fairlock import FairLock
from kv.spec import TableSpec
from kv.store.rows import RowBatch, Slots
from kv.store.sparse import SparseStore
from kv.store.stats import StoreStats

Keys = NDArray[np.uint64]
Values = NDArray[np.float32]


class Blocks:
    """A dense table's blocks here, in increasing number.

    Args:
        spec: the table's definition, its mode and seed resolved.
        share: which blocks they are.
    """

    def __init__(self, spec: TableSpec, share: BlockShare) -> None:
        self.spec, self.share = spec, share
        self.keys = np.empty_like(share.keys)  # in the order of the blocks
        self.keys[share.order] = share.keys
        self.keys.flags.writeable = False
        self.numbers = share.blocks.astype(np.uint64)  # what names the blocks in a push
        self.numbers.flags.writeable = False
        self.lock = FairLock()
        self.store = SparseStore(spec, capacity=self.keys.size, reserve=0)
        self.store.create(self.keys)
        self.rows = self.store.locate(self.keys)

    def __len__(self) -> int:
        return len(self.store)

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

    def pull(self, out: Values) -> Values:
        """All blocks into `out`, float32 of `shape`: the array between two pushes."""
        with self.lock:
            return self.store.pull(self.keys, out=out, rows=self.rows)

    def push(self, grads: Values, clock: int) -> None:
        """One optimiser step on all blocks; the caller holds the lock."""
        self.store.push(self.keys, grads, clock, rows=self.rows)

    def assign(self, values: Values) -> None:
        """Set all blocks outright."""
        with self.lock:
            self.store.assign(self.keys, values)

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
            slots: bool (1024,), the slots whose blocks are wanted; None is all.
            since: of its only part: none unless a block changed after the store had this version.
            seen_since: blocks have no expiry; not looked at.
        """
        with self.lock:
            if start > 0:
                return RowBatch.empty(self.row_nbytes), -1
            version = 0 if since is None else since[0]
            return self.store.export_scan(0, len(self), slots, version)[0], -1

    def put(self, batch: RowBatch, *, keep_versions: bool) -> Turns[None]:
        """Set blocks of this server to what was exported.

        Raises:
            KeyListError: a key is none of this server's blocks.
            ValueShapeError: see `SparseStore.put`.
        """
        with self.lock:
            foreign = self.store.absent(batch.keys)
            if foreign.size:
                raise KeyListError(
                    self.spec.name, f"key {int(foreign[0])} is none of the blocks of this server"
                )
            self.store.put(batch, keep_versions=keep_versions)
        yield

    def remove(self, keys: Keys) -> Turns[int]:
        """Refused: blocks are there as long as their table.

        Raises:
            KeyListError: always.
        """
        raise KeyListError(self.spec.name, "it is dense: its blocks cannot be removed")
        yield

    def stats(self) -> list[StoreStats]:
        """Of its only part."""
        with self.lock:
            return [self.store.stats()]

    def set_lr(self, lr: float) -> None:
        """The learning rate of later pushes, before the schedule's factor."""
        with self.lock:
            self.store.set_lr(lr)

    def validate(self) -> None:
        """Assert what must always hold."""
        self.store.validate()
        assert len(self) == self.keys.size, "blocks are lost"
