"""The local lane between vans of one process, and against peers that break its rules."""

from __future__ import annotations

import fcntl
import gc
import os
import resource
import socket
import struct
from collections.abc import Callable, Iterator

import numpy as np
import pytest

from van import lane_packets as packets
from van.codec import encode
from van.config import VanConfig
from van.courier import ZmqVan
from van.errors import AddressError
from van.lane_connection import LaneConnection
from van.lane_packets import INLINE_PLACE, PacketKind, Tables, slab_place
from van.lane_receiver import ConnectionEndedError, LaneReceiver
from van.lane_sender import LaneSender
from van.local_lane import name_of
from van.message import Message, Meta
from van.shared_memory import make_slab
from van.slabs import Place

LIMIT = 30.0
ANY = "tcp://127.0.0.1:0"
MIB = 1 << 20


@pytest.fixture
def make_van() -> Iterator[Callable[..., ZmqVan]]:
    vans: list[ZmqVan] = []

    def make(peer_user=None, **settings: object) -> ZmqVan:
        more = {} if peer_user is None else {"peer_user": peer_user}
        van = ZmqVan(VanConfig(**{"transport": "auto", **settings}), background=False, **more)
        van.bind(ANY)
        vans.append(van)
        return van

    yield make
    for van in vans:
        van.close(0)


def pair(make_van: Callable[..., ZmqVan], **settings: object) -> tuple[ZmqVan, ZmqVan, list]:
    sender, receiver = make_van(**settings), make_van(**settings)
    got: list[Message] = []
    receiver.receiver = got.append
    sender.connect(8, receiver.address)
    return sender, receiver, got


def way(van: ZmqVan, node: int = 8) -> LaneConnection:
    connection = van._ends._peers[node]
    assert isinstance(connection, LaneConnection)
    return connection


def both_until(done: Callable[[], bool], *vans: ZmqVan) -> None:
    for _ in range(int(LIMIT / 0.005)):
        for van in vans:
            if van.wait(done, 0.005):
                return
    raise AssertionError("not done in time")


def large(number: int, nbytes: int = 200_000) -> Message:
    return Message(Meta(recipient=8, timestamp=number), [np.full(nbytes, number % 251, np.uint8)])


def test_large_arrays_are_read_where_the_sender_put_them(make_van) -> None:
    sender, receiver, got = pair(make_van)
    sender.send(large(7))
    both_until(lambda: len(got) == 1, receiver)
    array = got[0].arrays[0]

    assert way(sender).pool.taken == 1
    assert not array.flags.writeable
    assert (array == 7).all()


def test_memory_comes_back_when_the_last_view_of_it_is_gone(make_van) -> None:
    sender, receiver, got = pair(make_van)
    sender.send(large(7))
    both_until(lambda: len(got) == 1, receiver)
    part = got.pop().arrays[0][5:9]
    gc.collect()
    receiver.wait(lambda: False, 0.05)
    sender.wait(lambda: False, 0.05)
    held = way(sender).pool.taken

    del part
    both_until(lambda: way(sender).pool.taken == 0, receiver, sender)

    assert held == 1


def test_the_same_memory_is_used_again(make_van) -> None:
    sender, receiver, got = pair(make_van)
    for number in range(50):
        sender.send(large(number, MIB))
        both_until(lambda: len(got) == 1, receiver)
        got.clear()
        both_until(lambda: way(sender).pool.taken == 0, receiver, sender)

    assert way(sender).pool.size <= 4 * MIB


def test_a_receiver_that_keeps_everything_makes_the_sender_slow_but_never_stops_it(
    make_van,
) -> None:
    sender, receiver, got = pair(make_van, shared_memory=4 * MIB)
    for number in range(20):
        sender.send(large(number, MIB))

    both_until(lambda: len(got) == 20, sender, receiver)

    assert way(sender).pool.size <= 4 * MIB
    assert [m.meta.timestamp for m in got] == list(range(20))
    assert all((m.arrays[0] == n).all() for n, m in enumerate(got))


def test_what_the_socket_has_not_taken_whole_is_pending(make_van) -> None:
    sender, receiver, got = pair(make_van, shared_memory=0)
    sender.send(large(1, 8 * MIB))  # in parts, of which the socket takes a few
    before = sender._ends.pending

    both_until(lambda: len(got) == 1, sender, receiver)

    assert before == 1
    assert sender._ends.pending == 0


def test_arrays_outlive_the_connection_they_came_by(make_van) -> None:
    sender, receiver, got = pair(make_van)
    sender.send(large(7))
    both_until(lambda: len(got) == 1, receiver)

    sender.close(0)
    receiver.wait(lambda: False, 0.05)

    assert (got[0].arrays[0] == 7).all()


def test_an_array_made_for_a_peer_is_sent_without_a_copy(make_van) -> None:
    sender, receiver, got = pair(make_van)
    array = sender.empty(8, (1000, 100), np.float32)
    array[:] = 3
    assert sender.shares_memory(8)
    taken = way(sender).pool.taken

    sender.send(Message(Meta(recipient=8), [array]))
    sender.send(Message(Meta(recipient=8), [array]))
    both_until(lambda: len(got) == 2, receiver)

    assert taken == way(sender).pool.taken == 1
    assert got[0].arrays[0].shape == (1000, 100)
    assert (got[1].arrays[0] == 3).all()
    array[0, 0] = 4
    assert got[0].arrays[0][0, 0] == 4  # the very same memory
    del array
    got.clear()
    gc.collect()
    both_until(lambda: way(sender).pool.taken == 0, receiver, sender)


def test_an_array_for_a_peer_elsewhere_is_ordinary_memory(make_van) -> None:
    van = make_van(transport="tcp")

    assert van.empty(8, (3, 2), np.float32).shape == (3, 2)
    assert not van.shares_memory(8)


def test_an_answer_takes_the_connection_of_the_question(make_van) -> None:
    sender, receiver, got = pair(make_van)
    sender.send(large(1))
    both_until(lambda: len(got) == 1, receiver)

    receiver.connect(9, sender.address)

    assert len(receiver._ends._lane._connections) == 1
    assert way(receiver, 9) in receiver._ends._lane._connections.values()


def test_headers_and_many_arrays_of_all_sizes_arrive_whole(make_van) -> None:
    sender, receiver, got = pair(make_van, shared_memory=MIB)
    rng = np.random.default_rng(1)
    sizes = [0, 1, 7, 70_000, 16_000, 16_384, 300_000, 0, *[900] * 200, 2_000_000]
    arrays = [rng.integers(0, 255, size).astype(np.uint8) for size in sizes]

    arrays += [np.zeros((3, 0)), np.zeros((0, 3)), np.array(1.0)] * 30

    for body in ("x", "x" * 40_000, "x" * 500_000):
        sender.send(Message(Meta(recipient=8, body=body), arrays))
        both_until(lambda: bool(got), sender, receiver)
        message = got.pop()

        assert message.meta.body == body
        assert all(map(np.array_equal, message.arrays, arrays))
        assert all(array.flags.aligned for array in message.arrays)


def test_another_users_process_is_not_spoken_with(make_van, caplog) -> None:
    sender, receiver = make_van(), make_van(peer_user=lambda sock: os.geteuid() + 1)
    got: list[Message] = []
    receiver.receiver = got.append
    receiver.connect(9, sender.address)
    receiver_way = type(receiver._ends._peers[9]).__name__
    rude = connect_raw(receiver)

    both_until(lambda: receiver.counts["other_user"] == 1, receiver)

    assert receiver_way == "ZmqPeer"
    assert "another user" in caplog.text
    assert rude.recv(10) == b""
    rude.close()


def test_a_node_without_descriptors_for_the_lane_goes_on_by_tcp(make_van, caplog) -> None:
    sender, receiver = make_van(), make_van()
    got: list[Message] = []
    receiver.receiver = got.append

    class Exhausted:
        def __init__(self, listener: socket.socket) -> None:
            self.fileno, self.close = listener.fileno, listener.close

        def accept(self) -> None:
            raise OSError(24, "Too many open files")

    receiver._ends._lane._listener = Exhausted(receiver._ends._lane._listener)
    sender.connect(8, receiver.address)
    receiver.wait(lambda: False, 0.05)
    sender.wait(lambda: False, 0.05)

    sender.send(large(5))
    both_until(lambda: len(got) == 1, sender, receiver)

    assert "no more connections: Too many open files" in caplog.text
    assert type(sender._ends._peers[8]).__name__ == "ZmqPeer"


class Interrupted(BaseException):
    """Stands for what a signal handler raises."""


def interrupt(monkeypatch: pytest.MonkeyPatch, name: str, *, after: bool) -> None:
    """Let the next call of a method of LaneSender be interrupted, once."""
    method = getattr(LaneSender, name)

    def interrupted(self: LaneSender, *args: object) -> object:
        monkeypatch.setattr(LaneSender, name, method)
        if after:
            method(self, *args)
        raise Interrupted

    monkeypatch.setattr(LaneSender, name, interrupted)


@pytest.mark.parametrize("after", [False, True])
@pytest.mark.parametrize("name", ["_begin", "_write"])
def test_an_interrupt_amid_a_send_parts_no_descriptor_from_its_packet(
    make_van, monkeypatch, name: str, after: bool
) -> None:
    sender, receiver, got = pair(make_van)
    sender.send(large(1))
    both_until(lambda: len(got) == 1, sender, receiver)
    first = way(sender)
    interrupt(monkeypatch, name, after=after)
    with pytest.raises(Interrupted):
        sender.send(large(2, 40 << 20))
    sender.send(large(3))
    sender.send(large(4, 40 << 20))

    both_until(lambda: {3, 4} <= {m.meta.timestamp for m in got}, sender, receiver)
    for message in got:
        assert (message.arrays[0] == message.meta.timestamp % 251).all()
    assert first.is_ended
    assert way(sender) is not first
    assert sender.counts["interrupted"] == 1
    assert not receiver.counts["malformed"]


class InterruptedSocket:
    """Reads a packet, and then is interrupted, once."""

    def __init__(self, receiver: LaneReceiver) -> None:
        self._receiver, self._sock = receiver, receiver._sock
        receiver._sock = self  # type: ignore[assignment]

    def __getattr__(self, name: str) -> object:
        return getattr(self._sock, name)

    def recvmsg_into(self, *args: object) -> None:
        self._sock.recvmsg_into(*args)  # type: ignore[arg-type]
        self._receiver._sock = self._sock
        raise Interrupted


def test_an_interrupt_amid_a_read_ends_the_connection(make_van, caplog) -> None:
    sender, receiver, got = pair(make_van, shared_memory=0)  # large frames come in parts
    sender.send(large(1))
    both_until(lambda: len(got) == 1, sender, receiver)
    (connection,) = receiver._ends._lane._connections.values()
    InterruptedSocket(connection._receiver)

    sender.send(large(2, 4 << 20))
    with pytest.raises(Interrupted):
        both_until(lambda: len(got) == 2, sender, receiver)
    for number in range(3, 1000):  # who waits for an answer sends again
        sender.send(large(number))
        receiver.wait(lambda: len(got) > 1, 0.01)
        sender.wait(lambda: False, 0.01)
        if len(got) > 1:
            break

    assert connection.is_ended
    assert "the reading of a packet was interrupted" in caplog.text
    assert len(got) > 1
    for message in got:
        assert (message.arrays[0] == message.meta.timestamp % 251).all()


def test_memory_that_no_descriptor_is_left_for_is_said_to_be_so() -> None:
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    receiver = LaneReceiver(
        there, VanConfig(), lambda address: None, lambda place: None, lambda place: True
    )
    unsealed(here)
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    resource.setrlimit(resource.RLIMIT_NOFILE, (0, hard))
    try:
        with pytest.raises(ConnectionEndedError, match="ulimit -n"):
            receiver.receive()
    finally:
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
        here.close()
        there.close()


def connect_raw(van: ZmqVan) -> socket.socket:
    sock = socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    sock.settimeout(LIMIT)
    sock.connect(name_of(van.address))
    return sock


def message_with(places: list[Place], tables: Tables, nbytes: int = 4096) -> list:
    frames = encode(Message(Meta(recipient=8), [np.zeros(nbytes, np.uint8)]), VanConfig())
    return packets.pack(PacketKind.MESSAGE, frames, places, tables)


def send_with(sock: socket.socket, buffers: list, *fds: int) -> None:
    rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, struct.pack(f"={len(fds)}i", *fds))]
    sock.sendmsg(buffers, rights if fds else [])


def memfd(size: int, seals: int = 0) -> int:
    fd = os.memfd_create("test", os.MFD_ALLOW_SEALING)
    os.ftruncate(fd, size)
    if seals:
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, seals)
    return fd


IN_SLAB = [INLINE_PLACE, slab_place(Place(1, 0))]
ATTACH = Tables(slabs=[(1, 8192)])


def unsealed(sock: socket.socket) -> None:
    fd = memfd(8192)
    send_with(sock, message_with(IN_SLAB, ATTACH), fd)
    os.close(fd)


def truncated(sock: socket.socket) -> None:
    fd, _ = make_slab(4096)
    send_with(sock, message_with(IN_SLAB, ATTACH), fd)
    os.close(fd)


def no_memory_at_all(sock: socket.socket) -> None:
    read, write = os.pipe()
    send_with(sock, message_with(IN_SLAB, ATTACH), read)
    os.close(read)
    os.close(write)


def out_of_bounds(sock: socket.socket) -> None:
    fd, _ = make_slab(8192)
    send_with(sock, message_with([INLINE_PLACE, slab_place(Place(1, 8000))], ATTACH), fd)
    os.close(fd)


def unknown_slab(sock: socket.socket) -> None:
    send_with(sock, message_with(IN_SLAB, Tables()))


def flood(sock: socket.socket) -> None:
    fds = [memfd(100, fcntl.F_SEAL_SHRINK) for _ in range(100)]
    send_with(sock, message_with([], Tables()), *fds)
    for fd in fds:
        os.close(fd)


def never_allocated(sock: socket.socket) -> None:
    fd = memfd(1 << 40, fcntl.F_SEAL_SHRINK)
    send_with(sock, message_with(IN_SLAB, Tables(slabs=[(1, 1 << 40)])), fd)
    os.close(fd)


def return_of_what_was_not_sent(sock: socket.socket) -> None:
    sock.sendmsg(packets.pack(PacketKind.NOTICE, tables=Tables(returns=[Place(0, 0)])))


def garbage(sock: socket.socket) -> None:
    sock.send(os.urandom(1000))


def too_large(sock: socket.socket) -> None:
    sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1 << 20)
    sock.send(bytes(packets.LARGEST + 1))


@pytest.mark.parametrize(
    "misbehave",
    [
        unsealed,
        truncated,
        no_memory_at_all,
        out_of_bounds,
        unknown_slab,
        flood,
        never_allocated,
        return_of_what_was_not_sent,
        garbage,
        too_large,
    ],
)
def test_who_breaks_the_rules_is_cut_off_and_nobody_else(make_van, misbehave) -> None:
    sender, receiver, got = pair(make_van)
    sender.send(large(2))
    both_until(lambda: len(got) == 1, receiver)
    got.clear()
    before = len(os.listdir("/proc/self/fd"))
    sock = connect_raw(receiver)

    misbehave(sock)
    both_until(lambda: receiver.counts["malformed"] == 1, receiver)

    assert sock.recv(10) == b""
    sock.close()
    sender.send(large(3))
    both_until(lambda: len(got) == 1, sender, receiver)
    assert got[0].meta.timestamp == 3
    assert len(os.listdir("/proc/self/fd")) <= before


def test_a_garbled_header_is_dropped_and_the_connection_goes_on(make_van) -> None:
    _, receiver, got = pair(make_van)
    sock = connect_raw(receiver)

    sock.sendmsg(packets.pack(PacketKind.MESSAGE, [b"no header"]))
    sock.sendmsg(message_with([], Tables(), nbytes=10))
    both_until(lambda: len(got) == 1, receiver)

    assert receiver.counts["malformed"] == 1
    sock.close()


def test_a_peer_that_comes_back_under_its_address_is_reached_again(make_van) -> None:
    sender, receiver, got = pair(make_van)
    address = receiver.address
    sender.send(large(1))
    both_until(lambda: len(got) == 1, receiver)
    receiver.close(0)
    sender.wait(lambda: False, 0.05)  # sees the end
    again = ZmqVan(VanConfig(), background=False)
    again.receiver = got.append
    again.bind(address)

    sender.send(large(2))
    both_until(lambda: len(got) == 2, sender, again)

    assert got[1].meta.timestamp == 2
    again.close(0)


def test_what_cannot_be_had_is_an_error_that_says_so(make_van) -> None:
    for transport in ("local", "ipc"):
        van = make_van(transport=transport)
        with pytest.raises(AddressError, match=rf"transport = {transport}.*is it running"):
            van.connect(8, "tcp://127.0.0.1:1")
