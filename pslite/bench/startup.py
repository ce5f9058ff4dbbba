"""How long things take to start: imports, `--help`, a server; each in processes of their own."""

from __future__ import annotations

import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path

from postoffice.node import Role
from pslite.bench import own

LIMIT = 60.0  # seconds for any of them
KERNEL = """
import numba

@numba.njit(cache=True)
def total(values):
    result = 0.0
    for value in values:
        result += value
    return result

import numpy as np
total(np.ones(8, np.float32))
"""


class Starts:
    """Each method but `start` and `close` does one start; seconds until something is there."""

    def start(self) -> None:
        """Write the bare program to a folder, and run it once to fill Numba's cache there."""
        self._folder = tempfile.TemporaryDirectory()
        program = Path(self._folder.name) / "bare_kernel.py"
        program.write_text(KERNEL, encoding="utf-8")
        # imported, not run: Numba caches functions of modules
        self._bare = [
            sys.executable,
            "-c",
            f"import sys; sys.path.insert(0, {self._folder.name!r}); import bare_kernel",
        ]
        self.bare()

    def importing(self) -> list[float]:
        """A whole Python that does `import pslite`."""
        return _run([sys.executable, "-c", "import pslite"])

    def help(self) -> list[float]:
        """`pslite --help`."""
        return _run([sys.executable, "-m", "pslite", "--help"])

    def bare(self) -> list[float]:
        """A Python that imports Numba and calls one kernel from its cache."""
        return _run(self._bare)

    def server(self) -> list[float]:
        """A server's process, until the cluster is together; and until its first answer.

        Scheduler and worker are there already.
        """
        peer = own.Peer()
        address = peer.start_scheduler()
        worker = threading.Thread(target=peer.connect, args=(address,), daemon=True)
        worker.start()
        begun = time.perf_counter()
        peer.start_node(Role.SERVER, address, 0)
        worker.join(LIMIT)
        together = time.perf_counter() - begun
        if worker.is_alive():
            raise TimeoutError(f"no server within {LIMIT:g} s")
        peer.prepare(1, 8, "adagrad")
        answered = time.perf_counter() - begun
        peer.close()
        return [together, answered]

    def close(self) -> None:
        self._folder.cleanup()


def _run(command: list[str]) -> list[float]:
    begun = time.perf_counter()
    subprocess.run(command, check=True, timeout=LIMIT, stdout=subprocess.DEVNULL)
    return [time.perf_counter() - begun]
