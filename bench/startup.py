"""How long processes take to start, as ratios to bare Python programs in the same run.

    python bench/startup.py [--runs 5]

`server` is the time from starting a server's process until its worker has found it; `first pull`
until the first pull of a table that it defines is answered. The bare process imports numba and
calls one kernel that is compiled already. Medians; everything alternates.
"""

from __future__ import annotations

import argparse
import os
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable
from pathlib import Path

from kv.remote_worker import RemoteWorker
from postoffice.head import SchedulerOffice
from postoffice.node import Role
from postoffice.postoffice import ClusterShape, Postoffice
from van.courier import ZmqVan

ROOT = Path(__file__).resolve().parent.parent
BARE_KERNEL = """
import numpy as np
from kv.kernels.jit import frozen
from kv.kernels.merge import first_unsorted
first_unsorted(frozen(np.zeros(1, np.uint64)))
"""


def run(*arguments: str) -> float:
    """Seconds that a Python process takes."""
    begun = time.perf_counter()
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    subprocess.run([sys.executable, *arguments], env=environment, check=True, capture_output=True)
    return time.perf_counter() - begun


def server() -> tuple[float, float]:
    """Seconds until a server is found, and until its first table has answered."""
    van = ZmqVan(background=False)
    shape = ClusterShape(servers=1, workers=1, scheduler="tcp://127.0.0.1:0")
    head = SchedulerOffice(van, shape)
    address = head.listen()
    shape = ClusterShape(servers=1, workers=1, scheduler=address)

    def schedule() -> None:
        head.start()
        head.serve()
        head.finalize()

    threading.Thread(target=schedule, daemon=True).start()
    host, port = address.removeprefix("tcp://").rsplit(":", 1)
    worker = RemoteWorker(Postoffice(Role.WORKER, ZmqVan(), shape))
    environment = os.environ | {
        "PYTHONPATH": str(ROOT),
        "DMLC_ROLE": "server",
        "DMLC_NUM_SERVER": "1",
        "DMLC_NUM_WORKER": "1",
        "DMLC_PS_ROOT_URI": host,
        "DMLC_PS_ROOT_PORT": port,
    }
    begun = time.perf_counter()
    process = subprocess.Popen([sys.executable, "-m", "pslite", "node"], env=environment)
    worker.office.start()
    found = time.perf_counter() - begun
    worker.sparse_table("t", 8).pull([1, 2, 3])
    answered = time.perf_counter() - begun
    worker.close()
    process.wait()
    return found, answered


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--runs", type=int, default=5)
    runs = parser.parse_args().runs
    programs: dict[str, Callable[[], tuple[float, ...]]] = {
        "python -c pass": lambda: (run("-c", "pass"),),
        "import pslite": lambda: (run("-c", "import pslite"),),
        "pslite --help": lambda: (run("-m", "pslite", "--help"),),
        "bare": lambda: (run("-c", BARE_KERNEL),),
        "server": server,
    }
    times: dict[str, list[tuple[float, ...]]] = {name: [] for name in programs}
    for turn in range(runs + 1):
        for name, program in programs.items():
            taken = program()
            if turn:  # the first fills the caches of files and kernels
                times[name].append(taken)
    found = {name: statistics.median(t[0] for t in taken) for name, taken in times.items()}
    found["first pull"] = statistics.median(t[1] for t in times["server"])
    for name, seconds in found.items():
        print(f"{name:16} {seconds:7.3f} s   {seconds / found['bare']:5.2f} of the bare process")


if __name__ == "__main__":
    main()
