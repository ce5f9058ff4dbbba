"""Vans over real sockets in one process."""

from __future__ import annotations

import socket
import sys
import threading
from collections.abc import Callable, Iterator

import msgpack
import numpy as np
import pytest
import zmq

from van.codec import encode
from van.config import VanConfig
from van.courier import ZmqVan, new_context
from van.errors import AddressError, ProtocolVersionError
from van.message import Message, Meta

LIMIT = 30.0  # seconds that no test should come near


@pytest.fixture
def make_van() -> Iterator[Callable[..., ZmqVan]]:
    vans: list[ZmqVan] = []

    def make(**settings: object) -> ZmqVan:
        van = ZmqVan(**settings)
        vans.append(van)
        return van

    yield make
    for van in vans:
        van.close()
    assert not [t for t in threading.enumerate() if t.name == "pslite-van"]


def collector(van: ZmqVan) -> list[Message]:
    got: list[Message] = []
    van.receiver = got.append
    return got


def text(number: int) -> Message:
    return Message(Meta(recipient=8, timestamp=number))


@pytest.mark.parametrize("nbytes", [0, 1, 100, 65535, 65536, 10_000_000])
def test_arrays_of_any_size_arrive_whole(make_van: Callable[..., ZmqVan], nbytes: int) -> None:
    sender, receiver = make_van(), make_van(background=False)
    got = collector(receiver)
    sender.bind("tcp://127.0.0.1:0")
    sender.connect(8, receiver.bind("tcp://127.0.0.1:0"))
    array = np.random.default_rng(0).integers(0, 256, nbytes).astype(np.uint8)
    keys = np.arange(5, dtype=np.uint64)

    sender.send(Message(Meta(recipient=8), [keys, array, array.reshape(1, -1)]))

    assert receiver.wait(lambda: bool(got), LIMIT)
    np.testing.assert_array_equal(got[0].arrays[0], keys)
    np.testing.assert_array_equal(got[0].arrays[1], array)
    assert got[0].arrays[2].shape == (1, nbytes)


def test_the_last_messages_before_a_close_are_not_lost(make_van: Callable[..., ZmqVan]) -> None:
    receiver = make_van(background=False)
    got = collector(receiver)
    address = receiver.bind("tcp://127.0.0.1:0")
    for _ in range(5):
        sender = ZmqVan()
        sender.bind("tcp://127.0.0.1:0")
        sender.connect(8, address)
        sender.send(Message(Meta(recipient=8), [np.zeros(200_000)]))
        sender.close()

    assert receiver.wait(lambda: len(got) == 5, LIMIT)


def test_many_threads_send_and_wait_through_one_van(make_van: Callable[..., ZmqVan]) -> None:
    client, server = make_van(), make_van(background=False)
    answers: set[int] = set()
    client.receiver = lambda message: answers.add(message.meta.timestamp)
    server.receiver = lambda m: server.send(
        Message(Meta(recipient=9, timestamp=m.meta.timestamp), m.arrays)
    )
    server.bind("tcp://127.0.0.1:0")
    client.bind("tcp://127.0.0.1:0")
    client.connect(8, server.address)
    server.connect(9, client.address)
    stop = threading.Event()
    loop = threading.Thread(target=lambda: server.wait(stop.is_set, LIMIT))
    loop.start()
    failed: list[int] = []

    def ask(first: int) -> None:
        for number in range(first, first + 200):
            client.send(text(number))
            if not client.wait(lambda number=number: number in answers, LIMIT):
                failed.append(number)
                return

    threads = [threading.Thread(target=ask, args=(1000 * n,)) for n in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    stop.set()
    loop.join()

    assert not failed
    assert len(answers) == 800


def test_messages_are_seen_while_nobody_waits(make_van: Callable[..., ZmqVan]) -> None:
    sender, receiver = make_van(), make_van()
    seen = threading.Event()
    receiver.receiver = lambda message: seen.set()
    sender.bind("tcp://127.0.0.1:0")
    sender.connect(8, receiver.bind("tcp://127.0.0.1:0"))

    sender.send(text(1))

    assert seen.wait(LIMIT)


def test_a_wait_that_is_not_done_in_time_says_so(make_van: Callable[..., ZmqVan]) -> None:
    van = make_van(background=False)
    van.bind("tcp://127.0.0.1:0")

    assert van.wait(lambda: False, timeout=0.02) is False


def test_a_handler_may_itself_wait(make_van: Callable[..., ZmqVan]) -> None:
    van, peer = make_van(background=False), make_van()
    seen: list[int] = []
    waited: list[bool] = []

    def handle(message: Message) -> None:
        seen.append(message.meta.timestamp)
        if message.meta.timestamp == 1:
            waited.append(van.wait(lambda: 2 in seen, LIMIT))

    van.receiver = handle
    peer.bind("tcp://127.0.0.1:0")
    peer.connect(8, van.bind("tcp://127.0.0.1:0"))
    peer.send(text(1))
    peer.send(text(2))

    assert van.wait(lambda: bool(waited), LIMIT)
    assert waited == [True]


def raw_dealer(context: zmq.Context, address: str) -> zmq.Socket:
    dealer = context.socket(zmq.DEALER)
    dealer.setsockopt(zmq.LINGER, 1000)
    dealer.connect(address)
    return dealer


def test_what_is_not_ours_is_counted_logged_once_and_dropped(
    make_van: Callable[..., ZmqVan], caplog: pytest.LogCaptureFixture
) -> None:
    config = VanConfig(max_frame=1000)
    van = make_van(config=config, background=False)
    got = collector(van)
    address = van.bind("tcp://127.0.0.1:0")
    good = encode(Message(Meta(recipient=8, timestamp=7), [np.arange(3)]), config)
    context = zmq.Context()
    dealer = raw_dealer(context, address)
    bad = [
        [b""],
        [b"hello", b"world"],
        good[:1],
        [*good, b"one more"],
        [good[0], b"short"],
        [b"\x00" * 1500],
        [b"\xc1\0\0\0\xff\xff\xff\xff"],
        [good[0]] + [b"y"] * 300,
    ]
    for message in bad:
        dealer.send_multipart(message)
    dealer.send_multipart(good)

    assert van.wait(lambda: bool(got), LIMIT)
    assert got[0].meta.timestamp == 7
    assert van.counts["malformed"] == len(bad)
    assert len([r for r in caplog.records if "dropped a message" in r.message]) == 1
    dealer.close()
    context.term()


def test_a_frame_beyond_all_limits_cuts_its_sender_off_and_nobody_else(
    make_van: Callable[..., ZmqVan],
) -> None:
    config = VanConfig(max_frame=1000)
    van = make_van(config=config, background=False)
    got = collector(van)
    address = van.bind("tcp://127.0.0.1:0")
    context = zmq.Context()
    rude, polite = raw_dealer(context, address), raw_dealer(context, address)

    rude.send_multipart([b"x", b"y" * 100_000])
    polite.send_multipart(encode(Message(Meta(recipient=8)), config))

    assert van.wait(lambda: bool(got), LIMIT)
    rude.close(0)
    polite.close()
    context.term()


def test_a_peer_that_speaks_http_stops_nobody(make_van: Callable[..., ZmqVan]) -> None:
    van = make_van(background=False)
    got = collector(van)
    address = van.bind("tcp://127.0.0.1:0")
    host, port = address.removeprefix("tcp://").split(":")
    with socket.create_connection((host, int(port)), timeout=LIMIT) as web:
        web.sendall(b"GET / HTTP/1.1\r\nHost: x\r\n\r\n" + b"\xff" * 200)
        foreign = van.wait(lambda: van.counts["foreign"] + van.counts["malformed"] > 0, LIMIT)
    peer = make_van()
    peer.bind("tcp://127.0.0.1:0")
    peer.connect(8, address)

    peer.send(text(1))

    assert foreign
    assert van.wait(lambda: bool(got), LIMIT)


def test_a_peer_of_another_version_is_reported_with_its_address(
    make_van: Callable[..., ZmqVan],
) -> None:
    van = make_van(background=False)
    van.bind("tcp://127.0.0.1:0")
    met: list[ProtocolVersionError] = []
    van.on_refused = met.append
    context = zmq.Context()
    dealer = raw_dealer(context, van.address)

    dealer.send(msgpack.packb([99, 5, "tcp://127.0.0.1:4"]))

    assert van.wait(lambda: bool(met), LIMIT)
    assert "node 5 speaks protocol version 99" in str(met[0])
    assert met[0].reply_to == "tcp://127.0.0.1:4"
    assert van.counts["other_version"] == 1
    dealer.close()
    context.term()


def test_waiting_for_a_peer_that_takes_nothing_is_no_busy_loop(
    make_van: Callable[..., ZmqVan],
) -> None:
    van = make_van(config=VanConfig(linger=0.0), background=False)
    van.bind("tcp://127.0.0.1:0")
    with socket.create_server(("127.0.0.1", 0)) as silent:
        van.connect(8, f"tcp://127.0.0.1:{silent.getsockname()[1]}")
        van.send(Message(Meta(recipient=8), [np.zeros(32 << 20, np.uint8)]))
        turns = []

        van.wait(lambda: turns.append(1) or False, timeout=0.2)

        assert van._ends.pending == 1
    assert len(turns) < 100


@pytest.mark.parametrize("address", ["tcp://no.such.host.invalid:1", "nonsense", "tcp://*:x"])
def test_an_address_that_cannot_be_bound_is_named(
    make_van: Callable[..., ZmqVan], address: str
) -> None:
    van = make_van()

    with pytest.raises(AddressError) as caught:
        van.bind(address)

    assert address in str(caught.value)


def test_a_taken_port_is_named(make_van: Callable[..., ZmqVan]) -> None:
    first, second = make_van(), make_van()
    address = first.bind("tcp://127.0.0.1:0")

    with pytest.raises(AddressError, match="in use; does another job run there") as caught:
        second.bind(address)

    assert str(caught.value).count(address) == 1


def test_vans_of_one_process_reach_each_other_by_inproc(make_van: Callable[..., ZmqVan]) -> None:
    context = new_context()
    sender, receiver = make_van(context=context), make_van(context=context, background=False)
    got = collector(receiver)
    sender.bind("inproc://a")
    sender.connect(8, receiver.bind("inproc://b"))

    sender.send(Message(Meta(recipient=8), [np.ones(100_000)]))

    assert receiver.wait(lambda: bool(got), LIMIT)
    sender.close()
    receiver.close()
    context.term()


def test_a_message_to_nobody_is_counted(make_van: Callable[..., ZmqVan]) -> None:
    van = make_van(background=False)
    van.bind("tcp://127.0.0.1:0")

    van.send(text(1))

    assert van.counts["undeliverable"] == 1


@pytest.mark.parametrize(
    ("code", "leads"), [(ZmqVan.wait.__code__, True), (collector.__code__, False)]
)
def test_the_locals_of_another_threads_frames_are_not_read(
    make_van: Callable[..., ZmqVan], monkeypatch: pytest.MonkeyPatch, code: object, leads: bool
) -> None:
    class Frame:  # whose locals crash Python 3.11 when its thread goes on meanwhile
        f_code, f_back = code, None

        @property
        def f_locals(self) -> dict[str, object]:
            raise AssertionError("read")

    van, leader = make_van(background=False), -1
    monkeypatch.setattr(sys, "_current_frames", lambda: {leader: Frame()})
    van._leader = leader

    try:
        van._look_for_leader()
        found = van._leader
    finally:
        van._leader = None  # or closing waits for it

    assert (found == leader) == leads
