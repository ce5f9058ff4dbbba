"""Exceptions out of signal handlers, at any moment of a worker's pushes and pulls."""

from __future__ import annotations

import random
import signal
import threading
from collections.abc import Callable, Iterator
from types import FrameType
from typing import TypeVar

import numpy as np
import pytest

from kv.optimizers import SGD
from kv.remote_worker import RemoteWorker
from kv.table_server import TableServer
from postoffice.head import SchedulerOffice
from postoffice.node import Role
from postoffice.postoffice import ClusterShape, Postoffice
from postoffice.resending import Resend
from van.config import VanConfig
from van.courier import ZmqVan

T = TypeVar("T")
LIMIT = 120.0
KEYS = np.arange(40_000, dtype=np.uint64)
SIZES = [1, 100, 3000, KEYS.size]


class Interrupted(KeyboardInterrupt):
    """What the handler raises."""


class Storm:
    """Signals at random moments; each raises in what is under way in `through`."""

    def __init__(self, seed: int, shortest: float, longest: float) -> None:
        self._chance, self._times = random.Random(seed), (shortest, longest)
        self._is_armed = False
        self.count = 0

    def __enter__(self) -> Storm:
        self._before = signal.signal(signal.SIGALRM, self._strike)
        return self

    def __exit__(self, *error: object) -> None:
        self._is_armed = False
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, self._before)

    def _strike(self, number: int, frame: FrameType | None) -> None:
        if self._is_armed:
            self._is_armed = False
            self.count += 1
            raise Interrupted

    def through(self, call: Callable[[], T]) -> T | None:
        """What `call` returns; None where it was interrupted."""
        try:
            signal.setitimer(signal.ITIMER_REAL, self._chance.uniform(*self._times))
            self._is_armed = True
            found = call()
            self._is_armed = False
            return found
        except Interrupted:
            return None


@pytest.fixture
def worker(request: pytest.FixtureRequest) -> Iterator[RemoteWorker]:
    """A worker of this thread, of a cluster whose other nodes have threads of their own."""
    # What pyzmq itself keeps of frames that are sent from where they lie bears no interrupts.
    config = VanConfig(transport=request.param, shared_memory=4 << 20, zero_copy_from=1 << 30)
    head = SchedulerOffice(
        ZmqVan(background=False), ClusterShape(servers=1, workers=1, scheduler="tcp://127.0.0.1:0")
    )
    shape = ClusterShape(servers=1, workers=1, scheduler=head.listen())

    def scheduler() -> None:
        head.start()
        head.serve()
        head.finalize()

    def server() -> None:
        office = Postoffice(Role.SERVER, ZmqVan(config, background=False), shape, rank=0)
        with TableServer(office, threads=1) as tables:
            office.start()
            office.serve()
            tables.engine.validate()
        office.finalize()

    threads = [threading.Thread(target=run, daemon=True) for run in (scheduler, server)]
    for thread in threads:
        thread.start()
    office = Postoffice(Role.WORKER, ZmqVan(config), shape, rank=0)
    office.resend_with(Resend(timeout=0.1))
    made = RemoteWorker(office)
    office.start()
    yield made
    made.close()
    for thread in threads:
        thread.join(LIMIT)
        assert not thread.is_alive()


@pytest.mark.filterwarnings("ignore::pytest.PytestUnraisableExceptionWarning")  # in a __del__
@pytest.mark.parametrize("worker", ["local", "tcp"], indirect=True)
@pytest.mark.parametrize("seed", range(2))
def test_a_worker_goes_on_after_interrupts_at_any_moment(worker: RemoteWorker, seed: int) -> None:
    table = worker.sparse_table("t", 1, optimizer=SGD(lr=1), initializer=None, missing="zeros")
    chance = random.Random(seed)
    counted = np.zeros(KEYS.size)  # pushes that were acknowledged
    for size in (*SIZES, *SIZES):  # kernels are loaded before the first signal
        worker.wait(table.push(KEYS[:size], np.ones((size, 1))))
        counted[:size] += 1
        table.pull(KEYS[:size])
    perhaps = np.zeros(KEYS.size)  # and those that were interrupted

    with Storm(seed, 5e-5, 3e-3) as storm:
        for number in range(4000):
            if number >= 400 and storm.count > 50:  # a quick machine is struck less often
                break
            some = KEYS[: chance.choice(SIZES)]
            ones = np.ones((some.size, 1), np.float32)
            request = storm.through(lambda s=some, o=ones: table.push(s, o))  # type: ignore[misc]
            if request is None:
                perhaps[: some.size] += 1
                continue
            if number % 2:
                storm.through(lambda s=some: table.pull(s))  # type: ignore[misc]
            worker.wait(request, LIMIT)
            counted[: some.size] += 1

    worker.barrier()
    values = -table.pull(KEYS)[:, 0]
    assert storm.count > 50
    assert (values >= counted).all()
    assert (values <= counted + perhaps).all()
