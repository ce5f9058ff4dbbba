"""The local lane between processes of which one is killed or stopped."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from tests.jobs import left_in_shared_memory, shared_files
from van.config import VanConfig
from van.courier import ZmqVan
from van.lane_connection import LaneConnection
from van.local_lane import name_of
from van.message import Message, Meta

ROOT = Path(__file__).resolve().parents[2]
LIMIT = 30.0
MIB = 1 << 20
CONFIG = VanConfig(transport="local", shared_memory=16 * MIB, backlog_bytes=32 * MIB)

COUNTER = """
import sys
from van.config import VanConfig
from van.courier import ZmqVan
from van.message import Message, Meta
van = ZmqVan(VanConfig(transport="local"), background=False)
seen = []
def take(message):
    if not seen:
        van.connect(9, message.meta.reply_to)
    seen.append(message.meta.timestamp)
    good = all((array == message.meta.timestamp % 251).all() for array in message.arrays)
    van.send(Message(Meta(recipient=9, timestamp=message.meta.timestamp, cmd=int(good))))
van.receiver = take
print(van.bind("tcp://127.0.0.1:0"), flush=True)
van.wait(lambda: False)
"""

FLOOD = """
import sys
import numpy as np
from van.config import VanConfig
from van.courier import ZmqVan
from van.message import Message, Meta
van = ZmqVan(VanConfig(transport="local"), background=False)
van.bind("tcp://127.0.0.1:0")
van.connect(9, sys.argv[1])
number = 0
while True:
    number += 1
    van.send(Message(Meta(recipient=9, timestamp=number), [np.full(3 << 20, number % 251, "u1")]))
    van.wait(lambda: van.has_room(9))
"""


@contextlib.contextmanager
def process(code: str, *arguments: str) -> Iterator[subprocess.Popen[str]]:
    child = subprocess.Popen(
        [sys.executable, "-c", code, *arguments], cwd=ROOT, stdout=subprocess.PIPE, text=True
    )
    try:
        yield child
    finally:
        child.kill()
        child.wait(LIMIT)
        child.stdout.close()


@pytest.fixture
def van() -> Iterator[ZmqVan]:
    before = shared_files()
    made = ZmqVan(CONFIG, background=False)
    made.bind("tcp://127.0.0.1:0")
    address = made.address
    yield made
    made.close(0)
    assert not is_named(address)
    assert left_in_shared_memory(before) == set()


def is_named(address: str) -> bool:
    return f"@{name_of(address)[1:]}\n" in Path("/proc/net/unix").read_text(encoding="utf-8")


def way(van: ZmqVan) -> LaneConnection:
    connection = van._ends._peers[8]
    assert isinstance(connection, LaneConnection)
    return connection


def message(number: int, van: ZmqVan) -> Message:
    array = np.full(3 * MIB, number % 251, np.uint8)
    return Message(Meta(recipient=8, timestamp=number, reply_to=van.address), [array])


def until(van: ZmqVan, done: Callable[[], bool]) -> None:
    assert van.wait(done, LIMIT)


def test_a_stopped_receiver_costs_its_sender_no_more_than_the_limits(van: ZmqVan) -> None:
    answers: list[Message] = []
    van.receiver = answers.append
    with process(COUNTER) as child:
        van.connect(8, child.stdout.readline().strip())
        van.send(message(0, van))
        until(van, lambda: len(answers) == 1)
        child.send_signal(signal.SIGSTOP)
        sent = 1
        while van.has_room(8) and sent < 1000:
            van.send(message(sent, van))
            sent += 1
        shared, waiting = way(van).pool.size, way(van).waiting.nbytes
        child.send_signal(signal.SIGCONT)
        until(van, lambda: len(answers) == sent)
        until(van, lambda: way(van).pool.taken == 0)

    assert shared <= CONFIG.shared_memory
    assert waiting <= CONFIG.backlog_bytes + 4 * MIB
    assert sent < 30
    assert [answer.meta.timestamp for answer in answers] == list(range(sent))
    assert all(answer.meta.cmd for answer in answers)


def test_a_receiver_that_is_killed_with_frames_in_flight_leaves_nothing(van: ZmqVan) -> None:
    answers: list[Message] = []
    van.receiver = answers.append
    with process(COUNTER) as child:
        address = child.stdout.readline().strip()
        van.connect(8, address)
        connection = way(van)
        van.send(message(0, van))
        until(van, lambda: len(answers) == 1)
        was_named = is_named(address)
        child.send_signal(signal.SIGSTOP)
        for number in range(1, 8):
            van.send(message(number, van))
        child.kill()
        child.wait(LIMIT)
        until(van, lambda: connection.is_ended)

    assert was_named
    assert not is_named(address)
    assert not connection.pool._memory
    assert connection not in van._ends._lane._connections.values()


def test_what_a_killed_sender_sent_stays_readable(van: ZmqVan) -> None:
    got: list[Message] = []
    van.receiver = lambda m: got.append(m) if len(got) < 4 else None
    descriptors = len(os.listdir("/proc/self/fd"))
    with process(FLOOD, van.address) as child:
        until(van, lambda: len(got) == 4)
        child.kill()
        child.wait(LIMIT)
        until(van, lambda: not van._ends._lane._connections)

    assert [m.meta.timestamp for m in got] == [1, 2, 3, 4]
    assert all((m.arrays[0] == m.meta.timestamp % 251).all() for m in got)
    got.clear()
    assert len(os.listdir("/proc/self/fd")) <= descriptors
