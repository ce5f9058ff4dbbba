"""Who sends faster than the other side reads waits, and nobody waits for ever."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np
import pytest

from postoffice.customer import Customer
from postoffice.errors import ClusterStoppedError
from postoffice.head import SchedulerOffice
from postoffice.node import Role
from postoffice.postoffice import ClusterShape, Postoffice
from van.config import VanConfig
from van.courier import ZmqVan
from van.errors import PsliteError
from van.message import Flag, Message, Meta, answer_to

APP = 7
LIMIT = 30.0
MESSAGES = 300


class Cluster:
    """Scheduler and server as threads, the worker in this one; the server reads when told to."""

    def __init__(self, transport: str) -> None:
        self.config = VanConfig(
            transport=transport,
            backlog=20,
            backlog_bytes=1 << 20,
            chunk=65536,
            shared_memory=1 << 20,
            linger=0.1,
        )
        self.may_read = threading.Event()
        self.failure: str | None = None
        self.answer_size = 0
        shape = ClusterShape(servers=1, workers=1, scheduler="tcp://127.0.0.1:0")
        self.head = SchedulerOffice(ZmqVan(self.config, background=False), shape)
        shape = ClusterShape(servers=1, workers=1, scheduler=self.head.listen())
        self.server = Postoffice(Role.SERVER, ZmqVan(self.config, background=False), shape)
        Customer(APP, 0, self.server, self.answer)
        self.worker = Postoffice(Role.WORKER, ZmqVan(self.config, background=False), shape)
        self.customer = Customer(APP, 0, self.worker)
        self.threads = [threading.Thread(target=run) for run in (self.run_head, self.run_server)]
        for thread in self.threads:
            thread.start()
        self.worker.start()

    def answer(self, message: Message) -> None:
        arrays = [np.zeros(self.answer_size, np.uint8)] if self.answer_size else []
        self.server.send(Message(answer_to(message.meta), arrays))

    def run_head(self) -> None:
        try:
            self.head.start()
            self.head.serve()
        except ClusterStoppedError:
            pass
        finally:
            self.head.finalize()

    def run_server(self) -> None:
        try:
            self.server.start()
            self.may_read.wait(LIMIT)
            if self.failure is None:
                self.server.serve()
        except ClusterStoppedError:
            pass
        finally:
            self.server.finalize(self.failure)

    def ask(self, nbytes: int) -> int:
        timestamp = self.customer.new_request([8])
        meta = Meta(recipient=8, flags=Flag.PUSH, app=APP, timestamp=timestamp)
        with self.customer.sending(timestamp):
            self.worker.send(Message(meta, [np.zeros(nbytes, np.uint8)]))
        return timestamp

    def ask_often(self, nbytes: int) -> list[int]:
        return [self.ask(nbytes) for _ in range(MESSAGES)]

    def close(self) -> None:
        self.may_read.set()
        self.worker.finalize()
        for thread in self.threads:
            thread.join(LIMIT)
            assert not thread.is_alive()


@pytest.fixture(params=["tcp", "auto"])
def cluster(request: pytest.FixtureRequest) -> Iterator[Cluster]:
    cluster = Cluster(request.param)
    yield cluster
    cluster.close()


def watch(cluster: Cluster) -> threading.Thread:
    """Let the server go on when the worker's way to it is full."""
    stuck = threading.Event()
    has_room = cluster.worker.van.has_room

    def watched(node: int) -> bool:
        room = has_room(node)
        if not room:
            stuck.set()
        return room

    cluster.worker.van.has_room = watched
    thread = threading.Thread(target=lambda: stuck.wait(LIMIT) and cluster.may_read.set())
    thread.start()
    return thread


def test_a_worker_waits_until_its_server_reads_and_all_is_answered(cluster: Cluster) -> None:
    watcher = watch(cluster)
    most = 0
    for _ in range(MESSAGES):
        cluster.ask(200_000)
        most = max(most, cluster.worker.van._ends.pending)

    cluster.customer.wait_all(LIMIT)
    watcher.join()

    assert cluster.may_read.is_set()
    assert most <= 21


def test_a_worker_that_waits_for_room_hears_of_the_end_of_the_cluster(cluster: Cluster) -> None:
    cluster.failure = "out of order"
    watcher = watch(cluster)

    with pytest.raises(ClusterStoppedError, match="out of order"):
        cluster.ask_often(200_000)
    watcher.join()


def test_answers_that_a_worker_does_not_read_become_errors(cluster: Cluster) -> None:
    cluster.may_read.set()
    cluster.answer_size = 400_000
    # The server sees them while the worker reads nothing.
    requests = cluster.ask_often(10)
    outcomes = [outcome(cluster, request) for request in requests]

    assert outcomes[0] == "answered"
    assert all(text == "answered" or "too much waits" in text for text in outcomes)


def outcome(cluster: Cluster, request: int) -> str:
    try:
        cluster.customer.wait(request, LIMIT)
    except PsliteError as error:
        return str(error)
    return "answered"
