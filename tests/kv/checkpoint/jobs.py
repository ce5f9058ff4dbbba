"""A small job in this process whose checkpoints tests break."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from kv.checkpoint.desk import Desk
from kv.checkpoint.leading import Leader
from kv.checkpoint.places import place_of
from kv.checkpoint.shards import LocalShards
from kv.checkpoint.shelf import Shelf
from kv.engine import Engine, Write
from kv.optimizers import Adagrad
from kv.spec import TableSpec
from kv.store.rows import RowBatch

DIM = 3


class Job:
    """An engine with a sparse and a dense table, and who leads its checkpoints."""

    def __init__(self, folder: Path | str, full_every: int = 3, keep: int = 0) -> None:
        self.engine = Engine(1, parts=2)
        self.sparse = self.engine.define(TableSpec.sparse("ids", DIM, optimizer=Adagrad(lr=0.1)))
        self.dense = self.engine.define(TableSpec.dense("w", (40, 9), optimizer=Adagrad(lr=0.1)))
        self.desk = Desk(self.engine)
        shelf = Shelf(place_of(str(folder)))
        self.leader = Leader(LocalShards(self.desk), shelf, keep=keep, full_every=full_every)
        self.clock = 0

    @property
    def shelf(self) -> Shelf:
        return self.leader.shelf

    def train(self, seed: int) -> None:
        """A push, a new key, a key that goes."""
        rng = np.random.default_rng(seed)
        keys = np.unique(rng.integers(0, 300, 60, dtype=np.uint64))
        grads = rng.standard_normal((keys.size, DIM)).astype(np.float32)
        whole = rng.standard_normal(self.engine.pull(self.dense).shape).astype(np.float32)
        writes: list[Write] = [(self.sparse, keys, grads), (self.dense, None, whole)]
        self.engine.push_many(0, self.clock, writes)
        self.engine.delete(self.sparse, keys[:3])
        self.engine.step(0, self.clock)
        self.clock += 1

    def save(self, mode: str = "step") -> str:
        states = [b"\x81\xa4step" + bytes([self.clock])]
        saving = self.leader.begin(mode)
        return self.leader.finish(saving, [self.clock], states).name

    def load(self, which: str = "auto") -> str:
        chain = self.leader.choose(which)
        assert chain is not None
        self.leader.load(chain, [chain[-1].steps[0]])
        self.clock = chain[-1].steps[0]
        return chain[-1].name

    def rows(self) -> list[RowBatch]:
        """All that there is, by table."""
        found = []
        for table in self.engine.tables:
            start, batches = 0, [RowBatch.empty(table.store.row_nbytes)]
            while start >= 0:
                batch, start = table.export_scan(start, 1 << 20)
                batches.append(batch)
            found.append(RowBatch.together(batches))
        return found


def assert_same_rows(one: list[RowBatch], other: list[RowBatch]) -> None:
    for mine, yours in zip(one, other, strict=True):
        for column, same in zip(mine.columns(), yours.columns(), strict=True):
            np.testing.assert_array_equal(column, same)
