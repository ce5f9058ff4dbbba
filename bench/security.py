"""What CURVE costs: one worker and one server, with keys and without, in turn.

    python bench/security.py
    python bench/security.py --rounds 7 --json security.json

Each run is a cluster of processes on this machine. `tcp` is without keys, `curve` the same way
with them, `lane` what nodes of one host take without keys. Shown are medians over the rounds, and
the medians of the ratios to `tcp` of the same round.
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
from collections.abc import Callable
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parents[1]
WAYS = {
    "tcp": ("van.transport=tcp",),
    "curve": ("van.transport=tcp", "security.curve=on"),
    "lane": ("van.transport=auto",),
}
WHAT = {
    "one_key": "pull of one key (round trip)",
    "mib": "pull of 1 MiB (dense table)",
    "mib_64": "pull of 64 MiB (dense table)",
    "push": "push of 10 000 rows of 16 floats",
}


def median_time(act: Callable[[], object], times: int) -> float:
    """The median of the seconds that `act` takes."""
    act()
    taken = []
    for _ in range(times):
        start = time.perf_counter()
        act()
        taken.append(time.perf_counter() - start)
    return statistics.median(taken)


def measure() -> None:
    """The worker: prints its figures as one line of JSON."""
    import pslite

    with pslite.connect() as worker:
        rows = worker.sparse_table("rows", 16, optimizer=pslite.SGD(lr=0.1))
        dense = worker.dense_table("mib", (1 << 18,), optimizer=pslite.SGD(lr=0.1))
        large = worker.dense_table("mib_64", (1 << 24,), optimizer=pslite.SGD(lr=0.1))
        keys = np.random.default_rng(1).permutation(1 << 20)[:10_000].astype(np.uint64)
        grads = np.ones((keys.size, 16), np.float32)
        rows.pull(keys)
        figures = {
            "one_key": median_time(lambda: rows.pull(keys[:1]), 600),
            "mib": median_time(dense.pull, 80),
            "mib_64": median_time(large.pull, 5),
            "push": median_time(lambda: worker.wait(rows.push(keys, grads)), 80),
        }
        print("figures " + json.dumps(figures), flush=True)


def run(settings: tuple[str, ...], folder: Path) -> dict[str, float]:
    """One cluster; the worker's figures in seconds."""
    (folder / "bench.ini").write_text("[run]\nseed = 1\n[server]\nthreads = 1\n")
    command = [sys.executable, "-m", "pslite", "local", "bench.ini", "--run", "run"]
    for setting in settings:
        command += ["--set", setting]
    command += ["--", "python", str(Path(__file__).resolve()), "--worker"]
    result = subprocess.run(
        command,
        cwd=folder,
        env={**os.environ, "PYTHONPATH": str(ROOT)},
        capture_output=True,
        text=True,
        check=False,
    )
    for line in result.stdout.splitlines():
        if "figures " in line:
            figures: dict[str, float] = json.loads(line.partition("figures ")[2])
            return figures
    raise SystemExit(f"the cluster failed:\n{result.stdout}{result.stderr}")


def main() -> None:
    """Measure and print."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--rounds", type=int, default=5)
    parser.add_argument("--json", type=Path)
    parser.add_argument("--worker", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.worker:
        measure()
        return
    results: dict[str, list[dict[str, float]]] = {way: [] for way in WAYS}
    with tempfile.TemporaryDirectory() as folder:
        for number in range(options.rounds):
            for way in list(WAYS) if number % 2 else reversed(WAYS):
                results[way].append(run(WAYS[way], Path(folder)))
    print("| " + " | ".join(["what", *WAYS, "curve / tcp", "lane / tcp"]) + " |")
    print("| --- " * 6 + "|")
    for key, text in WHAT.items():
        times = {way: [figures[key] for figures in results[way]] for way in WAYS}
        cells = [f"{1e6 * statistics.median(times[way]):.0f} µs" for way in WAYS]
        for way in ("curve", "lane"):
            ratios = [a / b for a, b in zip(times[way], times["tcp"], strict=True)]
            cells.append(f"{statistics.median(ratios):.2f} ({min(ratios):.2f}–{max(ratios):.2f})")
        print("| " + " | ".join([text, *cells]) + " |")
    if options.json:
        options.json.write_text(json.dumps(results, indent=2) + "\n")


if __name__ == "__main__":
    main()
