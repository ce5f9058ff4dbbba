"""The same storms over real sockets, with threads on the servers: by tcp and by the local lane."""

from __future__ import annotations

import threading
from collections.abc import Callable
from functools import partial

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
from van.faults import FaultPlan, Faults, FaultyVan
from van.message import Meta

LIMIT = 120.0
STORM = Faults(drop=0.2, duplicate=0.2, delay=0.2, delay_up_to=0.05, reorder=0.2)


def is_data(meta: Meta) -> bool:
    return not meta.control


@pytest.mark.parametrize("transport", ["tcp", "auto"])
def test_pushes_of_ones_add_up_over_real_sockets(transport: str) -> None:
    errors: list[BaseException] = []
    seen: list[np.ndarray] = []
    plans = [FaultPlan(seed, STORM, hits=is_data) for seed in range(4)]
    head = SchedulerOffice(
        ZmqVan(background=False),
        ClusterShape(servers=2, workers=2, scheduler="tcp://127.0.0.1:0"),
    )
    shape = ClusterShape(servers=2, workers=2, scheduler=head.listen())
    config = VanConfig(transport=transport)  # type: ignore[arg-type]

    def spawn(name: str, run: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                run()
            except BaseException as error:
                errors.append(error)
                head.stop(f"{name} failed")

        thread = threading.Thread(target=guarded, name=name, daemon=True)
        thread.start()
        return thread

    def scheduler() -> None:
        head.start()
        head.serve()
        head.finalize()

    def server(rank: int) -> None:
        van = FaultyVan(ZmqVan(config, background=False), plans[rank])
        office = Postoffice(Role.SERVER, van, shape, rank=rank)
        with TableServer(office, threads=2) as tables:
            office.start()
            office.serve()
            tables.desk.windows.validate()
        office.finalize()

    def worker(rank: int) -> None:
        van = FaultyVan(ZmqVan(config), plans[2 + rank])
        office = Postoffice(Role.WORKER, van, shape, rank=rank)
        office.resend_with(Resend(timeout=0.05))
        remote = RemoteWorker(office, piece=20_000)
        office.start()
        keys, ones = np.arange(5000), np.ones((5000, 4))
        table = remote.sparse_table("t", 4, optimizer=SGD(lr=1), initializer=None, missing="zeros")
        for _ in range(10):
            table.push(keys, ones)
        remote.barrier()
        seen.append(table.pull(keys))
        remote.close()

    threads = [spawn("scheduler", scheduler)]
    for rank in range(2):
        threads += [
            spawn(f"server {rank}", partial(server, rank)),
            spawn(f"worker {rank}", partial(worker, rank)),
        ]
    for thread in threads:
        thread.join(LIMIT)

    assert not errors
    assert not any(thread.is_alive() for thread in threads)
    assert all(plan.counts["dropped"] and plan.counts["duplicated"] for plan in plans)
    assert len(seen) == 2
    for rows in seen:
        np.testing.assert_array_equal(rows, -20)
