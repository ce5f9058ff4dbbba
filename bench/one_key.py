"""What a request of one key takes between two processes of this host, with looking and without.

Starts, in turn, jobs of one server and one worker that look for a message before they sleep, and
ones that sleep at once (`[van] spin = 0s`). The worker pulls one key again and again, then pushes
it. Shown are microseconds: medians of all requests of all rounds, first deciles, and how much of
the median is the worker's own time, in which it does not wait for the answer.

    python bench/one_key.py [--rounds 3] [--requests 8000] [--transport local]
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

ROOT = Path(__file__).resolve().parent.parent
WARM = 1000  # requests not counted
WAYS = {"looking": [], "sleeping": ["--set", "van.spin=0s"]}


def timed(request: Callable[[], object], count: int, waited: list[float]) -> NDArray[np.float64]:
    """Seconds of each of `count` requests, and of it those that `waited` grew by; shape (n, 2)."""
    found = np.empty((count, 2))
    for row in found:
        before, begun = waited[0], time.perf_counter()
        request()
        row[:] = time.perf_counter() - begun, waited[0] - before
    return found


def work(requests: int) -> None:
    import pslite

    key, gradient = np.array([77], np.uint64), np.ones((1, 16), np.float32)
    with pslite.connect() as worker:
        table = worker.sparse_table("t", 16, optimizer=pslite.Adagrad(lr=0.1))
        waited = note_waits(worker.office.van._ends)
        for name, request in {
            "pull": lambda: table.pull(key),
            "push": lambda: worker.wait(table.push(key, gradient)),
        }.items():
            timed(request, WARM, waited)
            figures = timed(request, requests, waited)
            print("figures", json.dumps([name, (1e6 * figures).round(2).tolist()]), flush=True)


def note_waits(ends: object) -> list[float]:
    """A list whose only number grows by the seconds of each wait of a van."""
    waited, poll = [0.0], ends.poll

    def noting(*given: object, **named: object) -> None:
        begun = time.perf_counter()
        poll(*given, **named)
        waited[0] += time.perf_counter() - begun

    ends.poll = noting
    return waited


def run(way: str, arguments: argparse.Namespace) -> dict[str, NDArray[np.float64]]:
    """One job; figures of its worker by request."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "pslite", "local", str(ROOT / "conf" / "local.ini")]
        command += ["--servers", "1", "--workers", "1", "--run", folder]
        command += ["--set", f"van.transport={arguments.transport}", *WAYS[way]]
        command += ["--", sys.executable, __file__, "--requests", str(arguments.requests)]
        environment = os.environ | {"PYTHONPATH": str(ROOT)}
        done = subprocess.run(command, env=environment, stdout=subprocess.PIPE, text=True)
    if done.returncode:
        raise SystemExit(done.returncode)
    lines = [line.partition("figures ")[2] for line in done.stdout.splitlines()]
    return {name: np.array(rows) for name, rows in map(json.loads, filter(None, lines))}


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").split("\n\n")[0])
    parser.add_argument("--rounds", type=int, default=3)
    parser.add_argument("--requests", type=int, default=8000)
    parser.add_argument("--transport", default="local", help="local, tcp or ipc")
    arguments = parser.parse_args()
    if "DMLC_ROLE" in os.environ:
        return work(arguments.requests)
    found: dict[tuple[str, str], list[NDArray[np.float64]]] = {}
    for _ in range(arguments.rounds):
        for way in WAYS:
            for name, figures in run(way, arguments).items():
                found.setdefault((name, way), []).append(figures)
    print(f"{'us':16}{'median':>8}{'decile':>8}{'own':>8}")
    for (name, way), parts in sorted(found.items()):
        whole, waits = np.concatenate(parts).T
        shown = (np.median(whole), np.quantile(whole, 0.1), np.median(whole - waits))
        print(f"{f'{name}, {way}':16}" + "".join(f"{value:8.1f}" for value in shown))


if __name__ == "__main__":
    main()
