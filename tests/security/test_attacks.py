"""Attacks on a running cluster with keys, over real sockets: each gets nothing and is noticed."""

from __future__ import annotations

import logging
import socket
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zmq

import pslite
from kv.remote_worker import RemoteWorker
from postoffice.errors import RegistrationError
from postoffice.node import Role
from postoffice.observer import Observer
from postoffice.postoffice import Postoffice
from tests.security.cluster import LIMIT, Threads, curve
from van.addresses import key_of, place_of, with_key
from van.codec import encode
from van.config import VanConfig
from van.courier import ZmqVan
from van.curve import Curve
from van.errors import HandshakeError
from van.keys import read_public
from van.message import Control, Flag, Message, Meta

Start = Callable[..., Threads]
KEYS = np.arange(5, dtype=np.uint64)


def table_of(worker: RemoteWorker) -> Any:
    return worker.sparse_table(
        "t", 1, optimizer=pslite.SGD(lr=1), initializer=pslite.Zeros(), missing="init"
    )


@contextmanager
def van(mine: Curve | None) -> Iterator[ZmqVan]:
    made = ZmqVan(background=False, curve=mine)
    made.bind("tcp://127.0.0.1:0")
    yield made
    made.close(0)


def met_by(stranger: ZmqVan, address: str) -> HandshakeError:
    """What the van learns when it connects to `address`."""
    met: list[Any] = []
    stranger.on_refused = met.append
    stranger.connect(8, address)
    stranger.send(Message(Meta(recipient=8)))
    assert stranger.wait(lambda: bool(met), LIMIT)
    return met[0]


@contextmanager
def raw_dealer(
    mine: Curve | None, address: str, routing_id: bytes = b""
) -> Iterator[zmq.Socket[bytes]]:
    """A socket with a node's keys and none of its manners."""
    context: zmq.Context[Any] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    if mine is not None:
        mine.dial(dealer, address)
    if routing_id:
        dealer.setsockopt(zmq.ROUTING_ID, routing_id)
    dealer.connect(place_of(address))
    yield dealer
    dealer.close(1000)
    context.term()


def as_bytes(message: Message) -> list[bytes]:
    return [bytes(memoryview(frame)) for frame in encode(message, VanConfig())]


def push_as(worker: Postoffice, server: int, table: Any) -> Message:
    """A push in the name of `worker`, with all that others can know of it."""
    meta = Meta(
        sender=worker.node_id,
        recipient=server,
        incarnation=worker.incarnation,
        recipient_incarnation=worker.nodes[server].incarnation,
        flags=Flag.PUSH,
        timestamp=10**6,
        body={},
    )
    return Message(meta, [KEYS, np.full((5, 1), 100.0, np.float32)])


def test_a_cluster_with_keys_works_as_one_without(start_cluster: Start, keys: Path) -> None:
    cluster = start_cluster(keys)
    tables = [table_of(worker) for worker in cluster.workers]
    for worker, table in zip(cluster.workers, tables, strict=True):
        worker.wait(table.push(KEYS, np.ones((5, 1))))

    assert (tables[0].pull(KEYS) == -2).all()
    large = np.arange(300_000)  # in pieces
    cluster.workers[0].wait(tables[0].push(large + 10, np.ones((large.size, 1))))
    assert (tables[1].pull(large + 10) == -1).all()
    assert cluster.server_office.counts["false key"] == 0
    assert not cluster.workers[0].office.van.shares_memory(cluster.server.id)
    node_keys = {node.key for node in cluster.scheduler.nodes.values()}
    assert len(node_keys) == 4
    assert cluster.server.key == read_public(keys / "server-0.public")


def test_the_local_lane_is_used_where_it_is_trusted(start_cluster: Start, keys: Path) -> None:
    cluster = start_cluster(keys, workers=1, lane="trusted")
    table = table_of(cluster.workers[0])

    cluster.workers[0].wait(table.push(KEYS, np.ones((5, 1))))

    assert (table.pull(KEYS) == -1).all()
    assert cluster.workers[0].office.van.shares_memory(cluster.server.id)


@pytest.mark.parametrize("transport", ["local", "ipc"])
def test_a_way_that_knows_no_keys_is_refused_with_keys(keys: Path, transport: Any) -> None:
    with pytest.raises(pslite.ConfigError, match=r"\[van\] transport: .* checks users and no keys"):
        ZmqVan(VanConfig(transport=transport), curve=curve(keys, "worker"))


def test_a_peer_without_a_key_gets_nothing_and_learns_why(start_cluster: Start, keys: Path) -> None:
    cluster = start_cluster(keys, workers=1)
    table_of(cluster.workers[0]).pull(KEYS)  # all has come that must come
    before = cluster.server_office.van.counts["received"]

    with van(None) as stranger:
        error = met_by(stranger, cluster.server.place)

    assert "it speaks CURVE only" in str(error)
    assert cluster.server_office.van.counts["received"] == before


def test_a_peer_with_a_key_of_its_own_making_is_refused(
    start_cluster: Start, keys: Path, foreign_keys: Path, caplog: pytest.LogCaptureFixture
) -> None:
    cluster = start_cluster(keys, workers=1)
    foreign = curve(foreign_keys, "worker")
    assert foreign is not None

    for _ in range(3):
        with van(foreign) as stranger:
            error = met_by(stranger, cluster.server.address)
        assert error.is_final
        assert str(foreign_keys / "worker-0.secret") in str(error)

    assert cluster.server_office.van.counts["refused"] == 3
    refusals = [r for r in caplog.records if "refused 127.0.0.1" in r.message]
    assert len(refusals) == 1
    assert foreign.pair.public[:8] in refusals[0].message


def test_a_node_of_another_cluster_ends_with_an_error_that_names_the_file(
    start_cluster: Start, keys: Path, foreign_keys: Path
) -> None:
    cluster = start_cluster(keys, workers=1)
    office = Postoffice(
        Role.WORKER, ZmqVan(curve=curve(foreign_keys, "worker")), cluster.shape, rank=0
    )

    with pytest.raises(HandshakeError, match=r"does not hold the secret key.*scheduler\.public"):
        office.start()
    office.finalize()


def test_a_node_whose_key_is_not_allowed_ends_with_an_error_that_names_it(
    start_cluster: Start, keys: Path, foreign_keys: Path
) -> None:
    cluster = start_cluster(keys, workers=1)
    foreign = curve(foreign_keys, "worker")
    assert foreign is not None
    mixed = replace(foreign, scheduler_key=read_public(keys / "scheduler.public"))
    office = Postoffice(Role.WORKER, ZmqVan(curve=mixed), cluster.shape, rank=0)

    with pytest.raises(HandshakeError, match=r"does not let in the key .*worker-0\.secret"):
        office.start()
    office.finalize()


def test_a_node_without_keys_is_told_so_and_one_with_keys_meets_none_without(
    start_cluster: Start, keys: Path
) -> None:
    for theirs, ours, words in (
        (keys, None, "speaks CURVE only"),
        (None, keys, "speaks without CURVE"),
    ):
        cluster = start_cluster(theirs, workers=1)
        tcp = VanConfig(transport="tcp")
        office = Postoffice(
            Role.WORKER, ZmqVan(tcp, curve=curve(ours, "worker")), cluster.shape, rank=0
        )
        with pytest.raises(HandshakeError, match=words):
            office.start()
        office.finalize()


@pytest.mark.parametrize("role", [Role.SERVER, Role.DISPATCHER])
def test_the_key_of_a_worker_cannot_register_as_anything_else(
    start_cluster: Start, keys: Path, role: Role
) -> None:
    cluster = start_cluster(keys, workers=1)
    office = Postoffice(role, ZmqVan(curve=curve(keys, "worker", 2)), cluster.shape)

    with pytest.raises(RegistrationError, match=rf"\(worker\) registers as {role.value}"):
        office.start()
    office.finalize()
    assert cluster.scheduler.counts["false key"] == 1


def test_one_worker_cannot_speak_as_another_even_with_its_routing_id(
    start_cluster: Start, keys: Path
) -> None:
    cluster = start_cluster(keys)
    seen: dict[str, bytes] = {}
    sockets = cluster.server_office.van._ends._zmq
    receive = sockets._receive_known

    def spy(routing_id: zmq.Frame) -> Message | None:
        seen[str(routing_id.get("User-Id"))] = routing_id.bytes
        return receive(routing_id)

    sockets._receive_known = spy
    victim, thief = cluster.workers
    table = table_of(victim)
    table_of(thief)
    victim.wait(table.push(KEYS, np.ones((5, 1))))
    own_key = key_of(victim.office.van.address)
    message = push_as(victim.office, cluster.server.id, table)
    mine = curve(keys, "worker", 1)
    assert mine is not None

    office = cluster.server_office
    with raw_dealer(mine, cluster.server.address, seen[own_key]) as dealer:
        dealer.send_multipart(as_bytes(message))  # of two under one name ZeroMQ hears the first
    for name in (b"", b"as worker 0"):
        before = office.counts["false key"]
        with raw_dealer(mine, cluster.server.address, name) as dealer:
            for _ in range(5):
                dealer.send_multipart(as_bytes(message))
            wanted = before + 5
            assert victim.office.van.wait(lambda w=wanted: office.counts["false key"] >= w, LIMIT)

    victim.wait(table.push(KEYS, np.ones((5, 1))))
    assert (table.pull(KEYS) == -2).all()


def test_a_worker_cannot_end_others_or_the_cluster(start_cluster: Start, keys: Path) -> None:
    cluster = start_cluster(keys)
    victim, thief = cluster.workers
    table = table_of(victim)
    mine = curve(keys, "worker", 1)
    assert mine is not None
    me, nodes = victim.office, victim.office.nodes
    forged = [(1, 9, Control.GOODBYE, {"failure": "gone"}), (1, 9, Control.BARRIER, {"group": 4})]
    forged += [(8, 1, Control.STOP, {"failure": "end"}), (8, 1, Control.NODES, {})]
    for recipient, sender, control, body in forged:
        node = nodes[recipient]
        meta = Meta(
            sender=sender,
            recipient=recipient,
            incarnation=nodes[sender].incarnation,
            recipient_incarnation=node.incarnation,
            control=control,
            body=body,
        )
        office = cluster.scheduler if recipient == 1 else cluster.server_office
        before = office.counts["false key"]
        with raw_dealer(mine, node.address) as dealer:
            dealer.send_multipart(as_bytes(Message(meta)))
            assert me.van.wait(lambda o=office, b=before: o.counts["false key"] > b, LIMIT)

    victim.wait(table.push(KEYS, np.ones((5, 1))))
    assert (table.pull(KEYS) == -1).all()
    assert not thief.office.is_stopped


def test_goodbyes_in_the_scheduler_s_name_leave_a_cluster_without_keys_as_it_is(
    start_cluster: Start,
) -> None:
    cluster = start_cluster(None)
    me, scheduler = cluster.workers[0].office, cluster.scheduler.nodes[1]
    for node, control in ((cluster.server, Control.GOODBYE_DONE), (scheduler, Control.GOODBYE)):
        office = cluster.scheduler if node is scheduler else cluster.server_office
        seen: list[int] = []
        receive = office.van.receiver

        def spy(message: Message, seen: list[int] = seen, receive: Any = receive) -> None:
            receive(message)
            seen.append(message.meta.incarnation)

        office.van.receiver = spy
        meta = Meta(sender=1, recipient=node.id, incarnation=2**64 - 1, control=control)
        meta.body = {"failure": None}
        with raw_dealer(None, node.address) as dealer:
            dealer.send_multipart(as_bytes(Message(meta)))
            assert me.van.wait(lambda seen=seen: 2**64 - 1 in seen, LIMIT)

    assert cluster.scheduler.view.gone == frozenset()
    assert (table_of(cluster.workers[0]).pull(KEYS) == 0).all()  # and it ends as any, afterwards


def test_an_observer_looks_with_its_own_key_and_cannot_join(
    start_cluster: Start, keys: Path
) -> None:
    cluster = start_cluster(keys, workers=1)
    address = cluster.shape.scheduler

    with Observer(ZmqVan(background=False, curve=curve(keys, "observer")), address) as observer:
        nodes = observer.nodes()
        reports = observer.ask(cluster.server, "tables")
    with (
        Observer(ZmqVan(background=False), address) as blind,
        pytest.raises(HandshakeError, match="speaks CURVE only"),
    ):
        blind.nodes()
    office = Postoffice(Role.WORKER, ZmqVan(curve=curve(keys, "observer")), cluster.shape)
    with pytest.raises(RegistrationError, match=r"\(observer\) registers as worker"):
        office.start()
    office.finalize()

    assert [node.id for node in nodes] == [1, 8, 9]
    assert list(reports) == []


def test_nobody_is_answered_at_an_address_of_another_kind(start_cluster: Start) -> None:
    """Such a socket waits for ever for somebody to bind the name, and cannot be closed."""
    cluster = start_cluster(None, workers=1, config=VanConfig(transport="tcp"))
    body = {"topic": "cluster", "number": 1}
    context: zmq.Context[Any] = zmq.Context()
    dealer = context.socket(zmq.DEALER)
    dealer.connect(cluster.shape.scheduler)
    for number, kind in enumerate(("inproc", "udp", "ws", "pgm", "ipc") * 10):  # 64 are answered
        meta = Meta(control=Control.QUERY, reply_to=f"{kind}://x{number}", recipient=1, body=body)
        dealer.send_multipart(as_bytes(Message(meta)))
    dealer.close(1000)
    context.term()

    counts, van = cluster.scheduler.counts, cluster.workers[0].office.van
    assert van.wait(lambda: counts["unanswerable"] >= 50, LIMIT)


class Tap:
    """Sits between two nodes, records what one says to the other, and can say it again."""

    def __init__(self, address: str) -> None:
        host, port = address.removeprefix("tcp://").split(":")
        self._target = (host, int(port))
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.address = f"tcp://127.0.0.1:{self._listener.getsockname()[1]}"
        self.said: list[list[bytes]] = []  # of each connection, as it came
        self._ways: list[socket.socket] = []
        threading.Thread(target=self._accept, daemon=True).start()

    def _accept(self) -> None:
        while True:
            try:
                client, _ = self._listener.accept()
            except OSError:
                return
            server = socket.create_connection(self._target)
            self._ways += [client, server]
            record: list[bytes] = []
            self.said.append(record)
            for source, sink, heard in ((client, server, record), (server, client, None)):
                threading.Thread(
                    target=self._pass_on, args=(source, sink, heard), daemon=True
                ).start()

    @staticmethod
    def _pass_on(source: socket.socket, sink: socket.socket, heard: list[bytes] | None) -> None:
        try:
            while data := source.recv(1 << 16):
                if heard is not None:
                    heard.append(data)
                sink.sendall(data)
            sink.shutdown(socket.SHUT_WR)
        except OSError:
            return

    def say_again(self) -> None:
        """All of the first connection on a new one, and its last words a second time on it."""
        with socket.create_connection(self._target) as fresh:
            fresh.settimeout(LIMIT)
            try:
                for data in self.said[0]:
                    fresh.sendall(data)
                while fresh.recv(1 << 16):
                    pass  # until the node hangs up
            except ConnectionError:
                pass

    def repeat_last(self) -> None:
        self._ways[1].sendall(self.said[0][-1])

    def close(self) -> None:
        self._listener.close()
        for way in self._ways:
            way.close()


def test_replayed_bytes_get_nothing(keys: Path) -> None:
    with van(curve(keys, "server")) as server, van(curve(keys, "worker")) as worker:
        got: list[Message] = []
        server.receiver = got.append
        tap = Tap(place_of(server.address))
        worker.connect(8, with_key(tap.address, key_of(server.address)))
        worker.send(Message(Meta(recipient=8, timestamp=1), [np.arange(100)]))
        assert server.wait(lambda: len(got) == 1, LIMIT)

        replay = threading.Thread(target=tap.say_again)
        replay.start()
        ended = server.wait(lambda: not replay.is_alive(), LIMIT)
        refusals = server.counts["refused"]
        tap.repeat_last()
        # libzmq takes nothing more from a connection that was tampered with, as if it were cut.
        refused = server.wait(lambda: server.counts["refused"] >= refusals + 1, LIMIT)
        with van(curve(keys, "worker", 1)) as other:
            other.connect(8, server.address)
            other.send(Message(Meta(recipient=8, timestamp=2)))
            assert server.wait(lambda: len(got) > 1, LIMIT)

        assert ended
        assert refused
        assert [message.meta.timestamp for message in got] == [1, 2]
        tap.close()


def test_half_open_connections_are_bounded_and_end_in_time(
    make_keyed: Callable[..., ZmqVan], keys: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.ERROR)
    config = VanConfig(half_open=8, handshake_timeout=1.0)
    server, worker = make_keyed("server", config), make_keyed("worker")
    got: list[Message] = []
    server.receiver = got.append
    host, port = place_of(server.address).removeprefix("tcp://").split(":")
    silent = [socket.create_connection((host, int(port)), timeout=LIMIT) for _ in range(40)]

    many = server.wait(lambda: server.counts["half_open"] >= 32, LIMIT)
    worker.connect(8, server.address)
    worker.send(Message(Meta(recipient=8)))
    served = server.wait(lambda: bool(got), LIMIT)  # those that were let in have timed out
    for connection in silent:
        while connection.recv(100):
            pass
        connection.close()

    assert many
    assert served
