"""Ways to keep cold rows on disk: the store's mapped file, pread and pwrite, LMDB if installed.

    pip install lmdb
    python bench/tiers.py --rows 1000000 --floats 16 128

Rows are written in batches and then read back in batches, in random order, through the page cache.
Each figure is thousands of rows a second, the median of the batches.
"""

from __future__ import annotations

import argparse
import importlib.util
import os
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any, Protocol

import numpy as np

from kv.kernels import tiers
from kv.store.cold import ColdTier

Numbers = np.ndarray
BATCH = 4096


class Way(Protocol):
    """Rows by number."""

    def write(self, numbers: Numbers) -> None: ...
    def read(self, numbers: Numbers) -> None: ...


class Memory:
    """The rows in memory that all ways write from and read into."""

    def __init__(self, floats: int) -> None:
        self.data = np.ones((BATCH, floats), np.uint32)
        self.records = np.ones((BATCH, 6), np.uint32)
        self.places = np.arange(BATCH)
        self.nbytes = 4 * floats + 24

    def row(self, place: int) -> bytes:
        return self.records[place].tobytes() + self.data[place].tobytes()

    def set_row(self, place: int, record: bytes | memoryview) -> None:
        words = np.frombuffer(record, np.uint32)
        self.records[place], self.data[place] = words[:6], words[6:]


class Mapped:
    """What the store does."""

    def __init__(self, memory: Memory, directory: Path, rows: int) -> None:
        self.memory, self.tier = memory, ColdTier("bench", memory.nbytes - 24, str(directory))
        self.slots = np.empty(rows, np.int64)

    def write(self, numbers: Numbers) -> None:
        m, slots = self.memory, self.tier.take(numbers.size)
        self.slots[numbers] = slots
        tiers.spill(m.data, m.records, m.places, self.tier.records.view(np.uint32), slots)

    def read(self, numbers: Numbers) -> None:
        m, words = self.memory, self.tier.records.view(np.uint32)
        tiers.fetch(m.data, m.records, m.places, words, self.slots[numbers])


class Calls:
    """A system call for each row."""

    def __init__(self, memory: Memory, directory: Path, rows: int) -> None:
        self.memory = memory
        self.file = os.open(directory / "calls", os.O_RDWR | os.O_CREAT)

    def write(self, numbers: Numbers) -> None:
        nbytes = self.memory.nbytes
        for place, number in enumerate(numbers.tolist()):
            os.pwrite(self.file, self.memory.row(place), number * nbytes)

    def read(self, numbers: Numbers) -> None:
        nbytes = self.memory.nbytes
        for place, number in enumerate(numbers.tolist()):
            self.memory.set_row(place, os.pread(self.file, nbytes, number * nbytes))


class Lmdb:
    """An embedded B+ tree, one transaction a batch, nothing synchronised to the disk."""

    def __init__(self, memory: Memory, directory: Path, rows: int) -> None:
        lmdb: Any = importlib.import_module("lmdb")
        self.memory = memory
        self.base = lmdb.open(
            str(directory / "lmdb"), map_size=8 * rows * memory.nbytes + (64 << 20), sync=False
        )

    def write(self, numbers: Numbers) -> None:
        with self.base.begin(write=True) as changes:
            for place, number in enumerate(numbers.tolist()):
                changes.put(number.to_bytes(8, "big"), self.memory.row(place))

    def read(self, numbers: Numbers) -> None:
        with self.base.begin(buffers=True) as view:
            for place, number in enumerate(numbers.tolist()):
                self.memory.set_row(place, view.get(number.to_bytes(8, "big")))


def batches(rng: np.random.Generator, rows: int) -> Iterator[Numbers]:
    """All numbers below `rows`, whole batches of them, once and in random order."""
    numbers = rng.permutation(rows)
    for start in range(0, rows, BATCH):
        yield numbers[start : start + BATCH]


def rate(call: Callable[[Numbers], None], lists: Iterator[Numbers]) -> float:
    """Thousands of rows a second."""
    times = []
    for numbers in lists:
        start = time.perf_counter()
        call(numbers)
        times.append(time.perf_counter() - start)
    return BATCH / float(np.median(times)) / 1e3


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rows", type=int, default=200_000)
    parser.add_argument("--floats", type=int, nargs="*", default=[16, 128], help="of a row")
    parser.add_argument("--dir", type=Path, help="a directory on the disk to measure")
    parser.add_argument("--seed", type=int, default=0)
    chosen = parser.parse_args()
    chosen.rows = max(1, chosen.rows // BATCH) * BATCH
    ways: dict[str, Callable[[Memory, Path, int], Way]] = {"mapped": Mapped, "calls": Calls}
    if importlib.util.find_spec("lmdb"):
        ways["lmdb"] = Lmdb
    print(f"{chosen.rows} rows, batches of {BATCH}; thousands of rows a second")
    print(f"{'':12s}{'floats':>8s}{'write':>10s}{'read':>10s}{'rewrite':>10s}")
    for floats in chosen.floats:
        for name, make in ways.items():
            with tempfile.TemporaryDirectory(dir=chosen.dir) as directory:
                way = make(Memory(floats), Path(directory), chosen.rows)
                rng = np.random.default_rng(chosen.seed)
                figures = [
                    rate(call, batches(rng, chosen.rows))
                    for call in (way.write, way.read, way.write)
                ]
            print(f"{name:12s}{floats:8d}" + "".join(f"{figure:10.0f}" for figure in figures))


if __name__ == "__main__":
    main()
