"""Requests over the rows of a sparse table, in parts that threads work on beside each other.

Which parts there are, and which keys are whose, `partition` says. Calls here are generators
(`kv.executor.Turns`): they work in chunks, hold a part's lock for one chunk only, and yield between
two, so that a request over a million keys delays one over a single key by a chunk at most. A
request over several parts is cut into `pieces`, which are yielded, to run at the same time.

A pull or push is therefore not one event: another worker's may come between two of its chunks.
Each row is read and written whole.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kv.engine_log import Cause, RowLog
from kv.executor import Turns
from kv.kernels.jit import frozen
from kv.kernels.rows import expand, scatter
from kv.spec import TableSpec
from kv.store.delay import Delay, part_of
from kv.store.keyed import Keys, Values
from kv.store.partition import PartitionedRows
from kv.store.pieces import Cut, Piece
from kv.store.rows import RowBatch

_NO_CAUSE = Cause()


class Parts(PartitionedRows):
    """A sparse table's rows here. Arguments are checked: keys strictly increasing, values finite.

    Args:
        spec: the table's definition, its mode and seed resolved.
        count: parts.
        spill_dir: where rows that are spilled lie; empty is the system's directory for temporary
            files.
    """

    def __init__(self, spec: TableSpec, count: int = 1, spill_dir: str = "") -> None:
        super().__init__(spec, count, spill_dir)
        self.log: RowLog | None = None  # hears of changes, where copies of the rows are kept

    def pull(self, keys: Keys, create: bool, out: Values, cut: Cut) -> Turns[None]:
        """Weights of `keys`, cut by `cut`, into `out`; see `SparseStore.pull`."""
        yield from beside([self._pull_piece(piece, keys, create, out) for piece in cut])

    def push(
        self,
        keys: Keys,
        grads: Values,
        clock: int,
        cut: Cut,
        cause: Cause = _NO_CAUSE,
        delay: Delay | None = None,
    ) -> Turns[None]:
        """One optimiser step on the rows of `keys`.

        Rows that are gone by now are left out where the table makes none. Where copies are kept, a
        part's rows change all at once, so that the copy has all of them, and knows of it, or none.
        """
        yield from beside(
            [self._push_piece(piece, keys, grads, clock, cause, delay) for piece in cut]
        )

    def versions_of(self, keys: Keys, cut: Cut) -> Turns[NDArray[np.int64]]:
        """When the row of each of the keys last changed; 0 where there is none in memory."""
        out = np.zeros(keys.size, np.int64)
        for piece in cut:
            for some in piece.chunks(self.chunk):
                mine = piece.take(keys, some)
                with piece.part.lock:
                    found = piece.part.store.row_versions(mine, piece.rows(mine, some.start))
                out[some if piece.places is None else piece.places[some]] = found
                yield
        return out

    def assign(self, keys: Keys, values: Values) -> Turns[None]:
        """Set rows outright."""
        for piece in self.cut(keys):
            for some in piece.chunks(self.chunk):
                mine, given = piece.take(keys, some), piece.take(values, some)
                with piece.part.lock:
                    piece.part.store.assign(mine, given)
                    if self.log is not None:
                        self.log.changed(piece.part.store, mine, _NO_CAUSE)
                yield

    def delete(self, keys: Keys) -> Turns[int]:
        """Forget rows; returns how many there were."""
        count = 0
        for piece in self.cut(keys):
            for some in piece.chunks(self.chunk):
                with piece.part.lock:
                    count += piece.part.store.delete(piece.take(keys, some))
                yield
        return count

    def export(self, keys: Keys) -> Turns[RowBatch]:
        """The rows of those of `keys` that have one, by rising keys; each row of one moment."""
        found = []
        for piece in self.cut(keys):
            for some in piece.chunks(self.chunk):
                with piece.part.lock:
                    found.append(piece.part.store.export(piece.take(keys, some)))
                yield
        return RowBatch.together(found or [RowBatch.empty(self.row_nbytes)])

    def put(self, batch: RowBatch, *, keep_versions: bool) -> Turns[None]:
        """Set rows to what was exported; see `SparseStore.put`."""
        for piece in self.cut(batch.keys):
            for some in piece.chunks(self.chunk):
                mine = batch.take(some if piece.places is None else piece.places[some])
                with piece.part.lock:
                    piece.part.store.put(mine, keep_versions=keep_versions)
                    if self.log is not None:
                        self.log.changed(piece.part.store, mine.keys, _NO_CAUSE)
                yield

    def remove(self, keys: Keys) -> Turns[int]:
        """Forget rows, as `delete`."""
        return self.delete(keys)

    # -- what is asked before a push: one that is refused has changed nothing ------------------

    def refuse_missing(self, keys: Keys, cut: Cut) -> Turns[None]:
        """Raise MissingKeyError if a key has no row."""
        for piece in cut:
            for some in piece.chunks(self.chunk):
                with piece.part.lock:
                    piece.part.refuse_missing(piece.take(keys, some))
                yield

    def promise(self, keys: Keys, cut: Cut) -> Turns[list[int]]:
        """Set room aside for rows that `keys` may need; `redeem` it when they are made.

        Raises:
            ArenaFullError: there is none; nothing is set aside.
        """
        granted: list[int] = []
        try:
            for piece in cut:
                count = piece.size
                if not piece.part.promise(count):
                    count = yield from self._count_absent(piece, keys)
                    piece.part.ensure(count)
                granted.append(count)
        except BaseException:
            self.redeem(cut, granted)
            raise
        return granted

    def redeem(self, cut: Cut, granted: Sequence[int]) -> None:
        """The rows are made, or will not be."""
        for piece, count in zip(cut, granted, strict=False):
            with piece.part.lock:
                piece.part.promised -= count

    def _count_absent(self, piece: Piece, keys: Keys) -> Turns[int]:
        absent = 0
        for some in piece.chunks(self.chunk):
            with piece.part.lock:
                absent += piece.part.store.absent(piece.take(keys, some)).size
            yield
        return absent

    # -- pieces -----------------------------------------------------------------------------

    def _pull_piece(self, piece: Piece, keys: Keys, create: bool, out: Values) -> Turns[None]:
        store = piece.part.store
        for some in piece.chunks(self.chunk):
            mine = piece.take(keys, some)
            if piece.places is None:
                with piece.part.lock:
                    store.pull(mine, create, out[some], piece.rows(mine, some.start))
            else:
                with piece.part.lock:
                    values = store.pull(mine, create, None, piece.rows(mine, some.start))
                scatter(out, piece.places[some], frozen(values))
            yield

    def _push_piece(
        self,
        piece: Piece,
        keys: Keys,
        grads: Values,
        clock: int,
        cause: Cause,
        delay: Delay | None,
    ) -> Turns[None]:
        is_logged = self.log is not None
        if not is_logged:
            cause = _NO_CAUSE  # of a push in chunks no single change is all of it
        for some in [slice(0, piece.size)] if is_logged else piece.chunks(self.chunk):
            mine = piece.take(keys, some)
            if piece.places is None:
                given = grads[some]
            else:
                given = np.empty((mine.size, self.dim), np.float32)
                expand(frozen(grads), piece.places[some], given)
            late = part_of(delay, some if piece.places is None else piece.places[some])
            with piece.part.lock:
                piece.push_present(mine, given, clock, some.start, late)
                if self.log is not None:
                    self.log.changed(piece.part.store, mine, cause)
            yield


def beside(pieces: Sequence[Turns[None]]) -> Turns[None]:
    """Run pieces at the same time; a single one as it is."""
    if len(pieces) > 1:
        yield pieces
    else:
        for piece in pieces:
            yield from piece
