"""What a launcher takes as a command, and from whom."""

from __future__ import annotations

import os
import socket
import stat
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from postoffice.errors import ObserverError
from pslite.capacity import PROCESSES_PER_CORE
from pslite.commands import FILE, CommandSocket, ask_launcher, has_launcher
from pslite.config import parse_job
from pslite.growth import Growth
from pslite.keyring import make_keys, names_of
from pslite.scaling import scale
from van.errors import ConfigError

LIMIT = 30.0  # seconds; no answer should come near


def handle(command: dict[str, Any]) -> dict[str, Any]:
    if "wrong" in command:
        raise ConfigError("that is wrong")
    return {"got": command}


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[Path]:
    """The folder of a launcher that turns until the test ends; its path is a long one."""
    path = tmp_path / ("deep" * 40)
    path.mkdir()
    launcher, ends = CommandSocket(path, handle), threading.Event()

    def turn() -> None:
        while not ends.wait(0.002):
            launcher.turn(time.monotonic())

    thread = threading.Thread(target=turn)
    thread.start()
    yield path
    ends.set()
    thread.join()
    launcher.close()
    assert not has_launcher(path)


def test_a_command_is_answered_and_an_error_is_told(folder: Path) -> None:
    assert has_launcher(folder)
    assert ask_launcher(folder, {"do": "x"}, LIMIT) == {"got": {"do": "x"}}
    with pytest.raises(ConfigError, match="launcher refuses: that is wrong"):
        ask_launcher(folder, {"wrong": 1}, LIMIT)


def test_nobody_else_may_connect(folder: Path) -> None:
    assert stat.S_IMODE(os.stat(folder / FILE).st_mode) == 0o600


@given(st.binary(min_size=1, max_size=6000))
@settings(suppress_health_check=[HealthCheck.function_scoped_fixture], max_examples=50)
def test_whatever_is_sent_the_launcher_answers_the_next(folder: Path, data: bytes) -> None:
    raw(folder, data)

    assert ask_launcher(folder, {"a": 1}, LIMIT) == {"got": {"a": 1}}


def raw(folder: Path, data: bytes) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as peer:
        handle = os.open(folder, os.O_PATH)
        peer.connect(f"/proc/self/fd/{handle}/{FILE}")
        os.close(handle)
        peer.settimeout(LIMIT)
        peer.send(data)
        assert peer.recv(5000).startswith(b'{"')


def test_who_says_nothing_is_let_go_and_holds_nobody_up(tmp_path: Path) -> None:
    launcher = CommandSocket(tmp_path, handle)
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as silent:
        silent.connect(str(tmp_path / FILE))
        silent.settimeout(LIMIT)
        launcher.turn(now=0.0)
        launcher.turn(now=100.0)

        assert silent.recv(10) == b""
    launcher.close()


def test_the_socket_of_a_killed_launcher_is_in_nobodys_way(tmp_path: Path) -> None:
    with socket.socket(socket.AF_UNIX, socket.SOCK_SEQPACKET) as left_behind:
        left_behind.bind(str(tmp_path / FILE))
    with pytest.raises(ConfigError, match="launcher does not answer"):
        ask_launcher(tmp_path, {})

    CommandSocket(tmp_path, handle).close()


# -- growing ----------------------------------------------------------------------------------


def growth(
    text: str = "", *, makes_keys: bool = False, runs: bool = True
) -> tuple[Growth, list[int]]:
    started: list[int] = []

    def start(rank: int) -> bool:
        started.append(rank)
        return True

    job = parse_job(f"[cluster]\nservers = 2\n{text}")
    return Growth(job, makes_keys, start, lambda: runs), started


def test_servers_are_started_up_to_the_number_that_is_wanted() -> None:
    grows, started = growth()

    grows.handle({"do": "scale", "servers": 3})
    grows.handle({"do": "start", "rank": 2})
    with pytest.raises(ConfigError, match="server 3 is none of 3"):
        grows.handle({"do": "start", "rank": 3})
    grows.handle({"do": "scale", "servers": 2})

    assert started == [2]
    assert grows.servers == 2
    assert grows.grown(parse_job("")).cluster.servers == 3  # server 2 may not have left yet


def test_who_only_checks_whether_there_can_be_more_changes_nothing() -> None:
    grows, _ = growth()

    assert grows.handle({"do": "check", "servers": 3}) == {"servers": 2}
    with pytest.raises(ConfigError, match="expected 1 to 1024"):
        grows.handle({"do": "check", "servers": 10**6})

    assert grows.servers == 2
    with pytest.raises(ConfigError, match="server 2 is none of 2"):
        grows.handle({"do": "start", "rank": 2})


class Refusing:
    """Stands for an observer of a scheduler that does not want to."""

    def scheduler(self, topic: str, wish: object = None) -> dict[str, Any]:
        raise ObserverError(f"no {topic} to {wish}")


def test_a_launcher_hears_of_more_servers_when_the_scheduler_has_agreed() -> None:
    grows, _ = growth()
    asked: list[Any] = []

    def ask(command: dict[str, Any]) -> dict[str, Any]:
        asked.append(command["do"])
        return grows.handle(command)

    with pytest.raises(ObserverError, match="no scale to 3"):
        scale(Refusing(), 3, LIMIT, print, ask)  # type: ignore[arg-type]  (it asks for no more)

    assert asked == ["check"]
    assert grows.servers == 2


@pytest.mark.parametrize(
    ("command", "problem"),
    [
        ({"do": "scale", "servers": 10**6}, "expected 1 to 1024"),
        ({"do": "scale", "servers": PROCESSES_PER_CORE * (os.cpu_count() or 1)}, "processes"),
        ({"do": "scale", "servers": "3"}, "not a whole number"),
        ({"do": "scale", "servers": True}, "not a whole number"),
        ({"do": "start"}, "rank is None"),
        ({"do": "dance"}, "'dance' is no command"),
        ({}, "None is no command"),
    ],
)
def test_what_makes_no_sense_is_refused(command: dict[str, Any], problem: str) -> None:
    grows, started = growth()

    with pytest.raises(ConfigError, match=problem):
        grows.handle(command)
    assert started == []


def test_a_job_that_does_not_run_does_not_grow() -> None:
    grows, _ = growth(runs=False)

    with pytest.raises(ConfigError, match="only starting, or ends"):
        grows.handle({"do": "scale", "servers": 3})


@pytest.mark.parametrize("is_ours", [True, False])
def test_a_new_rank_gets_a_key_only_where_the_launcher_made_the_others(
    tmp_path: Path, is_ours: bool
) -> None:
    make_keys(tmp_path, names_of("server", 2), names_of("worker", 1))
    grows, _ = growth(f"[security]\ncurve = on\nkeys = {tmp_path}\n", makes_keys=is_ours)
    ask: Callable[[], object] = lambda: grows.handle({"do": "scale", "servers": 3})  # noqa: E731

    if is_ours:
        ask()
    else:
        with pytest.raises(ConfigError, match=r"no keys for server-2; .*keygen"):
            ask()
    assert (tmp_path / "server-2.secret").exists() == is_ours
