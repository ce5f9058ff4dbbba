"""Real processes: a server is killed as `kill -9` does it, another takes its place."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest

import pslite
from kv.placement import NOBODY
from kv.remote_worker import RemoteWorker
from postoffice.observer import Observer
from van.courier import ZmqVan

ROOT = Path(__file__).resolve().parent.parent.parent
KEYS = np.arange(5000, dtype=np.uint64)
SETTINGS = """
cluster.servers=2
cluster.replicas=1
cluster.heartbeat_interval=250ms
cluster.heartbeat_timeout=1500ms
cluster.on_server_failure=restart
"""


class Nodes:
    """Scheduler and servers of a job with one worker, which is this process."""

    def __init__(self, servers: int) -> None:
        self.env = {
            **os.environ,
            "PYTHONPATH": str(ROOT),
            "DMLC_NUM_SERVER": str(servers),
            "DMLC_NUM_WORKER": "1",
            "DMLC_PS_ROOT_URI": "127.0.0.1",
            "DMLC_PS_ROOT_PORT": "0",
            "DMLC_NODE_HOST": "127.0.0.1",
            "PSLITE_SET": SETTINGS,
        }
        self.processes: dict[str, subprocess.Popen[str]] = {}
        scheduler = self.start("scheduler")
        assert scheduler.stdout is not None
        line = scheduler.stdout.readline()
        found = re.search(r"listening on (tcp://\S+:(\d+))", line)
        assert found, line
        self.address = found[1]
        self.env["DMLC_PS_ROOT_PORT"] = found[2]
        for rank in range(servers):
            self.start("server", rank)

    def start(self, role: str, rank: int | None = None) -> subprocess.Popen[str]:
        env = {**self.env, "DMLC_ROLE": role}
        if rank is not None:
            env["PSLITE_RANK"] = str(rank)
        process = subprocess.Popen(
            [sys.executable, "-m", "pslite", "node"],
            env=env,
            stdout=subprocess.PIPE if role == "scheduler" else None,
            text=True,
        )
        self.processes[role if rank is None else f"{role} {rank}"] = process
        return process

    def kill(self, name: str) -> None:
        process = self.processes.pop(name)
        process.kill()
        process.wait()

    def end(self) -> None:
        for process in self.processes.values():
            process.kill()
            process.wait()
            if process.stdout is not None:
                process.stdout.close()


@pytest.fixture
def nodes() -> Iterator[Nodes]:
    found = Nodes(servers=2)
    yield found
    found.end()


def wait_until_copied(observer: Observer, servers: int, worker: RemoteWorker) -> None:
    def is_copied() -> bool:
        facts = observer.scheduler("placement")
        is_whole = NOBODY not in facts["backup"] and facts["version"] > 0
        is_whole &= worker.office.view.map_version >= facts["version"]  # it knows whom to ask
        return len(facts["alive"]) == servers and is_whole and facts["is_settled"]

    for _ in range(600):
        if is_copied():
            return
        worker.office.van.wait(lambda: False, 0.1)
    raise AssertionError(observer.scheduler("placement"))


@pytest.mark.parametrize(
    "victims",
    [pytest.param((1,), marks=pytest.mark.slow), pytest.param((0, 1), marks=pytest.mark.soak)],
)
def test_no_push_is_lost_or_counted_twice_when_servers_are_killed(
    nodes: Nodes, victims: tuple[int, ...]
) -> None:
    env = {**nodes.env, "DMLC_ROLE": "worker"}
    with (
        pslite.connect(env=env) as worker,
        Observer(ZmqVan(background=False), nodes.address) as observer,
    ):
        assert isinstance(worker, RemoteWorker)
        table = worker.sparse_table("t", 2, optimizer=pslite.SGD(lr=1), initializer=pslite.Zeros())
        pushes = 0
        for victim in victims:
            wait_until_copied(observer, 2, worker)
            killer = threading.Timer(0.05, nodes.kill, [f"server {victim}"])
            killer.start()
            for _ in range(60):
                table.push(KEYS, np.ones((KEYS.size, 2)))
                pushes += 1
                if pushes % 7 == 0:
                    worker.barrier()
            killer.join()
            nodes.start("server", victim)
            worker.barrier()
            np.testing.assert_array_equal(table.pull(KEYS), -pushes)
        wait_until_copied(observer, 2, worker)
        stats = table.stats()
        assert sum(part["rows"] for part in stats) == KEYS.size
        assert sum(part["copies"] for part in stats) == KEYS.size

    assert [nodes.processes[name].wait(20) for name in ("server 0", "server 1")] == [0, 0]
    assert nodes.processes["scheduler"].wait(20) == 0
