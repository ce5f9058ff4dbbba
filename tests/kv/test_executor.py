"""Work in turns: whose comes when, what runs beside what, and how it ends."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator

import pytest

from kv.config import ServerConfig
from kv.executor import MOST_THREADS, Executor, Turns, run_through, threads_of
from van.errors import ConfigError

LIMIT = 60  # seconds after which a test has failed


class FailedError(Exception):
    pass


class Gate:
    """Work that stops inside a turn until it is let go."""

    def __init__(self) -> None:
        self.arrived, self.opened = threading.Event(), threading.Event()

    def hold(self) -> None:
        self.arrived.set()
        assert self.opened.wait(LIMIT)


@pytest.fixture
def make() -> Iterator[Callable[[int], Executor]]:
    made: list[Executor] = []
    failures: list[BaseException] = []

    def new(threads: int) -> Executor:
        made.append(Executor(threads, failures.append, f"test {len(made)}"))
        return made[-1]

    yield new
    for executor in made:
        executor.close(drain=False)
    assert not failures
    assert not [t.name for t in threading.enumerate() if t.name.startswith("test ")]


def noting(log: list[str], name: str, turns: int = 1, done: threading.Event | None = None) -> Turns:
    for turn in range(turns):
        log.append(f"{name}{turn}")
        yield
    if done is not None:
        done.set()


def holding(gate: Gate) -> Turns[None]:
    gate.hold()
    return
    yield


def failing() -> Turns[None]:
    raise FailedError
    yield


def test_half_of_the_cores_serve_long_requests() -> None:
    assert [threads_of(0, cores) for cores in (1, 2, 3, 8, 200)] == [1, 1, 1, 4, MOST_THREADS]
    assert threads_of(3, 1) == 3


@pytest.mark.parametrize("threads", [-1, 65])
def test_a_servers_threads_are_bounded(threads: int) -> None:
    with pytest.raises(ConfigError, match=f"expected 0 to 64, got {threads}"):
        ServerConfig(threads=threads)


def test_turns_run_to_their_result_parts_included() -> None:
    log: list[str] = []

    def outer() -> Turns[int]:
        yield
        yield [noting(log, "a", 2), noting(log, "b")]
        return len(log)

    assert run_through(outer()) == 3
    assert log == ["a0", "a1", "b0"]


def test_long_works_take_turns_on_one_thread(make: Callable[[int], Executor]) -> None:
    executor, gate, log, done = make(1), Gate(), list[str](), threading.Event()
    executor.submit(holding(gate))
    executor.submit(noting(log, "a", 3))
    executor.submit(noting(log, "b", 3, done))

    gate.opened.set()

    assert done.wait(LIMIT)
    assert log == ["a0", "b0", "a1", "b1", "a2", "b2"]


def test_a_short_work_goes_before_long_ones(make: Callable[[int], Executor]) -> None:
    executor, gate, log, done = make(1), Gate(), list[str](), threading.Event()
    executor.submit(holding(gate))
    executor.submit(noting(log, "long", 1, done))
    executor.submit(noting(log, "short"), is_short=True)

    gate.opened.set()

    assert done.wait(LIMIT)
    assert log == ["short0", "long0"]


def test_a_lane_keeps_its_order_and_others_go_on(make: Callable[[int], Executor]) -> None:
    executor, gate, log = make(2), Gate(), list[str]()
    other, last = threading.Event(), threading.Event()
    executor.submit(holding(gate), ["x", "y"])
    executor.submit(noting(log, "second", 1, last), ["y", "z"], is_short=True)
    assert not executor.is_free(["x"])
    assert not executor.is_free(["z"])
    assert executor.is_free(["other"])

    executor.submit(noting(log, "other", 1, other), ["other"])

    assert other.wait(LIMIT)
    assert log == ["other0"]
    gate.opened.set()
    assert last.wait(LIMIT)
    assert log == ["other0", "second0"]


def test_parts_run_at_the_same_time_and_their_whole_goes_on_after_all(
    make: Callable[[int], Executor],
) -> None:
    executor, gates, done = make(2), [Gate(), Gate()], threading.Event()

    def whole() -> Turns[None]:
        yield [holding(gate) for gate in gates]
        done.set()

    executor.submit(whole(), ["x"])

    for gate in gates:
        assert gate.arrived.wait(LIMIT)
    gates[0].opened.set()
    assert not done.is_set()
    gates[1].opened.set()
    assert done.wait(LIMIT)


def test_the_error_of_a_part_arrives_in_its_whole_without_an_executor() -> None:
    log: list[str] = []

    def whole() -> Turns[str]:
        try:
            yield [failing(), noting(log, "other")]
        except FailedError:
            return "seen"
        return "not seen"

    assert run_through(whole()) == "seen"
    assert log == ["other0"]


@pytest.mark.parametrize("threads", [0, 1, 2])
def test_the_error_of_a_part_arrives_in_its_whole(
    threads: int, make: Callable[[int], Executor]
) -> None:
    executor, seen, log = make(threads), threading.Event(), list[str]()

    def whole() -> Turns[None]:
        try:
            yield [failing(), noting(log, "other", 3)]
        except FailedError:
            seen.set()

    executor.submit(whole(), ["x"])

    assert seen.wait(LIMIT)
    executor.close()
    assert executor.is_idle


def test_without_threads_work_is_done_when_submit_returns(make: Callable[[int], Executor]) -> None:
    executor, log = make(0), list[str]()

    def outer() -> Turns[None]:
        executor.submit(noting(log, "inner"), ["x"])  # the same lane: comes after
        log.append("outer")
        yield

    executor.submit(outer(), ["x"])

    assert log == ["outer", "inner0"]
    assert executor.is_idle


def test_a_thread_that_ends_is_not_overlooked() -> None:
    failures: list[BaseException] = []
    executor = Executor(2, failures.append, "ends")

    executor.submit(failing(), ["x"])  # nobody has caught it: a mistake of ours
    executor.submit(failing(), ["x"])

    executor.close()
    assert [type(failure) for failure in failures] == [FailedError]


def test_closing_ends_what_is_under_way_first(make: Callable[[int], Executor]) -> None:
    executor, gate, log = make(2), Gate(), list[str]()
    executor.submit(holding(gate), ["x"])
    executor.submit(noting(log, "after", 3), ["x"])
    closer = threading.Thread(target=executor.close)
    closer.start()

    gate.opened.set()
    closer.join(LIMIT)

    assert log == ["after0", "after1", "after2"]
    executor.submit(noting(log, "too late"))
    assert len(log) == 3


def test_closing_without_draining_drops_what_has_not_begun(
    make: Callable[[int], Executor],
) -> None:
    executor, gate, log, ended = make(1), Gate(), list[str](), threading.Event()

    def long() -> Turns[None]:
        try:
            gate.hold()
            yield
            log.append("second turn")
        finally:
            ended.set()

    executor.submit(long(), ["x"])
    executor.submit(noting(log, "after"), ["x"])
    assert gate.arrived.wait(LIMIT)
    closer = threading.Thread(target=executor.close, kwargs={"drain": False})
    closer.start()
    with executor._more:
        assert executor._more.wait_for(lambda: executor.is_closing, LIMIT)

    gate.opened.set()
    closer.join(LIMIT)

    assert ended.is_set()
    assert log == []
