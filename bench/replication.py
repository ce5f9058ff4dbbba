"""What a copy of each row costs a push: `replicas = 1` beside `replicas = 0`, in pairs.

Two clusters of two servers in this process take the same pushes in turn, each waited for; so both
see the same load of the machine. Ratios are medians of pairs, with quartiles. CPU time is of all
nodes together. Wall time on one interpreter is the worst case: the backup's work waits for the
worker's and the owner's, which on hosts of their own run beside it.

    python bench/replication.py
    python bench/replication.py --keys 1000 --pushes 200
"""

from __future__ import annotations

import argparse
import time

import numpy as np

import pslite
from kv.optimizers import Adagrad
from kv.tables import RemoteSparseTable

ROWS = 400_000


class Side:
    """A cluster and its only worker.

    Args:
        replicas: copies of each row.
        dim: floats in a row.
    """

    def __init__(self, replicas: int, dim: int) -> None:
        self.nodes = pslite.local_cluster(servers=2, replicas=replicas).start()
        (self.worker,) = self.nodes.workers
        self.table: RemoteSparseTable = self.worker.sparse_table(
            "t", dim, optimizer=Adagrad(lr=0.01)
        )
        keys = np.arange(ROWS, dtype=np.uint64)
        for start in range(0, ROWS, 20_000):
            part = keys[start : start + 20_000]
            self.worker.wait(self.table.push(part, np.zeros((part.size, dim), np.float32)))
        while replicas and sum(stats["copies"] for stats in self.table.stats()) < ROWS:
            time.sleep(0.05)

    def push(self, keys: np.ndarray, grads: np.ndarray) -> tuple[float, float]:
        """Seconds of wall and CPU time until a push is answered."""
        wall, cpu = time.perf_counter(), time.process_time()
        self.worker.wait(self.table.push(keys, grads))
        return time.perf_counter() - wall, time.process_time() - cpu


def measure(sides: list[Side], count: int, pushes: int, dim: int) -> np.ndarray:
    """Seconds, float64 (pushes, side, wall and CPU)."""
    rng = np.random.default_rng(count)
    grads = np.full((count, dim), 1e-3, np.float32)
    found = np.empty((pushes, len(sides), 2))
    for number in range(-2, pushes):
        keys = np.sort(rng.choice(ROWS, count, replace=False)).astype(np.uint64)
        for place in (0, 1) if number % 2 else (1, 0):
            times = sides[place].push(keys, grads)
            if number >= 0:  # the first two are for warming up
                found[number, place] = times
    return found


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, nargs="*", default=[1_000, 10_000, 100_000])
    parser.add_argument("--dim", type=int, default=8)
    parser.add_argument("--pushes", type=int, default=60, help="pairs of each size")
    options = parser.parse_args()
    sides = [Side(replicas, options.dim) for replicas in (0, 1)]
    print(f"{'rows':>8} {'':>5} {'replicas 0':>12} {'replicas 1':>12}   ratio (quartiles)")
    for count in options.keys:
        times = measure(sides, count, options.pushes, options.dim)
        for place, name in enumerate(("wall", "CPU")):
            without, copied = times[:, 0, place], times[:, 1, place]
            low, middle, high = np.quantile(copied / without, [0.25, 0.5, 0.75])
            print(
                f"{count:>8} {name:>5} {1e3 * np.median(without):>9.2f} ms "
                f"{1e3 * np.median(copied):>9.2f} ms   {middle:.2f} ({low:.2f} to {high:.2f})"
            )
    for side in sides:
        side.nodes.close()


if __name__ == "__main__":
    main()
