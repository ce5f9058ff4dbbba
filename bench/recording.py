"""What it costs to write down the order of requests, and to keep to it.

The same job of processes, two servers and two workers that pull and push rows, is run as it is,
with --record and with --replay, in turn. Ratios are of the time of all steps of a size, to that of
the run as it is in the same round: medians, with the least and the largest.

    python bench/recording.py
    python bench/recording.py --keys 1000 --steps 500 --rounds 3
"""

from __future__ import annotations

import argparse
import statistics
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
LIMIT = 900.0  # seconds; no run should come near
WAYS = ("as it is", "record", "replay")

WORKER = """
import sys, time
import numpy as np
import pslite

steps = int(sys.argv[1])
with pslite.connect() as worker:
    table = worker.sparse_table("t", 8, optimizer=pslite.Adagrad(lr=0.01))
    rng = np.random.default_rng(worker.rank)
    for count in map(int, sys.argv[2:]):
        lists = [np.sort(rng.choice(400_000, count, replace=False)) for _ in range(8)]
        for number in range(-8, steps):  # those below 0 make rows and load what is needed
            if number == 0:
                worker.barrier()
                began = time.perf_counter()
            keys = lists[number % 8]
            rows = table.pull(keys)
            worker.wait(table.push(keys, rows * 0.01))
        worker.barrier()
        if worker.rank == 0:
            print("took", count, time.perf_counter() - began, flush=True)
"""


def run(folder: Path, way: str, steps: int, sizes: list[int]) -> dict[int, float]:
    """Seconds of all steps, by number of keys."""
    options = [] if way == "as it is" else [f"--{way}", str(folder / "order")]
    command = [sys.executable, "-m", "pslite", "local", str(ROOT / "conf" / "local.ini")]
    command += ["--servers", "2", "--workers", "2", *options, "--run", str(folder / "run")]
    command += ["--", "python", str(folder / "worker.py"), str(steps), *map(str, sizes)]
    result = subprocess.run(
        command, cwd=ROOT, capture_output=True, text=True, timeout=LIMIT, check=False
    )
    if result.returncode:
        sys.exit(result.stdout + result.stderr)
    lines = [line.split() for line in result.stdout.splitlines() if " took " in line]
    return {int(line[-2]): float(line[-1]) for line in lines}


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--keys", type=int, nargs="*", default=[100, 10_000, 100_000])
    parser.add_argument("--steps", type=int, default=200, help="of each worker and size")
    parser.add_argument("--rounds", type=int, default=5)
    options = parser.parse_args()
    times: dict[tuple[str, int], list[float]] = {}
    nbytes = 0
    for _ in range(options.rounds):
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name)
            (folder / "worker.py").write_text(WORKER)
            for way in WAYS:
                for size, seconds in run(folder, way, options.steps, options.keys).items():
                    times.setdefault((way, size), []).append(seconds)
            nbytes = sum(path.stat().st_size for path in (folder / "order").iterdir())
    print(f"{'keys':>8}  {'as it is':>12}  {'record':>20}  {'replay':>20}")
    for size in options.keys:
        base = times["as it is", size]
        shown = [f"{2 * options.steps / statistics.median(base):>8.0f} st/s"]
        for way in WAYS[1:]:
            ratios = [one / other for one, other in zip(times[way, size], base, strict=True)]
            span = f"({min(ratios):.2f} to {max(ratios):.2f})"
            shown.append(f"{statistics.median(ratios):>5.2f} {span:>14}")
        print(f"{size:>8}  " + "  ".join(shown))
    requests = 2 * 2 * 2 * (options.steps + 8) * len(options.keys)
    print(f"{nbytes} bytes of records, {nbytes / requests:.1f} for each request to a server")


if __name__ == "__main__":
    main()
