"""What one worker of `bench/sync_share.py` does: compute, and keep a model the same everywhere.

Started as `sync_share_work.py WAY SETTINGS`, with SETTINGS in JSON. Prints a line of JSON for each
dimension. To compute is to sleep for the stated time, so that a few cores can have many workers,
and what is measured is the rest of the step.
"""

from __future__ import annotations

import json
import os
import sys
import time
from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

HIDDEN = 16  # units of the dense net, whose input is the mean of a sample's rows
ALL_REDUCE, SERVERS = "all-reduce", "servers"
COUNTERS = Path("/sys/class/net/eth0/statistics")


@dataclass(frozen=True)
class Settings:
    """The model, the batches, and what a step is.

    Attributes:
        dims: embedding dimensions, one after the other.
        rows: of the embedding.
        batch: samples of a worker's step.
        fields: rows of a sample.
        skew: exponent of Zipf's law, by which rows are used.
        compute: seconds of a step.
        steps, warm: measured, and before.
        workers, rank, seed: of this worker.
        meet: HOST:PORT where all-reduce workers meet.
        depth: steps that a parameter server's worker asks for ahead.
    """

    dims: tuple[int, ...]
    rows: int
    batch: int
    fields: int
    skew: float
    compute: float
    steps: int
    warm: int
    workers: int
    rank: int = 0
    seed: int = 1
    meet: str = ""
    depth: int = 0

    def to_json(self) -> str:
        return json.dumps(asdict(self))

    @property
    def total(self) -> int:
        """Steps of each dimension."""
        return self.warm + self.steps

    def keys(self) -> list[NDArray[np.uint64]]:
        """The rows of each step's batch, increasing: equal for each way."""
        chance = np.random.default_rng([self.seed, self.rank])
        share = np.arange(1, self.rows + 1, dtype=np.float64) ** -self.skew
        place = np.random.default_rng(self.seed).permutation(self.rows)
        size = (self.total, self.batch * self.fields)
        drawn = place[chance.choice(self.rows, size, p=share / share.sum())]
        return [np.unique(step).astype(np.uint64) for step in drawn]


@dataclass
class Clock:
    """How long a worker computed and how long all took, and what crossed its line."""

    computed: float = 0.0
    seconds: float = 0.0

    def compute(self, seconds: float) -> None:
        begun = time.perf_counter()
        time.sleep(seconds)
        self.computed += time.perf_counter() - begun


def line_bytes() -> tuple[int, int]:
    """Bytes that this host has sent and received."""
    sent, received = (int((COUNTERS / f"{way}_bytes").read_text()) for way in ("tx", "rx"))
    return sent, received


def measured(
    settings: Settings, dim: int, run: Callable[[int, int, Clock], None], meet: Callable[[], None]
) -> dict[str, Any]:
    """Run the steps of a dimension: `run(first, stop, clock)`; the figures of those that count."""
    run(0, settings.warm, Clock())
    meet()
    clock, before, begun = Clock(), line_bytes(), time.perf_counter()
    run(settings.warm, settings.total, clock)
    clock.seconds = time.perf_counter() - begun
    sent, received = (a - b for a, b in zip(line_bytes(), before, strict=True))
    meet()
    return {
        "dim": dim,
        "rank": settings.rank,
        "steps": settings.steps,
        "computed": clock.computed,
        "seconds": clock.seconds,
        "sent": sent,
        "received": received,
    }


def all_reduce(settings: Settings) -> Iterator[dict[str, Any]]:
    """Add up the dense gradients of embedding and net, as data-parallel training does."""
    import torch
    import torch.distributed as dist

    torch.set_num_threads(1)
    dist.init_process_group(
        "gloo",
        init_method=f"tcp://{settings.meet}",
        rank=settings.rank,
        world_size=settings.workers,
    )
    for dim in settings.dims:
        embedding = torch.full((settings.rows, dim), 1e-6)
        net = torch.full((dim + 2, HIDDEN), 1e-6)

        def run(first: int, stop: int, clock: Clock) -> None:
            for _ in range(first, stop):
                clock.compute(settings.compute)
                dist.all_reduce(embedding)  # noqa: B023 (it is called at once)
                dist.all_reduce(net)  # noqa: B023 (likewise)

        yield measured(settings, dim, run, dist.barrier)
    dist.destroy_process_group()


def servers(settings: Settings) -> Iterator[dict[str, Any]]:
    """Pull and push the rows of a batch, and the net, by way of the job's servers."""
    import pslite

    lists = settings.keys()
    most = max(map(len, lists))
    with pslite.connect() as worker:
        for dim in settings.dims:
            table = worker.sparse_table(f"embedding{dim}", dim, optimizer=pslite.SGD(lr=0.1))
            net = worker.dense_table(f"net{dim}", (dim + 2, HIDDEN), optimizer=pslite.SGD(lr=0.1))
            rows = np.full((most, dim), 1e-3, np.float32)
            weights = np.full((dim + 2, HIDDEN), 1e-3, np.float32)

            def run(first: int, stop: int, clock: Clock) -> None:
                pipeline = worker.pipeline(settings.depth)
                batches = lists[first:stop]
                for keys, _ in pipeline.over(batches, lambda keys: [(table, keys), net]):  # noqa: B023 (likewise)
                    clock.compute(settings.compute)
                    pipeline.push([(table, keys, rows[: len(keys)]), (net, weights)])  # noqa: B023 (likewise)

            yield measured(settings, dim, run, worker.barrier)


def main() -> None:
    way, text = sys.argv[1:]
    values = json.loads(text)
    settings = Settings(**{**values, "dims": tuple(values["dims"])})
    for figures in {ALL_REDUCE: all_reduce, SERVERS: servers}[way](settings):
        print(json.dumps(figures), flush=True)
    sys.stdout.flush()
    if way == ALL_REDUCE:
        os._exit(0)  # gloo's threads may wait for each other's


if __name__ == "__main__":
    main()
