"""What CURVE costs a message: two processes, one asks, the other answers; with keys and without.

    python bench/security.py
    python bench/security.py --blocks 200 --json security.json

The ways alternate in short blocks, so that other load meets all alike. `tcp` is without keys,
`curve` the same way with them, `lane` what nodes of one host take without keys. A push is its
message, keys and gradients, without what a server does with it: the ratios are the most that a
push can lose. Shown are medians and, in brackets, first deciles.
"""

from __future__ import annotations

import argparse
import json
import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
sys.path.insert(0, str(ROOT))

from pslite.keyring import curve_of, make_keys  # noqa: E402  (after the path)
from van.config import SecurityConfig, VanConfig  # noqa: E402  (likewise)
from van.courier import ZmqVan  # noqa: E402  (likewise)
from van.message import Message, Meta  # noqa: E402  (likewise)

WAYS = ("tcp", "curve", "lane")
SHAPES: dict[str, tuple[int, tuple[int, ...]]] = {
    "header only (round trip)": (30, ()),
    "2 arrays of 32 bytes (round trip)": (30, (32, 32)),
    "1 MiB there, a header back": (10, (1 << 20,)),
    "16 MiB there, a header back": (2, (16 << 20,)),
    "a push of 10 000 rows of 16 floats": (10, (80_000, 640_000)),
}


def van_of(way: str, role: str, keys: Path) -> ZmqVan:
    """A bound van; `role` names its key."""
    security = SecurityConfig(curve=way == "curve", keys=str(keys))
    config = VanConfig(transport="auto" if way == "lane" else "tcp", spin=0.0)
    made = ZmqVan(config, background=False, curve=curve_of(security, role, 0))
    made.bind("tcp://127.0.0.1:0")
    return made


def answer(way: str, keys: Path, asker: str) -> None:
    """The other process: a header back for each message."""
    van = van_of(way, "server", keys)
    van.connect(9, asker)
    van.receiver = lambda message: van.send(Message(Meta(recipient=9)))
    print(van.address, flush=True)
    parent = os.getppid()
    while os.getppid() == parent:
        van.wait(lambda: False, 1.0)


class Asker:
    """One way to one process that answers."""

    def __init__(self, way: str, keys: Path) -> None:
        self.van = van_of(way, "worker", keys)
        command = [sys.executable, __file__, "--answer", way, str(keys), self.van.address]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
        assert self.process.stdout is not None
        self.van.connect(8, self.process.stdout.readline().strip())
        self.got = 0
        self.van.receiver = self._count

    def _count(self, message: Message) -> None:
        self.got += 1

    def ask(self, arrays: list[np.ndarray[Any, Any]]) -> float:
        """The seconds of one question."""
        wanted, start = self.got + 1, time.perf_counter()
        self.van.send(Message(Meta(recipient=8), arrays))
        if not self.van.wait(lambda: self.got >= wanted, 60.0):
            raise SystemExit("no answer within a minute")
        return time.perf_counter() - start

    def close(self) -> None:
        self.process.kill()
        self.process.wait()
        self.van.close(0)


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--blocks", type=int, default=40)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--answer", nargs=3, help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.answer:
        answer(options.answer[0], Path(options.answer[1]), options.answer[2])
        return
    times: dict[str, dict[str, list[float]]] = {}
    with tempfile.TemporaryDirectory() as folder:
        keys = Path(folder) / "keys"
        make_keys(keys, ["server-0"], ["worker-0"])
        askers = {way: Asker(way, keys) for way in WAYS}
        try:
            for what, (count, sizes) in SHAPES.items():
                arrays = [np.zeros(size, np.uint8) for size in sizes]
                times[what] = {way: [] for way in WAYS}
                for _ in range(options.blocks):
                    for way, asker in askers.items():
                        asker.ask(arrays)
                        times[what][way] += [asker.ask(arrays) for _ in range(count)]
        finally:
            for asker in askers.values():
                asker.close()
    print("| " + " | ".join(["µs", *WAYS, "curve / tcp"]) + " |")
    print("| --- " * (len(WAYS) + 2) + "|")
    for what, by_way in times.items():
        medians = {way: 1e6 * statistics.median(taken) for way, taken in by_way.items()}
        deciles = {way: 1e6 * statistics.quantiles(taken, n=10)[0] for way, taken in by_way.items()}
        cells = [f"{medians[way]:.0f} ({deciles[way]:.0f})" for way in WAYS]
        ratio = medians["curve"] / medians["tcp"], deciles["curve"] / deciles["tcp"]
        print("| " + " | ".join([what, *cells, f"{ratio[0]:.2f} ({ratio[1]:.2f})"]) + " |")
    if options.json:
        options.json.write_text(json.dumps(times) + "\n")


if __name__ == "__main__":
    main()
