"""A cluster of threads over real tcp, with or without keys."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

from kv.remote_worker import RemoteWorker
from kv.table_server import TableServer
from postoffice.errors import ClusterStoppedError
from postoffice.head import SchedulerOffice
from postoffice.node import Role
from postoffice.postoffice import ClusterShape, Postoffice
from pslite.keyring import curve_of
from van.config import SecurityConfig, VanConfig
from van.courier import ZmqVan
from van.curve import Curve

LIMIT = 30.0  # seconds that no test should come near


def curve(keys: Path | None, role: str, rank: int | None = 0, **settings: object) -> Curve | None:
    """A node's side of CURVE, from a folder of keys."""
    if keys is None:
        return None
    security = SecurityConfig(curve=True, keys=str(keys), **settings)  # type: ignore[arg-type]
    return curve_of(security, role, rank)


class Threads:
    """Scheduler, one server and workers, each in a thread of this process, over 127.0.0.1.

    Attributes:
        workers: by rank, started.
        scheduler, server: their postoffices.
    """

    def __init__(
        self,
        keys: Path | None,
        workers: int = 2,
        config: VanConfig | None = None,
        lane: str = "off",
    ) -> None:
        self._keys, self._config, self._lane = keys, config, lane
        # Threads of one process: attackers among them leave a node little time to say it lives.
        shape = ClusterShape(
            servers=1, workers=workers, scheduler="tcp://127.0.0.1:0", heartbeat_timeout=4 * LIMIT
        )
        self.scheduler = SchedulerOffice(self._van("scheduler", 0), shape)
        address = self.scheduler.listen()
        self.shape = replace(shape, scheduler=address.partition("#")[0])
        self.failures: list[BaseException] = []
        self._threads = [self._start(self._run_scheduler), self._start(self._run_server)]
        self.workers = [
            RemoteWorker(self.office(Role.WORKER, rank), "async", 1) for rank in range(workers)
        ]
        starts = [self._start(worker.office.start) for worker in self.workers]
        for thread in starts:
            thread.join(LIMIT)
        self.check()
        self.server = next(n for n in self.scheduler.nodes.values() if n.role is Role.SERVER)

    def _van(self, role: str, rank: int) -> ZmqVan:
        mine = curve(self._keys, role, rank, lane=self._lane)
        return ZmqVan(self._config, background=role == "worker", curve=mine)

    def office(self, role: Role, rank: int) -> Postoffice:
        """A node, not started."""
        return Postoffice(role, self._van(role.value, rank), self.shape, rank=rank)

    def _start(self, run: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                run()
            except ClusterStoppedError:
                pass
            except BaseException as error:
                self.failures.append(error)

        thread = threading.Thread(target=guarded, daemon=True)
        thread.start()
        return thread

    def _run_scheduler(self) -> None:
        try:
            self.scheduler.start()
            self.scheduler.serve()
        finally:
            self.scheduler.finalize()

    def _run_server(self) -> None:
        office = self.server_office = self.office(Role.SERVER, 0)
        try:
            with TableServer(office, "async", 1):
                office.start()
                office.serve()
        finally:
            office.finalize()

    def check(self) -> None:
        """Raise what failed in a thread."""
        if self.failures:
            raise self.failures[0]

    def close(self) -> None:
        closing = [self._start(worker.close) for worker in self.workers]
        for thread in closing + self._threads:
            thread.join(LIMIT)
            assert not thread.is_alive()
