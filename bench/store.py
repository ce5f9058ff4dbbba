"""The store on this machine: look-ups, inserts, growth without a stop, pull and push.

    python bench/store.py
    python bench/store.py --rows 1000000 50000000 --dim 8 --json store.json
    python bench/store.py --rows 50000000 --dim 8 --touch 10

For each number of rows a table of that size is grown by pushes of `--keys` new keys; each line is
in millions a second, the best of some runs. `gather` reads random rows of 64 bytes, 100 000 a call:
what the memory gives at best, and what look-ups are to be compared with. Growing is timed twice:
by the clock, and in processor time, which other programs on the machine do not lengthen.

Tables that grow touch new memory. A virtual machine's host may have to find it first, which can
take longer than all the rest: `--touch` takes so much memory and gives it back before anything is
measured, and says how fast that went, the first time and again.
"""

from __future__ import annotations

import argparse
import json
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np

from kv.kernels import rows as kernels
from kv.kernels.jit import frozen
from kv.kernels.warmup import warm_up
from kv.optimizers import Adagrad
from kv.spec import TableSpec
from kv.store import arena
from kv.store.index import RECORD_BYTES, Index
from kv.store.sparse import SparseStore

Result = dict[str, float | int | str]
Keys = np.ndarray
GATHERED = 100_000  # rows of one gather
LISTS = 8  # different key lists, so that none stays in the cache


def best(calls: list[Callable[[], object]], runs: int) -> float:
    """Seconds of the fastest of all `calls`, each made `runs` times, in turn."""
    times = []
    for _ in range(runs):
        for call in calls:
            start = time.perf_counter()
            call()
            times.append(time.perf_counter() - start)
    return min(times)


def growth(
    what: str, rows: int, count: int, add: Callable[[Keys, int], object]
) -> Iterator[tuple[str, float]]:
    """`rows` keys added, `count` a call: the rate, the median call and the longest."""
    real, used = [], []
    for first in range(0, rows, count):
        keys = new_keys(first, count)
        start = time.perf_counter(), time.thread_time()
        add(keys, first)
        real.append(time.perf_counter() - start[0])
        used.append(time.thread_time() - start[1])
    yield what, count * len(used) / sum(used) / 1e6
    for kind, times in (("ms", real), ("CPU ms", used)):
        yield f"  median, {kind}", float(np.median(times)) * 1e3
        yield f"  longest, {kind}", max(times) * 1e3


def new_keys(start: int, count: int) -> Keys:
    """`count` keys that no other `start` gives, spread over the whole range, rising."""
    keys = np.arange(start, start + count, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15)
    return frozen(np.sort(keys))


def some_keys(rng: np.random.Generator, rows: int, count: int) -> Keys:
    """`count` of the first `rows` keys, rising."""
    chosen = np.unique(rng.integers(0, rows, count + count // 8, dtype=np.uint64))[:count]
    return frozen(np.sort(chosen * np.uint64(0x9E3779B97F4A7C15)))


def index_cases(
    rng: np.random.Generator, rows: int, count: int, runs: int
) -> Iterator[tuple[str, float]]:
    """Inserts and look-ups, in millions a second, and bytes a row."""
    index = Index(capacity=rows + count)
    numbers = np.arange(rows + count)
    yield from growth("insert", rows, count, lambda k, i: index.add(k, numbers[i : i + count]))
    lists = [some_keys(rng, rows, count) for _ in range(LISTS)]
    hit = best([lambda k=keys: index.find(k) for keys in lists], runs)
    yield "look-up, found", lists[0].size / hit / 1e6
    strangers = [new_keys(2 * rows + count * i, count) for i in range(LISTS)]
    miss = best([lambda k=keys: index.find(k) for keys in strangers], runs)
    yield "look-up, absent", count / miss / 1e6
    yield "load", index.load
    yield "bytes a row", index.nbytes / len(index) + RECORD_BYTES


def gather_case(rng: np.random.Generator, rows: int, runs: int) -> float:
    """Random rows of 64 bytes out of as many as `rows`, in millions a second."""
    data = arena.reserve((rows, 16), np.float32)
    data[:] = 1.0
    out = np.empty((GATHERED, 16), np.float32)
    places = [rng.integers(0, rows, GATHERED) for _ in range(LISTS)]
    return GATHERED / best([lambda p=p: kernels.gather(data, p, out) for p in places], runs) / 1e6


def store_cases(
    rng: np.random.Generator, rows: int, dim: int, count: int, runs: int
) -> Iterator[tuple[str, float]]:
    """A table grown by pushes, then pulled and pushed."""
    store = SparseStore(TableSpec.sparse("t", dim, optimizer=Adagrad(), seed=0))
    grads = frozen(np.ones((count, dim), np.float32))
    yield from growth("push of new keys", rows, count, lambda k, _: store.push(k, grads))
    lists = [some_keys(rng, rows, count) for _ in range(LISTS)]
    size = lists[0].size
    out = np.empty((size, dim), np.float32)
    yield "pull", size / best([lambda k=k: store.pull(k, out=out) for k in lists], runs) / 1e6
    yield (
        "push",
        size / best([lambda k=k: store.push(k, grads[:size]) for k in lists], runs) / 1e6,
    )


def touch(nbytes: int) -> float:
    """Take new memory, write to each of its pages, give it back; in GB/s."""
    memory = arena.reserve((nbytes,), np.uint8)
    start = time.perf_counter()
    memory[::4096] = 1
    return nbytes / (time.perf_counter() - start) / 1e9


def measure(rows: int, dims: list[int], count: int, runs: int, seed: int) -> Iterator[Result]:
    rng = np.random.default_rng(seed)
    yield {"rows": rows, "dim": 16, "what": "gather", "value": gather_case(rng, rows, runs)}
    for what, value in index_cases(rng, rows, count, runs):
        yield {"rows": rows, "dim": 0, "what": what, "value": value}
    for dim in dims:
        for what, value in store_cases(rng, rows, dim, count, runs):
            yield {"rows": rows, "dim": dim, "what": what, "value": value}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, nargs="*", default=[1_000_000, 10_000_000])
    parser.add_argument("--keys", type=int, default=100_000, help="keys of one call")
    parser.add_argument("--dim", type=int, nargs="*", default=[8, 16, 64], help="floats of a row")
    parser.add_argument("--runs", type=int, default=5, help="runs, of which the best counts")
    parser.add_argument("--json", type=Path, help="write the figures there, too")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--touch", type=int, default=0, help="GiB of memory to touch first")
    chosen = parser.parse_args()
    for dim in chosen.dim:
        warm_up(dim, Adagrad())
    print(f"{chosen.keys} keys a call, Adagrad, seed {chosen.seed}; millions a second unless said")
    if chosen.touch:
        print(f"first touch of memory {touch(chosen.touch << 30):.1f} GB/s", end=", ")
        print(f"of the same again {touch(chosen.touch << 30):.1f}", flush=True)
    found = []
    for rows in chosen.rows:
        for result in measure(rows, chosen.dim, chosen.keys, chosen.runs, chosen.seed):
            found.append(result)
            print("{rows:>12d} rows {dim:>4d}  {what:22s}{value:9.1f}".format(**result), flush=True)
    if chosen.json:
        chosen.json.write_text(json.dumps(found, indent=1) + "\n", encoding="utf-8")


if __name__ == "__main__":
    main()
