"""Live nodes under malformed messages of every kind: they go on serving."""

from __future__ import annotations

import contextlib
import random
import socket
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

import pslite
from postoffice.node import Group, Node
from postoffice.observer import Observer
from tests.security import mutator
from tests.security.cluster import LIMIT, Threads, curve
from van.addresses import place_of
from van.courier import ZmqVan
from van.curve import Curve
from van.local_lane import name_of

KEYS = np.arange(50)
_PER_LANE = 40  # packets tried on one connection, unless it ends before


def send_messages(node: Node, seed: int, count: int, mine: Curve | None) -> None:
    """Malformed messages by ZeroMQ, all of which the node has taken when this returns."""
    context: zmq.Context[Any] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.SNDTIMEO, int(1000 * LIMIT))
    if mine is not None:
        mine.dial(dealer, node.address)
    dealer.connect(node.place)
    for frames in mutator.messages(seed, count):
        dealer.send_multipart(frames)
    dealer.close(int(1000 * LIMIT))
    context.term()


def send_packets(node: Node, seed: int, count: int) -> None:
    """Malformed packets on connections of the local lane."""
    rng, name = random.Random(seed), name_of(node.place)
    assert name is not None
    left = count
    while left > 0:
        with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as lane:
            lane.settimeout(LIMIT)
            lane.connect(name)
            with contextlib.suppress(ConnectionError):  # cut off, as it should be
                for _ in range(_PER_LANE):
                    left -= 1
                    lane.send(mutator.lane_packet(rng))


def send_streams(node: Node, seed: int, count: int) -> None:
    """Connections by tcp that speak no ZeroMQ, or not to the end."""
    rng = random.Random(seed)
    host, port = node.place.removeprefix("tcp://").split(":")
    for _ in range(count):
        with (
            contextlib.suppress(ConnectionError),
            socket.create_connection((host, int(port)), timeout=LIMIT) as foreign,
        ):
            foreign.sendall(mutator.stream(rng))


def attack(cluster: Threads, count: int, seed: int, mine: Curve | None) -> None:
    """`count` malformed messages to the server and the scheduler, by all ways at once."""
    share = count // 20
    acts: list[tuple[Callable[..., None], tuple[Any, ...]]] = []
    for number, node in enumerate((cluster.server, cluster.scheduler.nodes[1])):
        acts.append((send_messages, (node, seed + number, 8 * share, mine)))
        acts.append((send_streams, (node, seed + 20 + number, min(100, share))))
        if mine is None:
            acts.append((send_packets, (node, seed + 10 + number, 2 * share)))
    errors: list[BaseException] = []

    def guarded(act: Callable[..., None], arguments: tuple[Any, ...]) -> None:
        try:
            act(*arguments)
        except BaseException as error:
            errors.append(error)

    threads = [threading.Thread(target=guarded, args=pair) for pair in acts]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert not errors, errors


def check_serving(cluster: Threads, keys: Path | None, rounds: int) -> None:
    """Tables, barriers and questions from outside work, and no value has changed."""
    tables = [
        worker.sparse_table("t", 1, optimizer=pslite.SGD(lr=1), initializer=pslite.Zeros())
        for worker in cluster.workers
    ]
    for worker, table in zip(cluster.workers, tables, strict=True):
        worker.wait(table.push(KEYS, np.ones((50, 1))))
    for table in tables:
        assert (table.pull(KEYS) == -rounds * len(tables)).all()
    others = [
        threading.Thread(target=worker.office.barrier, args=(Group.WORKERS, f"b{rounds}", LIMIT))
        for worker in cluster.workers
    ]
    for thread in others:
        thread.start()
    for thread in others:
        thread.join(LIMIT)
        assert not thread.is_alive()
    van = ZmqVan(background=False, curve=curve(keys, "observer"))
    scheduler = place_of(cluster.scheduler.van.address)
    with Observer(van, scheduler, timeout=LIMIT) as observer:
        assert observer.cluster()["phase"] == "running"
        assert len(observer.nodes()) == 4
    cluster.check()


def check_noticed(cluster: Threads, at_least: int) -> None:
    """What was sent was seen, and dropped under a bounded number of names."""
    seen = 0
    for office in (cluster.server_office, cluster.scheduler):
        seen += office.van.counts["received"] + office.van.counts["malformed"]
        seen += office.van.counts["other_version"]
        assert len(office.counts) <= 101
        assert len(office.van.counts) < 20
    assert seen >= at_least


LONG = [pytest.mark.soak, pytest.mark.timeout(3000)]
PARTS = [pytest.param(250_000, seed, marks=LONG) for seed in (1000, 2000, 3000, 4000)]  # a million


@pytest.mark.parametrize(("count", "seed"), [(20_000, 100), *PARTS])
def test_nodes_serve_under_malformed_messages(
    start_cluster: Callable[..., Threads], count: int, seed: int
) -> None:
    cluster = start_cluster(None)
    check_serving(cluster, None, 1)

    attack(cluster, count, seed, None)

    check_serving(cluster, None, 2)
    check_noticed(cluster, int(0.7 * count))


@pytest.mark.parametrize("count", [4_000, pytest.param(200_000, marks=LONG)])
def test_nodes_serve_under_malformed_messages_of_a_member_with_a_key(
    start_cluster: Callable[..., Threads], keys: Path, count: int
) -> None:
    cluster = start_cluster(keys)
    check_serving(cluster, keys, 1)

    attack(cluster, count, 200, curve(keys, "worker", 2))

    check_serving(cluster, keys, 2)
    check_noticed(cluster, int(0.6 * count))
    assert cluster.server_office.counts["false key"] > 0
