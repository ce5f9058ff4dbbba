"""Whole clusters of postoffices in one process: seeded loopback networks and real sockets."""

from __future__ import annotations

import threading
from collections.abc import Callable

import msgpack
import pytest
import zmq

from postoffice.customer import Customer
from postoffice.errors import (
    ClusterStartError,
    ClusterStoppedError,
    RegistrationError,
)
from postoffice.head import SchedulerOffice
from postoffice.node import SCHEDULER_ID, Group, Role
from postoffice.postoffice import ClusterShape, Postoffice
from tests.postoffice.nodes import run_nodes
from van.codec import decode_header
from van.config import VanConfig
from van.courier import ZmqVan
from van.errors import ProtocolVersionError
from van.faults import FaultPlan, Faults
from van.loopback import DeadlockError, LoopbackNetwork
from van.message import Control, Message, Meta, answer_to

APP = 7
Program = Callable[[Postoffice], None]


def echo_server(office: Postoffice) -> None:
    """Answers each request with its own arrays."""

    def answer(message: Message) -> None:
        office.send(Message(answer_to(message.meta), message.arrays))

    Customer(APP, 0, office, answer)


def run_cluster(
    seed: int, servers: int, workers: list[Program], plan: FaultPlan | None = None
) -> LoopbackNetwork:
    """A cluster on a loopback network, run to its end."""
    network = LoopbackNetwork(seed, plan=plan)
    shape = ClusterShape(servers=servers, workers=len(workers), scheduler="scheduler")

    def work(office: Postoffice, number: int) -> None:
        workers[number](office)

    run_nodes(network, shape, echo_server, work, are_ranked=False)
    return network


def ask_all(office: Postoffice, customer: Customer) -> int:
    """One request to every server; returns how many answered."""
    servers = office.members(Role.SERVER)
    timestamp = customer.new_request(servers, finish=len)
    for server in servers:
        meta = Meta(recipient=server, app=APP, customer=0, timestamp=timestamp)
        office.send(Message(meta))
    return customer.wait(timestamp)


@pytest.mark.parametrize("seed", range(20))
def test_a_cluster_starts_works_and_ends_in_any_order_of_events(seed: int) -> None:
    answered: list[int] = []
    met: list[int] = []

    def program(office: Postoffice) -> None:
        customer = Customer(APP, 0, office)
        office.start()
        answered.append(ask_all(office, customer))
        office.barrier(Group.WORKERS)
        met.append(len(answered))
        office.finalize()

    run_cluster(seed, servers=3, workers=[program] * 4)

    assert answered == [3] * 4
    assert met == [4] * 4


def test_the_same_seed_gives_the_same_events() -> None:
    def program(office: Postoffice) -> None:
        office.start()
        office.barrier()
        office.finalize()

    first, second, other = (run_cluster(s, 2, [program] * 3).log for s in (5, 5, 6))

    assert first == second
    assert first != other


@pytest.mark.parametrize("seed", range(5))
def test_a_finished_worker_holds_nobody_up(seed: int) -> None:
    passed: list[int] = []

    def short(office: Postoffice) -> None:
        office.start()
        office.finalize()

    def long(office: Postoffice) -> None:
        office.start()
        for _ in range(3):
            office.barrier()
        passed.append(office.rank)
        office.finalize()

    run_cluster(seed, servers=1, workers=[short, long, long])

    assert len(passed) == 2


def test_a_failing_worker_ends_the_cluster_with_its_reason() -> None:
    seen: list[str] = []

    def failing(office: Postoffice) -> None:
        office.start()
        office.finalize(failure="ValueError: no data")

    def waiting(office: Postoffice) -> None:
        office.start()
        with pytest.raises(ClusterStoppedError, match="no data") as caught:
            office.barrier()
        seen.append(str(caught.value))
        office.finalize()

    with pytest.raises(ClusterStoppedError, match=r"worker . failed: ValueError: no data"):
        run_cluster(3, servers=1, workers=[failing, waiting])

    assert len(seen) <= 1


def test_goodbyes_that_nobody_said_or_asked_for_keep_no_node_from_its_own() -> None:
    """Both say that they come from the scheduler, of a later life."""

    def forge(office: Postoffice) -> None:
        office.start()
        for control, node in ((Control.GOODBYE_DONE, 8), (Control.GOODBYE, SCHEDULER_ID)):
            office.van.connect(node, office.nodes[node].address)
            forged = Meta(sender=SCHEDULER_ID, recipient=node, incarnation=2**64 - 1)
            forged.control = control
            office.van.send(Message(forged))
        for _ in range(5):  # the forged ones arrive meanwhile
            office.barrier(Group.WORKERS)
        office.finalize()

    network = run_cluster(0, 1, [forge])

    assert network.now < 5.0  # nobody was taken for dead, after 10 s, to come to an end


@pytest.mark.parametrize("seed", range(10))
def test_the_scheduler_stays_until_the_last_one_knows_that_it_may_go(seed: int) -> None:
    """Half of the answers to goodbyes are lost, and of what says that they have come."""
    plan = FaultPlan(
        seed,
        everywhere=Faults(drop=0.5),
        hits=lambda meta: meta.control in (Control.GOODBYE_DONE, Control.GOODBYE_SEEN),
    )

    def program(office: Postoffice) -> None:
        office.start()
        office.finalize()

    network = run_cluster(seed, 2, [program] * 3, plan)

    assert plan.counts["dropped"] > 0
    assert network.now < 9.0  # before somebody gives up waiting, after 10 s


def test_missing_nodes_are_named_when_the_time_to_start_is_up() -> None:
    network = LoopbackNetwork(0)
    shape = ClusterShape(servers=2, workers=1, scheduler="scheduler", start_timeout=20)

    def scheduler() -> None:
        SchedulerOffice(network.van(), shape, incarnation=1).start()

    network.spawn("scheduler", scheduler)
    with pytest.raises(ClusterStartError, match="2 servers, 1 worker"):
        network.run_all()


def test_one_node_too_many_is_refused_with_the_reason() -> None:
    network = LoopbackNetwork(1)
    shape = ClusterShape(servers=0, workers=1, scheduler="scheduler")
    refused: list[str] = []

    def scheduler() -> None:
        office = SchedulerOffice(network.van(), shape, incarnation=1)
        office.start()
        office.serve()

    def worker(rank: int) -> None:
        office = Postoffice(Role.WORKER, network.van(), shape, bind=f"worker{rank}", nonce=rank)
        try:
            office.start()
            network.wait(lambda: bool(refused), None)
            office.finalize()
        except RegistrationError as error:
            refused.append(str(error))

    network.spawn("scheduler", scheduler)
    network.spawn("worker a", lambda: worker(2))
    network.spawn("worker b", lambda: worker(3))
    network.run_all()

    assert len(refused) == 1
    assert "too late" in refused[0]


def test_a_deadlock_is_reported_with_the_last_events() -> None:
    network = LoopbackNetwork(0)
    network.spawn("stuck", lambda: network.van().wait(lambda: False) and None)

    with pytest.raises(DeadlockError, match="stuck"):
        network.run_all()


@pytest.mark.parametrize("transport", ["inproc", "tcp"])
def test_a_cluster_over_real_sockets_in_one_process(transport: str) -> None:
    context = zmq.Context()
    scheduler_at = "inproc://scheduler" if transport == "inproc" else "tcp://127.0.0.1:0"
    shape = ClusterShape(servers=2, workers=3, scheduler=scheduler_at)
    head = SchedulerOffice(ZmqVan(context=context, background=False), shape)
    shape = ClusterShape(servers=2, workers=3, scheduler=head.listen())
    failures: list[BaseException] = []
    answered: list[int] = []

    def bind(name: str) -> str:
        return f"inproc://{name}" if transport == "inproc" else "tcp://127.0.0.1:0"

    def run_head() -> None:
        head.start()
        head.serve()
        head.finalize()

    def run_server(rank: int) -> None:
        van = ZmqVan(context=context, background=False)
        office = Postoffice(Role.SERVER, van, shape, bind=bind(f"s{rank}"), rank=rank)
        echo_server(office)
        office.start()
        office.serve()
        office.finalize()

    def run_worker(rank: int) -> None:
        van = ZmqVan(context=context)
        office = Postoffice(Role.WORKER, van, shape, bind=bind(f"w{rank}"), rank=rank)
        customer = Customer(APP, 0, office)
        office.start()
        answered.extend(ask_all(office, customer) for _ in range(20))
        office.barrier()
        assert office.rank == rank
        office.finalize()

    def guarded(run: Callable[[], None]) -> Callable[[], None]:
        def act() -> None:
            try:
                run()
            except BaseException as error:
                failures.append(error)

        return act

    runs = [run_head, *(lambda r=r: run_server(r) for r in range(2))]
    runs += [lambda r=r: run_worker(r) for r in range(3)]
    threads = [threading.Thread(target=guarded(run), daemon=True) for run in runs]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(timeout=60)

    assert not failures
    assert not any(thread.is_alive() for thread in threads)
    assert answered == [2] * 60
    context.term()


def test_a_node_of_another_version_is_told_so_by_name() -> None:
    context = zmq.Context()
    shape = ClusterShape(servers=0, workers=1, scheduler="inproc://scheduler", start_timeout=2)
    head = SchedulerOffice(ZmqVan(context=context, background=False), shape)
    head.listen()
    ear, mouth = context.socket(zmq.ROUTER), context.socket(zmq.DEALER)
    ear.bind("inproc://elder")
    mouth.connect("inproc://scheduler")
    for _ in range(3):
        mouth.send(msgpack.packb([99, 0, "inproc://elder"]))

    with pytest.raises(ClusterStartError):
        head.start()
    head.finalize()

    _, header = ear.recv_multipart(zmq.NOBLOCK)
    reply = decode_header(header, VanConfig())[0]
    assert reply.sender == 1
    assert "version 99, this node 1" in reply.body["reason"]
    assert not ear.poll(0)
    for socket in (ear, mouth):
        socket.close(0)
    context.term()


def test_a_scheduler_of_another_version_is_an_error_at_once() -> None:
    context = zmq.Context()
    scheduler = context.socket(zmq.ROUTER)
    scheduler.bind("inproc://scheduler")
    shape = ClusterShape(servers=0, workers=1, scheduler="inproc://scheduler")
    office = Postoffice(
        Role.WORKER, ZmqVan(context=context), shape, bind="inproc://worker", nonce=5
    )
    mouth = context.socket(zmq.DEALER)
    mouth.connect("inproc://worker")
    mouth.send(msgpack.packb([99, 1, ""]))

    with pytest.raises(ProtocolVersionError, match="node 1 speaks protocol version 99"):
        office.start()

    office.finalize()
    for socket in (scheduler, mouth):
        socket.close(0)
    context.term()
