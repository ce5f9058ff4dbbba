"""How a launcher's word that a process has ended reaches the scheduler."""

from __future__ import annotations

import json
import os
import select
import subprocess
from collections.abc import Iterator

import pytest
from hypothesis import given
from hypothesis import strategies as st

from postoffice.node import Role
from pslite.lifecycle import NodeName
from pslite.obituaries import Obituaries, ObituaryReader
from pslite.processes import Child

WORKER, SERVER = NodeName(Role.WORKER, 1), NodeName(Role.SERVER, 0)


class Pipe:
    """A pipe, and what a reader of its end was told."""

    def __init__(self) -> None:
        self.out, self.into = os.pipe()
        self.told: list[tuple[int, str]] = []
        self.is_ready = True
        self.is_lost = False
        self.reader = ObituaryReader(self._end, self._lose, self.out)

    def _end(self, life: int, why: str) -> bool:
        self.told.append((life, why))
        return self.is_ready

    def _lose(self) -> None:
        assert not self.is_lost
        self.is_lost = True

    def write(self, data: bytes) -> None:
        os.write(self.into, data)
        self.reader.turn()

    def close(self) -> None:
        for file in {self.out, self.into}:
            os.close(file)


@pytest.fixture
def pipe() -> Iterator[Pipe]:
    found = Pipe()
    yield found
    found.close()


def test_only_the_life_that_has_ended_is_named(pipe: Pipe) -> None:
    launcher = Obituaries()
    first, server = launcher.born(WORKER), launcher.born(SERVER)
    line = launcher.died(WORKER, "killed by SIGKILL")
    second = launcher.born(WORKER)

    pipe.write(line)

    assert pipe.told == [(first, "has ended: killed by SIGKILL")]
    assert len({first, second, server}) == 3
    assert launcher.lines == [line]


def test_what_cannot_be_taken_in_yet_is_said_again(pipe: Pipe) -> None:
    pipe.is_ready = False
    pipe.write(b'{"life": 7, "why": "x"}\n{"life": 8, "wh')
    pipe.is_ready = True
    pipe.write(b'y": "y"}\n')
    pipe.reader.turn()

    assert pipe.told == [(7, "x"), (7, "x"), (8, "y")]


@given(st.lists(st.binary(max_size=200), max_size=5))
def test_what_no_launcher_says_is_passed_over(noise: list[bytes]) -> None:
    pipe = Pipe()
    for data in [*noise, b'\n[1]\n{"life": true, "why": ""}\n{"life": 1}\n', b"[" * 4000 + b"\n"]:
        pipe.write(data)
    pipe.write(b'{"life": 5, "why": "z"}\n')
    pipe.close()

    assert pipe.told[-1] == (5, "z")
    assert all(type(life) is int for life, _ in pipe.told)


def test_an_input_that_is_no_pipe_says_nothing(pipe: Pipe) -> None:
    with open(os.devnull) as nothing:
        for file in (nothing.fileno(), 1 << 20):  # and no such descriptor
            ObituaryReader(pipe._end, pipe._lose, file).turn()

    assert (pipe.told, pipe.is_lost) == ([], False)


def test_a_launcher_that_has_ended_is_lost_once(pipe: Pipe) -> None:
    pipe.reader.turn()
    assert not pipe.is_lost
    os.close(pipe.into)
    pipe.into = pipe.out  # closed once, by the fixture

    pipe.reader.turn()
    pipe.reader.turn()

    assert pipe.is_lost


def test_a_scheduler_that_stands_still_does_not_hold_the_launcher_up() -> None:
    program = "import sys; sys.stdin.readline(); print(len(sys.stdin.read()))"
    process = subprocess.Popen(
        ["python3", "-c", program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0
    )
    assert process.stdin is not None
    assert process.stdout is not None
    os.set_blocking(process.stdin.fileno(), False)
    child = Child(NodeName(Role.SCHEDULER, 0), process, lambda child, block: None, None)
    line = json.dumps({"life": 1, "why": "x" * 1000}).encode() + b"\n"

    for _ in range(300):  # four times as much as a pipe holds, to one who reads nothing yet
        child.tell(line)
    while child.unsaid:
        select.select([], [process.stdin], [], 60)
        child.say()
    process.stdin.close()

    assert int(process.stdout.read()) == 299 * len(line)
    assert process.wait(60) == 0
    process.stdout.close()
