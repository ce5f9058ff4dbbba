"""The nodes of a cluster on the seeded network, from their start to their end."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial

from postoffice.head import SchedulerOffice
from postoffice.node import Role
from postoffice.postoffice import Postoffice
from postoffice.shape import ClusterShape
from van.loopback import LoopbackNetwork


def run_nodes(
    network: LoopbackNetwork,
    shape: ClusterShape,
    server: Callable[[Postoffice], object],
    worker: Callable[[Postoffice, int], None],
    *,
    scheduler: Callable[[SchedulerOffice], object] = lambda office: None,
    are_ranked: bool = True,
) -> None:
    """Run a cluster to its end.

    Args:
        server, scheduler: give an office, before it starts, what it is to serve.
        worker: all that the worker of a number does; its office has not started.
        are_ranked: each asks for its number as its rank; else the scheduler decides.
    """

    def schedule() -> None:
        office = SchedulerOffice(network.van(), shape, incarnation=1)
        scheduler(office)
        office.start()
        office.serve()
        office.finalize()

    def office_of(role: Role, number: int) -> Postoffice:
        rank = number if are_ranked else None
        nonce = (100 if role is Role.SERVER else 200) + number
        bind = f"{role} {number}"
        return Postoffice(role, network.van(), shape, bind=bind, rank=rank, nonce=nonce)

    def serve(number: int) -> None:
        office = office_of(Role.SERVER, number)
        server(office)
        office.start()
        office.serve()
        office.finalize()

    def work(number: int) -> None:
        worker(office_of(Role.WORKER, number), number)

    network.spawn("scheduler", schedule)
    for number in range(shape.servers):
        network.spawn(f"server {number}", partial(serve, number))
    for number in range(shape.workers):
        network.spawn(f"worker {number}", partial(work, number))
    network.run_all()
