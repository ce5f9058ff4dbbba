"""Which rows a worker trains on: batches of the pieces that are leased to it.

Asynchronous: a piece is a run of whole batches, for whichever worker asks for it. Synchronous: each
batch is cut into W contiguous parts and a piece is a worker's part of a run of batches, so every
worker goes through every batch. Either way the batches of an epoch are the same for any number of
workers, and their order is that of the epoch: of the file, or as seed and epoch shuffle it.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Iterator
from typing import NamedTuple

from apps.ctr.batch import Rows, part_bounds
from apps.ctr.dataset import Batch, Dataset
from apps.ctr.modelconf import TrainConfig
from apps.ctr.origin import Origin
from kv.leases.pieces import DataSet, Piece
from kv.leases.reader import Shards
from kv.protocols import Worker

NAME = "train"  # of the data set in the ledger


class Share(NamedTuple):
    """A worker's rows of a batch; epochs and batches count from 1.

    Attributes:
        batch_rows: of the whole batch.
        seen: positions of the piece up to here, with the whole batch.
        position: rows of the job up to here, of all workers and epochs.
        origin: where the rows came from.
    """

    epoch: int
    number: int
    rows: Rows
    batch_rows: int
    seen: int
    position: int
    origin: Origin


class Trail:
    """Says how much of a piece is in the model for certain: of the last pushes nobody knows yet.

    Args:
        depth: steps before the last whose pushes may have no answer.
    """

    def __init__(self, shards: Shards, depth: int = 0) -> None:
        self._shards, self._depth = shards, depth
        self._pushed: deque[int] = deque()  # how far steps went whose pushes may have no answer

    def began(self) -> None:
        """A piece."""
        self._pushed.clear()

    def pushed(self, share: Share) -> None:
        """The gradient of a share was sent; those `depth` before it have been answered."""
        if len(self._pushed) > self._depth:
            self._shards.seen(self._pushed.popleft())
        self._pushed.append(share.seen)

    def all_answered(self) -> None:
        """The last ones, too."""
        if self._pushed:
            self._shards.seen(self._pushed[-1])
            self._pushed.clear()


def shards_of(worker: Worker, conf: TrainConfig, data: Dataset, *, sync: bool) -> Shards:
    """The leases of the training data, the same for all workers of a job."""
    return worker.shards(
        NAME,
        data.count(),
        epochs=conf.epoch,
        unit=conf.batch_size,
        grain=1 if sync else data.grain,
        in_parts=sync,
    )


def shares(
    worker: Worker, conf: TrainConfig, data: Dataset, shards: Shards, *, sync: bool
) -> Iterator[Iterator[Share]]:
    """For each piece that this worker gets its batches, or parts of them, read as they are asked.

    Going on to the next piece says that the one before is done.
    """
    part = (worker.rank, worker.num_workers) if sync else (0, 1)
    reader, epoch = data.reader(), 0
    for piece in shards:
        if piece.epoch != epoch:
            epoch = piece.epoch
            reader = data.reader((conf.seed, epoch) if conf.shuffle else None)
        batches = data.batches(conf.batch_size, within=(piece.start, piece.stop), reader=reader)
        yield _shares_of(piece, batches, shards.data, part, data.source.path)


def _shares_of(
    piece: Piece, batches: Iterator[Batch], data: DataSet, part: tuple[int, int], file: str
) -> Iterator[Share]:
    start = piece.start
    for batch in batches:
        low, high = part_bounds(batch.size, *part)
        number, start = start // data.unit + 1, start + batch.size
        seen, position = start - piece.start, (piece.epoch - 1) * data.records + start
        rows, origin = batch.rows(low, high), Origin(file, batch, low, high)
        yield Share(piece.epoch, number, rows, batch.size, seen, position, origin)
