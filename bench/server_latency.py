"""How long a one-key pull takes while another worker pushes a million keys at a time.

    python bench/server_latency.py [--seconds 6] [--keys 1000000] [--dim 16] [--threads 0]

Starts one server and two workers as processes on this machine. Worker 0 has two pushes under way
all the time, worker 1 pulls one key at a time, first alone, then beside it; then both push and pull
100 000 keys a request for the total throughput.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

import numpy as np

ROOT = Path(__file__).resolve().parent.parent
WARM = 30  # requests not counted
BATCH = 100_000  # keys of a request for the throughput


def delays(table, seconds: float) -> np.ndarray:
    """Round trips of one-key pulls, milliseconds."""
    keys = np.array([5], np.uint64)
    found: list[float] = []
    stop = time.perf_counter() + seconds
    while time.perf_counter() < stop:
        begun = time.perf_counter()
        table.pull(keys)
        found.append(1000 * (time.perf_counter() - begun))
    return np.array(found[WARM:])


def shown(what: str, found: np.ndarray) -> str:
    parts = [f"{name} {np.percentile(found, q):8.3f}" for name, q in (("p50", 50), ("p99", 99))]
    return f"{what:44} {'  '.join(parts)}  worst {found.max():8.3f} ms  ({found.size} pulls)"


def work(arguments: argparse.Namespace) -> None:
    import pslite

    rng = np.random.default_rng(3)
    with pslite.connect() as worker:
        table = worker.sparse_table("t", arguments.dim, optimizer=pslite.Adagrad(lr=0.1))
        keys = np.arange(arguments.keys, dtype=np.uint64)
        grads = rng.standard_normal((keys.size, arguments.dim)).astype(np.float32)
        if worker.rank == 0:
            worker.wait(table.push(keys, grads))
        worker.barrier()
        if worker.rank == 1:
            print(shown("one key, alone", delays(table, arguments.seconds / 3)), flush=True)
        worker.barrier()
        pushes, begun = 0, time.perf_counter()
        if worker.rank == 1:
            print(shown("one key, beside pushes", delays(table, arguments.seconds)), flush=True)
        else:
            under_way = [table.push(keys, grads)]
            while time.perf_counter() < begun + arguments.seconds + 1:
                under_way.append(table.push(keys, grads))
                worker.wait(under_way.pop(0))
                pushes += 1
            spent = time.perf_counter() - begun
            print(f"{pushes * keys.size / spent / 1e6:.2f} M keys/s pushed meanwhile", flush=True)
        worker.barrier()
        batches = [np.sort(rng.choice(arguments.keys, BATCH, replace=False)) for _ in range(8)]
        batches = [batch.astype(np.uint64) for batch in batches]
        begun, rounds = time.perf_counter(), 0
        while time.perf_counter() < begun + arguments.seconds / 2:
            for batch in batches:
                rows = table.pull(batch)
                worker.wait(table.push(batch, rows))
                rounds += 1
        rate = rounds * BATCH / (time.perf_counter() - begun) / 1e6
        total = worker.gather(rate)
        if total is not None:
            print(
                f"push + pull of {BATCH} keys, both workers: {sum(total):.2f} M keys/s", flush=True
            )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--seconds", type=float, default=6.0)
    parser.add_argument("--keys", type=int, default=1_000_000)
    parser.add_argument("--dim", type=int, default=16)
    parser.add_argument("--threads", type=int, default=None)
    arguments = parser.parse_args()
    if "DMLC_ROLE" in os.environ:
        work(arguments)
    else:
        with tempfile.TemporaryDirectory() as run:
            sys.exit(start(arguments, run))


def start(arguments: argparse.Namespace, run: str) -> int:
    """This program as the workers of a job; its exit code."""
    command = [sys.executable, "-m", "pslite", "local", str(ROOT / "conf" / "local.ini")]
    command += ["--servers", "1", "--workers", "2", "--run", run]
    if arguments.threads is not None:
        command += ["--set", f"server.threads={arguments.threads}"]
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    command += ["--", sys.executable, __file__, *sys.argv[1:]]
    return subprocess.run(command, env=environment, check=False).returncode


if __name__ == "__main__":
    main()
