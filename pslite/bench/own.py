"""pslite as a peer of the benchmark: a scheduler, servers and this process as a worker.

The nodes are what users start: `pslite node` processes, and `pslite.connect` here.
"""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys
import time
from typing import Any

import numpy as np
from numpy.typing import NDArray

import pslite
from postoffice.config import split_address
from postoffice.node import Role
from pslite import environ
from pslite.bench.cases import keys_at
from pslite.config import read_job
from pslite.node import LISTENING
from van.config import VanConfig

FILL = 100_000  # keys of one call that makes rows
STOP_TIMEOUT = 20.0  # seconds for the nodes to end after the worker's goodbye
OPTIMIZERS = {"sgd": pslite.SGD(lr=0.01), "adagrad": pslite.Adagrad(lr=0.01)}


def transports() -> list[str]:
    """The transports to measure: `tcp`, and `local` where pslite has a faster one on one host."""
    known = {field.name for field in dataclasses.fields(VanConfig)}
    return ["tcp", "local"] if "transport" in known else ["tcp"]


def settings_for(transport: str) -> list[str]:
    """Ini overrides for a transport; `local` is what pslite chooses by itself."""
    return ["van.transport=tcp"] if transport == "tcp" and "local" in transports() else []


class Peer:
    """A cluster on this machine whose first worker lives in this process.

    Args:
        transport: `tcp`, or `local` for what pslite chooses on one host.
        servers, workers: how many.
        app: `[server] app` of the servers, for tracing.
    """

    def __init__(
        self, transport: str = "tcp", servers: int = 1, workers: int = 1, app: str = ""
    ) -> None:
        overrides = [*settings_for(transport), f"server.app={app}"]
        overrides += [f"cluster.servers={servers}", f"cluster.workers={workers}"]
        self._job = read_job(None, overrides)
        self._nodes: list[subprocess.Popen[str]] = []
        self._tables: dict[tuple[int, int, str], Any] = {}
        self._dense: dict[int, Any] = {}

    def start(self) -> None:
        """Start everything; returns when the cluster is together."""
        self.connect(self.start_nodes())

    def start_nodes(self) -> str:
        """Start scheduler and servers; the scheduler's address, HOST:PORT."""
        address = self.start_scheduler()
        for rank in range(self._job.cluster.servers):
            self.start_node(Role.SERVER, address, rank)
        return address

    def start_scheduler(self) -> str:
        """Start the scheduler alone; its address, HOST:PORT."""
        node = self.start_node(Role.SCHEDULER, "127.0.0.1:0", None)
        assert node.stdout is not None
        for line in node.stdout:
            if line.startswith(LISTENING):
                return line.removeprefix(LISTENING).strip().removeprefix("tcp://")
        raise RuntimeError("the scheduler ended before it listened")

    def start_node(self, role: Role, address: str, rank: int | None) -> subprocess.Popen[str]:
        pipe = subprocess.PIPE if role is Role.SCHEDULER else None
        node = subprocess.Popen(
            [sys.executable, "-m", "pslite", "node"],
            env=self._environ(role, address, rank),
            stdin=subprocess.DEVNULL,
            stdout=pipe,
            text=True,
        )
        self._nodes.append(node)
        return node

    def _environ(self, role: Role, address: str, rank: int | None) -> dict[str, str]:
        cluster = dataclasses.replace(self._job.cluster, scheduler=address)
        job = dataclasses.replace(self._job, cluster=cluster)
        return environ.child_environ(
            os.environ, environ.NodeSettings(role=role, rank=rank, job=job)
        )

    def connect(self, address: str, rank: int = 0) -> None:
        """Join the cluster whose scheduler listens at `address`."""
        split_address(address)
        self.worker = pslite.connect(env=self._environ(Role.WORKER, address, rank))

    def prepare(self, rows: int, dim: int, optimizer: str) -> None:
        """See that the table has `rows` rows, and use it from now on."""
        self._use(rows, dim, optimizer)
        if len(self.table) < rows:
            for _ in self._filled(rows):
                pass

    def grow(self, rows: int, dim: int, optimizer: str) -> list[float]:
        """Push a new table full; seconds of each push of FILL new keys."""
        self._use(rows, dim, optimizer)
        return list(self._filled(rows, push=True))

    def _use(self, rows: int, dim: int, optimizer: str) -> None:
        name = (rows, dim, optimizer)
        if name not in self._tables:
            self._tables[name] = self.worker.sparse_table(
                f"{optimizer}-{dim}-{rows}",
                dim,
                optimizer=OPTIMIZERS[optimizer],
                initializer=pslite.Uniform(-0.01, 0.01),
            )
        self.table = self._tables[name]

    def _filled(self, rows: int, push: bool = False) -> Any:
        grads = np.full((FILL, self.table.dim), 0.01, np.float32)
        for start in range(0, rows, FILL):
            keys = keys_at(np.arange(start, min(start + FILL, rows)))
            begun = time.perf_counter()
            if push:
                self.push(keys, grads[: keys.size])
            else:
                self.table.pull(keys)
            yield time.perf_counter() - begun

    def keys(self, positions: NDArray[np.int64]) -> NDArray[np.uint64]:
        return keys_at(positions)

    def pull(self, keys: NDArray[np.uint64]) -> None:
        self.table.pull(keys)

    def push(self, keys: NDArray[np.uint64], grads: NDArray[np.float32]) -> None:
        self.worker.wait(self.table.push(keys, grads))

    def push_pull(self, keys: NDArray[np.uint64], grads: NDArray[np.float32]) -> None:
        self.table.push_pull(keys, grads)

    def prepare_dense(self, nbytes: int) -> None:
        """A dense table of `nbytes`, and an array to push."""
        shape = (nbytes // 4,)
        if nbytes not in self._dense:
            table = self.worker.dense_table(f"dense-{nbytes}", shape, optimizer=OPTIMIZERS["sgd"])
            self._dense[nbytes] = table
        self._grad = np.full(shape, 1e-6, np.float32)

    def dense_pull(self, nbytes: int) -> None:
        self._dense[nbytes].pull()

    def dense_push(self, nbytes: int) -> None:
        self.worker.wait(self._dense[nbytes].push(self._grad))

    def close(self) -> None:
        """Say goodbye; the nodes end by themselves, and are killed if they do not."""
        self.worker.close()
        deadline = time.monotonic() + STOP_TIMEOUT
        for node in self._nodes:
            try:
                node.wait(max(0.1, deadline - time.monotonic()))
            except subprocess.TimeoutExpired:
                node.kill()
