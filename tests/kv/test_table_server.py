"""Who works on a request and when: order for one worker, no waiting for others, nothing lost."""

from __future__ import annotations

import threading
import time
from collections import deque
from collections.abc import Callable, Iterator
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest

import kv.table_server
from kv.consistency.settings import Consistency
from kv.executor import Turns
from kv.initializers import Zeros
from kv.optimizers import SGD
from kv.spec import TableSpec
from kv.table_protocol import Command, table_id
from kv.table_server import TableServer
from postoffice.queries import Queries
from van.errors import UnreachablePeerError
from van.message import Message, Meta

LIMIT = 60  # seconds after which a test has failed
A, B = 9, 11  # worker nodes
MANY = 3000  # keys of a request that is long here


class Office:
    """A postoffice that keeps what is sent."""

    def __init__(self, workers: int = 2) -> None:
        self.shape = SimpleNamespace(workers=workers, servers=1, dispatchers=0)
        self.van = SimpleNamespace(now=time.monotonic, has_more=False)
        self.node_id, self.rank, self.name = 8, 0, "server 0"
        self.sent: list[Message] = []
        self.reached: set[int] = set()
        self.stopped: list[str | None] = []
        self.queries = Queries()
        self.on_view: list[Any] = []
        self._changed = threading.Condition()

    def add_customer(self, customer: Any) -> None:
        self.receive = customer.handle_request

    def reach(self, node: int) -> None:
        self.reached.add(node)

    def send(self, message: Message) -> None:
        with self._changed:
            self.sent.append(message)
            self._changed.notify_all()

    def stop(self, failure: str | None = None) -> None:
        with self._changed:
            self.stopped.append(failure)
            self._changed.notify_all()

    def wait(self, holds: Callable[[], bool]) -> None:
        with self._changed:
            assert self._changed.wait_for(holds, LIMIT), f"never: {self.sent}"

    def answers(self) -> list[tuple[int, int]]:
        """Who got an answer to which request, in order."""
        return [(m.meta.recipient, m.meta.timestamp) for m in self.sent]


class Served:
    """A server and its requests; `long` ones stop at their first turn until `opened`."""

    def __init__(self, threads: int, mode: str | Consistency = "async", workers: int = 2) -> None:
        self.office = Office(workers)
        self.server = TableServer(self.office, mode, threads=threads)  # type: ignore[arg-type]
        self.arrived, self.opened = threading.Event(), threading.Event()
        self._timestamp = 0
        spec = TableSpec.sparse("t", 2, optimizer=SGD(lr=1.0), initializer=Zeros())
        self.ask(A, Command.DEFINE, spec.resolved(Consistency.of(mode), 1).to_dict(), about=())
        self.office.wait(lambda: len(self.office.sent) == 1)
        self.office.sent.clear()
        self.server.engine.tables[0].store.chunk = MANY // 3

    def ask(
        self,
        sender: int,
        command: Command,
        body: Any = None,
        arrays: tuple[np.ndarray, ...] = (),
        about: tuple[str, ...] = ("t",),
        clock: int = 0,
    ) -> int:
        self._timestamp += 1
        clocks = tuple((table_id(name), clock, ()) for name in about)
        meta = Meta(sender=sender, cmd=command, body=body, clocks=clocks, timestamp=self._timestamp)
        self.office.receive(Message(meta, list(arrays)))
        return self._timestamp

    def push(self, sender: int, count: int = MANY, value: float = 1.0, clock: int = 0) -> int:
        keys, grads = np.arange(count, dtype=np.uint64), np.full((count, 2), value, np.float32)
        return self.ask(sender, Command.PUSH, None, (keys, grads), clock=clock)

    def pull(self, sender: int, key: int = 0, clock: int = 0) -> int:
        keys = np.array([key], np.uint64)
        return self.ask(sender, Command.PULL, {"create": True}, (keys,), clock=clock)

    def values(self, timestamp: int) -> float:
        self.office.wait(lambda: any(m.meta.timestamp == timestamp for m in self.office.sent))
        (answer,) = (m for m in self.office.sent if m.meta.timestamp == timestamp)
        assert answer.meta.error is None, answer.meta.error
        return float(answer.arrays[0][0, 0])

    def hold_long(self) -> None:
        """From now on a push of many keys stops before it is applied."""
        table = self.server.engine.tables[0]
        applying = table.applying

        def held(*args: Any) -> Turns[None]:
            if args[0].keys.size >= MANY:
                self.arrived.set()
                assert self.opened.wait(LIMIT)
            return applying(*args)

        table.applying = held  # type: ignore[method-assign]


@pytest.fixture
def serve(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Served]]:
    for limit in ("SHORT", "ALONE"):  # floats: MANY keys are long here
        monkeypatch.setattr(kv.table_server, limit, MANY)
    made: list[Served] = []

    def new(threads: int, mode: str = "async") -> Served:
        made.append(Served(threads, mode))
        return made[-1]

    yield new
    for served in made:
        served.opened.set()
        served.server.close()
    assert not [t.name for t in threading.enumerate() if t.name.startswith("pslite server")]


@pytest.mark.parametrize("threads", [1, 2])
def test_short_requests_of_others_are_answered_while_a_long_one_runs(
    threads: int, serve: Callable[..., Served]
) -> None:
    served = serve(threads)
    served.hold_long()
    long = served.push(A)
    assert served.arrived.wait(LIMIT)

    others = [served.pull(B), served.push(B, 1), served.pull(B)]

    assert served.office.answers() == [(B, timestamp) for timestamp in others]
    served.opened.set()
    served.office.wait(lambda: (A, long) in served.office.answers())
    assert served.office.reached == {A}


@pytest.mark.parametrize(
    ("is_more_there", "is_busy", "is_at_once"),
    [(False, False, True), (True, False, False), (False, True, False)],
)
def test_a_middling_request_is_answered_at_once_where_nobody_waits_for_that_thread(
    is_more_there: bool,
    is_busy: bool,
    is_at_once: bool,
    serve: Callable[..., Served],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(kv.table_server, "ALONE", 15 * MANY)  # a key counts as 10 floats
    served = serve(1)
    served.office.van.has_more = is_more_there
    if is_busy:
        served.hold_long()
        served.push(A, 2 * MANY)
        assert served.arrived.wait(LIMIT)

    middling = served.push(B)

    assert (B in served.office.reached) == (not is_at_once), "who hands it over reaches B"
    served.opened.set()
    served.office.wait(lambda: (B, middling) in served.office.answers())


def test_a_short_request_waits_for_a_chunk_of_a_long_one_at_most(
    serve: Callable[..., Served],
) -> None:
    served = serve(1)
    (part,) = served.server.engine.tables[0].store.parts
    chunks, push = threading.Semaphore(0), part.store.push

    def held(keys: np.ndarray, *args: Any) -> None:
        served.arrived.set()
        assert chunks.acquire(timeout=LIMIT)
        push(keys, *args)

    queued = threading.Event()

    class Queue(deque[threading.Lock]):
        def append(self, turn: threading.Lock) -> None:
            super().append(turn)
            queued.set()

    part.lock._turns = Queue()
    part.store.push = held  # type: ignore[method-assign]
    long = served.push(A)
    assert served.arrived.wait(LIMIT)
    short = threading.Thread(target=served.pull, args=(B,))
    short.start()
    assert queued.wait(LIMIT)

    chunks.release()

    short.join(LIMIT)
    assert served.office.answers() == [(B, long + 1)]
    chunks.release(2)
    served.office.wait(lambda: (A, long) in served.office.answers())


@pytest.mark.parametrize("threads", [0, 1, 2])
def test_a_worker_sees_its_own_push_in_its_next_pull(
    threads: int, serve: Callable[..., Served]
) -> None:
    served = serve(threads)
    served.opened.set()
    served.hold_long()

    pulls = []
    for _ in range(20):
        served.push(A)
        pulls.append(served.pull(A, key=MANY - 1))

    assert [served.values(pull) for pull in pulls] == [-float(n) for n in range(1, 21)]
    asked = sorted(timestamp for _, timestamp in served.office.answers())
    assert [timestamp for _, timestamp in served.office.answers()] == asked


def test_one_workers_result_is_the_same_to_the_bit_with_any_number_of_threads(
    serve: Callable[..., Served],
) -> None:
    results = set()
    for threads in (0, 1, 2, 4, 4):
        served, rng = serve(threads), np.random.default_rng(1)
        for _ in range(10):
            count = int(rng.integers(1, 2 * MANY))
            served.push(A, count, float(rng.normal()))
            served.pull(A, int(rng.integers(3 * MANY)))
        served.office.wait(lambda served=served: len(served.office.sent) == 20)
        engine = served.server.engine
        results.add(engine.pull(0, np.arange(2 * MANY, dtype=np.uint64), False).tobytes())

    assert len(results) == 1


@pytest.mark.parametrize("threads", [0, 1, 2])
def test_a_held_pull_sees_the_whole_round(threads: int, serve: Callable[..., Served]) -> None:
    served = serve(threads, "sync")
    served.hold_long()
    served.push(A)
    served.push(B, value=2.0)
    served.ask(A, Command.STEP, {"clock": 0}, about=())
    pulls = [served.pull(sender, MANY - 1, clock=1) for sender in (A, B)]
    if not threads:
        served.opened.set()

    served.ask(B, Command.STEP, {"clock": 0}, about=())
    if threads:
        assert served.arrived.wait(LIMIT)
        assert not {t for _, t in served.office.answers()} & set(pulls)
        late = served.pull(A, clock=1)  # comes while the round is applied
        served.opened.set()
        assert served.values(late) == -3

    assert [served.values(pull) for pull in pulls] == [-3, -3]


@pytest.mark.parametrize("threads", [0, 2])
def test_a_held_pull_is_answered_though_the_round_found_no_room(
    threads: int, serve: Callable[..., Served]
) -> None:
    served = serve(threads, "sync")
    served.opened.set()
    spec = TableSpec.sparse("small", 2, initializer=Zeros(), memory_limit=16_000)
    served.ask(A, Command.DEFINE, spec.resolved("sync", 1).to_dict(), about=())
    served.office.wait(lambda: len(served.office.sent) == 1)
    grads = np.ones((1000, 2), np.float32)
    served.ask(A, Command.PUSH, None, (np.arange(1000, dtype=np.uint64), grads), about=("small",))
    steps = [served.ask(A, Command.STEP, {"clock": 0}, about=())]
    held = served.pull(A, clock=1)

    steps.append(served.ask(B, Command.STEP, {"clock": 0}, about=()))

    assert served.values(held) == 0.0
    served.office.wait(lambda: {t for _, t in served.office.answers()} >= set(steps))
    errors = [m.meta.error[0] for m in served.office.sent if m.meta.error]
    assert errors == ["ArenaFullError"]  # of the step that closed the round


@pytest.mark.parametrize("threads", [1, 2])
def test_a_step_comes_after_the_pushes_that_came_before_it(
    threads: int, serve: Callable[..., Served]
) -> None:
    served = serve(threads, "sync")
    served.opened.set()

    for step in range(10):
        for sender in (A, B):
            served.push(sender, clock=step)
            served.ask(sender, Command.STEP, {"clock": step}, about=())
    pull = served.pull(A, MANY - 1, clock=10)

    assert served.values(pull) == -20
    assert not [m.meta.error for m in served.office.sent if m.meta.error]


@pytest.mark.parametrize("threads", [0, 1, 2])
def test_errors_of_long_requests_are_answered_and_change_nothing(
    threads: int, serve: Callable[..., Served]
) -> None:
    served = serve(threads)

    bad = served.push(A, value=np.nan)
    unknown = served.ask(A, Command.SIZE, about=("nowhere",))
    strange = served.ask(A, 99)  # type: ignore[arg-type]

    served.office.wait(lambda: len(served.office.sent) == 3)
    errors = {m.meta.timestamp: m.meta.error[0] for m in served.office.sent if m.meta.error}
    expected = ["NonFiniteError", "UnknownTableError", "KVError"]
    assert errors == dict(zip([bad, unknown, strange], expected, strict=True))
    assert served.server.engine.size(0) == 0


@pytest.mark.parametrize("threads", [0, 1])
def test_an_answer_that_cannot_be_sent_harms_nobody_else(
    threads: int, serve: Callable[..., Served]
) -> None:
    served = serve(threads)
    send, refused = served.office.send, threading.Event()

    def refuse(message: Message) -> None:
        if message.meta.recipient == A:
            refused.set()
            raise UnreachablePeerError(A, "it is not in the node table")
        send(message)

    served.office.send = refuse  # type: ignore[method-assign]
    served.push(A)
    assert refused.wait(LIMIT)

    pull = served.pull(B)

    assert served.values(pull) == -1
    assert not served.office.stopped


def test_a_dead_thread_stops_the_node_and_says_why(serve: Callable[..., Served]) -> None:
    served = serve(1)

    def dying(*args: Any) -> Turns[None]:
        raise SystemExit("enough")
        yield

    served.server.engine.tables[0].applying = dying  # type: ignore[method-assign]
    served.push(A)

    served.office.wait(lambda: bool(served.office.stopped))
    assert "SystemExit: enough" in str(served.office.stopped[0])
    with pytest.raises(SystemExit, match="enough"), served.server:
        pass


@pytest.mark.parametrize("threads", [1, 2, 4])
def test_pushes_of_two_workers_add_up(threads: int, serve: Callable[..., Served]) -> None:
    served = serve(threads)

    for _ in range(30):
        for sender in (A, B):
            served.push(sender)
            served.push(sender, 1)
            served.pull(sender, 5)
    last = [served.pull(A, 0), served.pull(B, MANY - 1)]
    served.office.wait(lambda: len(served.office.sent) == 6 * 30 + 2)

    assert served.server.engine.clock(0) == 120
    keys = np.array([0, MANY - 1], np.uint64)
    np.testing.assert_array_equal(served.server.engine.pull(0, keys)[:, 0], [-120, -60])
    assert served.values(last[0]) <= -60
    served.server.engine.validate()


def test_the_server_tells_a_tables_numbers(serve: Callable[..., Served]) -> None:
    served = serve(2)
    served.push(A)

    stats = served.ask(A, Command.STATS)

    served.office.wait(lambda: len(served.office.sent) == 2)
    body = served.office.sent[-1].meta.body
    assert served.office.sent[-1].meta.timestamp == stats
    assert (body["name"], body["clock"], body["rows"]) == ("t", 1, MANY)
    assert len(body["parts"]) == 2
    assert sum(body["parts"]) == MANY
