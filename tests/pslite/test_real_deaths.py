"""Nodes of real clusters are killed and started again, as an operating system and a user would."""

from __future__ import annotations

import contextlib
import re
import subprocess
import sys
import textwrap
import threading
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

Environment = Callable[..., dict[str, str]]
LIMIT = 120.0  # seconds; no wait should come near

WORKER = """
    import sys, threading
    import numpy as np, pslite

    lines = threading.Semaphore(0)  # each line on stdin lets the program go on by a round

    def read():
        for _ in sys.stdin:
            lines.release()

    threading.Thread(target=read, daemon=True).start()
    with pslite.connect() as worker:
        table = worker.sparse_table("t", 1, optimizer=pslite.SGD(lr=1), initializer=pslite.Zeros())
        print("joined", flush=True)
        for number in range(3):
            lines.acquire()
            worker.wait(table.push([7], np.ones((1, 1))))
            worker.barrier(f"round {number}")
            print("round", number, flush=True)
        print("rows", float(table.pull([7])[0, 0]), flush=True)
        worker.barrier("end")
"""


class Process:
    """One node, and what it has printed."""

    def __init__(self, command: list[str], env: dict[str, str], folder: Path) -> None:
        self.lines: list[str] = []
        self._changed = threading.Condition()
        self._ended = False
        self.process = subprocess.Popen(
            command,
            env=env,
            cwd=folder,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        self._thread = threading.Thread(target=self._read)
        self._thread.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            with self._changed:
                self.lines.append(line.rstrip())
                self._changed.notify_all()
        with self._changed:
            self._ended = True
            self._changed.notify_all()

    def until(self, text: str) -> str:
        """The first line with `text`, once it is printed."""

        def found() -> list[str]:
            return [line for line in self.lines if text in line]

        with self._changed:
            self._changed.wait_for(lambda: found() or self._ended, LIMIT)
            assert found(), f"no {text!r} in {self.lines}"
            return found()[0]

    def go_on(self) -> None:
        """Let a worker do a round."""
        assert self.process.stdin is not None
        self.process.stdin.write("\n")
        self.process.stdin.flush()

    def kill(self) -> None:
        self.process.kill()
        self.end()

    def end(self) -> int:
        """The exit code."""
        code = self.process.wait(LIMIT)
        self._thread.join(LIMIT)
        with contextlib.suppress(BrokenPipeError):
            self.process.communicate()
        return code


class Nodes:
    """The processes of one cluster of a server and two workers."""

    def __init__(self, folder: Path, environment: Environment, **cluster: str) -> None:
        self.folder, self._environment = folder, environment
        (folder / "worker.py").write_text(textwrap.dedent(WORKER))
        settings = {"heartbeat_interval": "0.2s", "heartbeat_timeout": "3s", **cluster}
        self._settings = "".join(f"cluster.{key}={value}\n" for key, value in settings.items())
        self._port = "0"
        self.all: list[Process] = []

    def start(self, role: str, rank: int = 0, *, is_standby: bool = False) -> Process:
        env = self._environment(
            DMLC_ROLE=role,
            DMLC_NUM_SERVER="1",
            DMLC_NUM_WORKER="2",
            DMLC_PS_ROOT_URI="127.0.0.1",
            DMLC_PS_ROOT_PORT="0" if is_standby else self._port,
            PSLITE_RANK=str(rank),
            PSLITE_SET=self._settings,
            PYTHONUNBUFFERED="1",
        )
        node = [sys.executable, "-m", "pslite", "node"]
        command = [sys.executable, "worker.py"] if role == "worker" else node
        process = Process(command, env, self.folder)
        self.all.append(process)
        if role == "scheduler" and not is_standby:
            line = process.until("listening on")
            self._port = re.findall(r":(\d+)$", line)[0]
        return process

    def start_all(self) -> tuple[Process, Process, list[Process]]:
        """Scheduler, server and workers."""
        scheduler, server = self.start("scheduler"), self.start("server")
        return scheduler, server, [self.start("worker", rank) for rank in range(2)]


@pytest.fixture
def nodes(tmp_path: Path, environment: Environment) -> Iterator[Callable[..., Nodes]]:
    made: list[Nodes] = []

    def make(**cluster: str) -> Nodes:
        made.append(Nodes(tmp_path, environment, **cluster))
        return made[0]

    yield make
    for process in made[0].all:
        if process.process.poll() is None:
            process.process.kill()
        process.end()
        print(process.process.args, process.lines)


def test_workers_and_servers_ride_through_a_killed_scheduler(
    nodes: Callable[..., Nodes], tmp_path: Path
) -> None:
    cluster = nodes(journal=str(tmp_path / "journal"), heartbeat_timeout="100s")
    scheduler, server, workers = cluster.start_all()
    for worker in workers:
        worker.until("joined")
        worker.go_on()
    for worker in workers:
        worker.until("round 0")

    scheduler.kill()
    workers[0].go_on()  # comes to a barrier that nobody can answer
    scheduler = cluster.start("scheduler")
    workers[0].go_on()
    for _ in range(2):
        workers[1].go_on()

    for worker in workers:
        worker.until("rows -6.0")
    assert [process.end() for process in [*workers, server, scheduler]] == [0] * 4
    assert not (tmp_path / "journal").exists()


@pytest.mark.slow
def test_a_killed_worker_is_restarted_into_its_rank_while_the_others_wait(
    nodes: Callable[..., Nodes],
) -> None:
    cluster = nodes(on_worker_failure="restart", heartbeat_timeout="100s")
    scheduler, server, workers = cluster.start_all()
    for worker in workers:
        worker.until("joined")
    workers[0].go_on()

    workers[1].kill()
    workers[1] = cluster.start("worker", 1)  # its former life has not been missed yet
    for _ in range(3):
        workers[1].go_on()
    for _ in range(2):
        workers[0].go_on()

    for worker in workers:
        worker.until("rows -6.0")
    assert [process.end() for process in [*workers, server, scheduler]] == [0] * 4


@pytest.mark.slow
def test_by_default_a_killed_worker_ends_the_job_and_is_named_on_every_node(
    nodes: Callable[..., Nodes],
) -> None:
    cluster = nodes()
    scheduler, server, workers = cluster.start_all()
    for worker in workers:
        worker.until("joined")
    workers[0].go_on()

    workers[1].kill()

    assert workers[0].end() != 0
    assert server.end() == 76
    assert scheduler.end() != 0
    for process in (workers[0], scheduler):
        process.until("worker 1 was silent for ")


@pytest.mark.slow
def test_a_standby_takes_over_by_etcd_at_another_address(
    nodes: Callable[..., Nodes], etcd: str
) -> None:
    cluster = nodes(etcd=etcd, heartbeat_timeout="100s")
    scheduler, server = cluster.start("scheduler"), cluster.start("server")
    standby = cluster.start("scheduler", is_standby=True)
    workers = [cluster.start("worker", rank) for rank in range(2)]
    for worker in workers:
        worker.until("joined")
        worker.go_on()
    for worker in workers:
        worker.until("round 0")
    assert standby.lines == []

    scheduler.kill()
    for _ in range(2):
        for worker in workers:
            worker.go_on()

    standby.until("listening on")
    for worker in workers:
        worker.until("rows -6.0")
    assert [process.end() for process in [*workers, server, standby]] == [0] * 4
