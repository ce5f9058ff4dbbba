"""Who is let in, and how handshakes that fail are told: decisions only, no socket."""

from __future__ import annotations

import logging
import os
import socket
from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest
import zmq
from zmq.utils import z85

from tests.security.cluster import curve
from van.addresses import with_key
from van.curve import failure
from van.drops import Drops
from van.keys import AllowLists, new_pair, read_public
from van.monitor import Dialling, Doorway, cut_off
from van.poller import Poller
from van.zap import Gate

ACCEPTED, CLOSED = int(zmq.EVENT_ACCEPTED), int(zmq.EVENT_DISCONNECTED)
DONE = int(zmq.EVENT_HANDSHAKE_SUCCEEDED)
AUTH, PROTOCOL = int(zmq.EVENT_HANDSHAKE_FAILED_AUTH), int(zmq.EVENT_HANDSHAKE_FAILED_PROTOCOL)
NO_DETAIL = int(zmq.EVENT_HANDSHAKE_FAILED_NO_DETAIL)
MISMATCH = int(zmq.PROTOCOL_ERROR_ZMTP_MECHANISM_MISMATCH)


def question(key: bytes, mechanism: bytes = b"CURVE") -> list[bytes]:
    return [b"1.0", b"7", b"pslite", b"10.0.0.9", b"", mechanism, key]


def test_a_key_of_a_list_is_let_in_under_its_own_name(keys: Path) -> None:
    key = read_public(keys / "worker-0.public")
    gate = Gate(AllowLists(keys), Counter())

    answer = gate.answer(question(z85.decode(key)))

    assert answer[:3] == [b"1.0", b"7", b"200"]
    assert answer[4] == key.encode()
    peer = gate.peer(key)
    assert peer is not None
    assert peer.roles == {"worker"}


def test_a_strange_key_is_refused_counted_and_logged_once(
    keys: Path, caplog: pytest.LogCaptureFixture
) -> None:
    counts: Counter[str] = Counter()
    gate, key = Gate(AllowLists(keys), counts), new_pair().public

    answers = [gate.answer(question(z85.decode(key))) for _ in range(5)]

    assert {answer[2] for answer in answers} == {b"400"}
    assert counts["refused"] == 5
    assert gate.peer(key) is None
    (record,) = caplog.records
    assert f"refused 10.0.0.9: its key {key[:8]}" in record.message


@pytest.mark.parametrize(
    "frames",
    [
        [b"1.0"],
        [b"2.0", *question(b"x" * 32)[1:]],
        question(b"x" * 31),
        question(b"", b"NULL"),
        question(b"user", b"PLAIN"),
        [*question(b"x" * 32), b"more"],
    ],
)
def test_any_other_question_is_refused(keys: Path, frames: list[bytes]) -> None:
    answer = Gate(AllowLists(keys), Counter()).answer(frames)

    assert answer[2] in (b"400", b"500")
    assert answer[4] == b""


class Door:
    """A doorway of a socket that nobody connects to: the test says what happens."""

    def __init__(self, most: int) -> None:
        self.context: zmq.Context = zmq.Context()
        self.router, self.poller = self.context.socket(zmq.ROUTER), Poller()
        self.counts: Counter[str] = Counter()
        self.cuts: list[int] = []
        self.doorway = Doorway(
            self.router,
            self.poller,
            Drops(self.counts),
            most,
            logging.WARNING,
            lambda fd, port: self.cuts.append(fd),
        )

    def close(self) -> None:
        self.doorway.close()
        self.router.close(0)
        self.poller.close()
        self.context.term()


def test_who_comes_while_too_many_shake_hands_is_turned_away() -> None:
    door = Door(most=2)
    for fd in (10, 11, 12):
        door.doorway.note(ACCEPTED, fd)
    door.doorway.note(CLOSED, 12)
    assert (door.cuts, door.counts["half_open"]) == ([12], 1)

    door.doorway.note(DONE, 0)
    door.doorway.note(ACCEPTED, 13)
    door.doorway.note(CLOSED, 11)
    door.doorway.note(ACCEPTED, 14)

    assert door.cuts == [12]
    assert door.counts["foreign"] == 1
    door.close()


def test_a_refused_peer_is_not_counted_as_foreign_too(caplog: pytest.LogCaptureFixture) -> None:
    door = Door(most=2)
    for _ in range(3):
        door.doorway.note(ACCEPTED, 10)
        door.doorway.note(PROTOCOL, 1)
        door.doorway.note(CLOSED, 10)
        door.doorway.note(ACCEPTED, 10)
        door.doorway.note(AUTH, 400)
        door.doorway.note(CLOSED, 10)

    assert door.counts == {"refused": 3}
    assert len(caplog.records) == 1
    door.close()


def test_only_a_connection_to_our_own_port_is_cut_off() -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:
        port = server.getsockname()[1]
        with socket.create_connection(("127.0.0.1", port)) as client:
            accepted, _ = server.accept()
            with accepted, open(os.devnull) as other:
                cut_off(accepted.fileno(), port + 1)
                cut_off(other.fileno(), port)
                client.settimeout(0)
                with pytest.raises(BlockingIOError):
                    client.recv(1)

                cut_off(accepted.fileno(), port)

                client.settimeout(30)
                assert client.recv(1) == b""


@contextmanager
def dialling(reports: list[str], keys: Path | None) -> Iterator[Dialling]:
    context: zmq.Context = zmq.Context()
    dealer, poller = context.socket(zmq.DEALER), Poller()
    made = Dialling(
        dealer,
        "tcp://h:1",
        curve(keys, "worker"),
        poller,
        lambda error: reports.append(str(error)),
    )
    yield made
    made.close()
    poller.close()
    dealer.close(0)
    context.term()


def test_a_peer_that_hangs_up_once_may_only_be_ending(keys: Path) -> None:
    reports: list[str] = []
    with dialling(reports, keys) as watch:
        watch.note(NO_DETAIL, 32)
        watch.note(NO_DETAIL, 32)
        assert reports == []
        watch.note(NO_DETAIL, 32)

    (text,) = reports
    assert "does not hold the secret key of" in text
    assert str(keys / "scheduler.public") in text


def test_without_curve_hanging_up_says_nothing_about_keys() -> None:
    reports: list[str] = []
    with dialling(reports, None) as watch:
        for _ in range(10):
            watch.note(NO_DETAIL, 32)

    assert reports == []


def test_each_failure_says_what_to_do_and_names_the_file(keys: Path) -> None:
    ours = curve(keys, "worker", 1)
    elsewhere = with_key("tcp://h:1", read_public(keys / "server-0.public"))

    refused = failure(ours, "tcp://h:1", AUTH, 400)
    assert str(keys / "worker-1.secret") in str(refused)
    assert refused.is_final
    assert "the node table" in str(failure(ours, elsewhere, NO_DETAIL, 32))
    assert "it speaks without CURVE; set [security] curve = on for every node" in str(
        failure(ours, "tcp://h:1", PROTOCOL, MISMATCH)
    )
    assert "it speaks CURVE only" in str(failure(None, "tcp://h:1", PROTOCOL, MISMATCH))
    assert failure(ours, elsewhere, NO_DETAIL, 32).address == "tcp://h:1"
