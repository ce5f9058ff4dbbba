"""A simulation of the consistency modes alone: what many workers take too long for as real nodes.

Each server here is what decides in a real one: the modes of `kv.consistency` and their `Progress`,
asked in the same order (`kv.table_server`, `kv.engine`). The messages are those that real nodes
send, by number and size (encoded once by `van.codec`), and `van.wires` says when they arrive. What
is left out: rows and optimisers, resending, threads, and the cutting of very large requests.
"""

from __future__ import annotations

import heapq
import itertools
from collections.abc import Callable
from functools import lru_cache
from typing import Any

import numpy as np

from kv.consistency.base import Context, Update
from kv.consistency.modes import mode_of
from kv.consistency.progress import Progress
from kv.consistency.settings import SemiSync
from kv.cutting import cut_keys
from kv.placement import SlotMap
from kv.table_protocol import TABLES_APP, Command, table_id
from postoffice.node import Role, node_id
from pslite.simulate.outcome import Outcome
from pslite.simulate.staleness import Staleness
from pslite.simulate.workload import TABLE, Workload
from van.config import VanConfig
from van.loopback import as_sent
from van.message import Flag, Message, Meta, answer_to
from van.wires import Wires

_ONE_KEY = np.zeros(1, np.uint64)
_ONE_VALUE = np.zeros((1, 1), np.float32)
_EVERYWHERE = Flag.PUSH | Flag.EVERYWHERE
_LIMITS = VanConfig()
_USUAL = 200  # timestamps and clocks of the messages whose sizes stand for all

Act = Callable[..., None]


class Events:
    """Messages under way and whatever else has its time.

    Attributes:
        now: virtual seconds.
        messages: that have arrived.
    """

    def __init__(self, wires: Wires) -> None:
        self.now = 0.0
        self.messages = 0
        self._wires = wires
        self._heap: list[tuple[float, int, Act, tuple[Any, ...]]] = []
        self._serials = itertools.count()

    def at(self, time: float, act: Act, *what: Any) -> None:
        """Call `act(*what)` at `time`, after what is due by then already."""
        heapq.heappush(self._heap, (time, next(self._serials), act, what))

    def send(self, source: str, target: str, nbytes: int, act: Act, *what: Any) -> None:
        """Send a message; `act(*what)` is what its receiver does."""
        first_bit = self._wires.leave(source, nbytes, self.now, target)
        self.at(first_bit, self._arrive, source, target, nbytes, act, what)

    def send_unheeded(self, source: str, target: str, nbytes: int) -> None:
        """Send a small message that changes nothing where it arrives: it only takes its line."""
        self._wires.leave(source, nbytes, self.now, target)
        self.messages += 1

    def _arrive(
        self, source: str, target: str, nbytes: int, act: Act, what: tuple[Any, ...]
    ) -> None:
        self.messages += 1
        last_bit = self._wires.arrive(target, nbytes, self.now, source)
        if last_bit > self.now:
            self.at(last_bit, act, *what)
        else:
            act(*what)

    def run(self) -> None:
        """Until nothing is left to happen."""
        heap = self._heap
        while heap:
            self.now, _, act, what = heapq.heappop(heap)
            act(*what)


class Sizes:
    """Bytes of the messages about so many keys of one table.

    Args:
        says_position: whether ends of steps say where in the rounds their worker is.
    """

    def __init__(self, keys: int, dim: int, says_position: bool) -> None:
        names, values = np.zeros(keys, np.uint64), np.zeros((keys, dim), np.float32)
        table = (table_id(TABLE), _USUAL, ())
        pull = self._request(Command.PULL, Flag.PULL, clocks=(table,), body={"create": True})
        push = self._request(Command.PUSH, Flag.PUSH, clocks=(table,))
        body: dict[str, Any] = {"clock": _USUAL}
        said: dict[str, Any] | None = None
        if says_position:
            body["position"], said = _USUAL, {"round": _USUAL}
        step = self._request(Command.STEP, _EVERYWHERE, body=body)
        self.pull, self.pulled = _size(pull, names), _size(_answer(pull, table), values)
        self.push, self.pushed = _size(push, names, values), _size(_answer(push, table))
        self.step, self.stepped = _size(step), _size(_answer(step, body=said))

    @staticmethod
    def _request(command: Command, flags: Flag, **fields: Any) -> Meta:
        return Meta(
            sender=node_id(Role.WORKER, 0),
            recipient=node_id(Role.SERVER, 0),
            incarnation=_USUAL,
            recipient_incarnation=_USUAL,
            flags=flags,
            app=TABLES_APP,
            timestamp=_USUAL,
            oldest=_USUAL,
            piece=1,
            epoch=1,
            cmd=command,
            **fields,
        )


@lru_cache(maxsize=4096)
def sizes_of(keys: int, dim: int, says_position: bool) -> Sizes:
    """`Sizes`, made once."""
    return Sizes(keys, dim, says_position)


def _answer(request: Meta, *clocks: Any, body: Any = None) -> Meta:
    answer = answer_to(request, clocks=clocks, body=body)
    answer.sender, answer.incarnation, answer.epoch = request.recipient, _USUAL, 1
    return answer


def _size(meta: Meta, *arrays: Any) -> int:
    return sum(memoryview(frame).nbytes for frame in as_sent(Message(meta, list(arrays)), _LIMITS))


class CoreServer:
    """What decides in a server.

    Args:
        name: its line.
        work: the simulation.
        events: what happens when.
        staleness: counts what counts.
    """

    def __init__(self, name: str, work: Workload, events: Events, staleness: Staleness) -> None:
        self.name = name
        self._progress = Progress(work.workers)
        context = Context(TABLE, self._progress, settings=work.consistency, now=lambda: events.now)
        self.mode = staleness.watch(mode_of(context))
        self._held: list[tuple[CoreWorker, int]] = []

    def pull(self, worker: CoreWorker, step: int) -> None:
        if self.mode.may_pull(worker.rank, step):
            worker.hear(self, self.mode.clock)
            worker.answer(self, Command.PULL)
        else:
            self._held.append((worker, step))

    def push(self, worker: CoreWorker, step: int, base: int) -> None:
        self.mode.check_push(worker.rank, step)
        self.mode.on_push(worker.rank, step, Update(_ONE_KEY, _ONE_VALUE, base=base))
        worker.answer(self, Command.PUSH)

    def step(self, worker: CoreWorker, step: int, position: int) -> None:
        if self._progress.step(worker.rank, step, position):
            self._settle()
        worker.answer(self, Command.STEP)

    def finish(self, worker: CoreWorker) -> None:
        if self._progress.finish(worker.rank):
            self._settle()

    def _settle(self) -> None:
        for due in self.mode.due():
            self.mode.total(due)
        if self.mode.settled():
            held, self._held = self._held, []
            for worker, step in held:
                self.pull(worker, step)


class CoreWorker:
    """A worker's steps: pull, compute, push, and so on.

    Attributes:
        lasting: seconds until the end of the last computation so far.
    """

    def __init__(
        self, rank: int, work: Workload, events: Events, servers: list[CoreServer], tell: Act
    ) -> None:
        self.rank, self.name = rank, f"worker {rank}"
        self.lasting = 0.0
        self._events, self._servers, self._tell = events, servers, tell
        self._times: list[float] = work.times[rank].tolist()
        self._says_steps = work.consistency.counts_steps
        self._step = self._missing = self._position = 0
        self._clocks: dict[str, int] = {}  # of the last pull, by server
        cut = cut_keys(
            work.keys_of(rank), work.spec.dim, True, SlotMap.even(len(servers)), len(servers)
        )
        counts = np.diff(cut.bounds).tolist()
        self._sizes = {
            server.name: sizes_of(count, work.spec.dim, isinstance(work.consistency, SemiSync))
            for server, count in zip(servers, counts, strict=True)
        }
        self._owners = [s for s, count in zip(servers, counts, strict=True) if count]

    def begin(self) -> None:
        """Ask for what the next step needs."""
        self._missing = len(self._owners)
        for server in self._owners:
            size = self._sizes[server.name].pull
            self._events.send(self.name, server.name, size, server.pull, self, self._step)

    def hear(self, server: CoreServer, clock: int) -> None:
        """A server's clock, in the answer that it sends."""
        self._clocks[server.name] = clock

    def answer(self, server: CoreServer, command: Command) -> None:
        """What `server` answers at this moment goes on its way."""
        sizes, events = self._sizes[server.name], self._events
        if command is Command.PULL:
            events.send(server.name, self.name, sizes.pulled, self._take)
        else:
            size = sizes.pushed if command is Command.PUSH else sizes.stepped
            events.send_unheeded(server.name, self.name, size)

    def _take(self) -> None:
        self._missing -= 1
        if not self._missing:
            self._events.at(self._events.now + self._times[self._step], self._end_step)

    def _end_step(self) -> None:
        self.lasting = self._events.now
        for server in self._owners:
            what = self, self._step, self._clocks[server.name]
            size = self._sizes[server.name].push
            self._events.send(self.name, server.name, size, server.push, *what)
        self._position = max(self._position, *self._clocks.values()) + 1
        if self._says_steps:
            for server in self._servers:
                size = self._sizes[server.name].step
                where = self, self._step, self._position
                self._events.send(self.name, server.name, size, server.step, *where)
        self._step += 1
        self._tell(1)
        if self._step < len(self._times):
            self.begin()
        else:
            for server in self._servers:
                size = self._sizes[server.name].step
                self._events.send(self.name, server.name, size, server.finish, self)


def run_cores(work: Workload, tell: Act = lambda steps: None) -> Outcome:
    """Simulate `work`; `tell` hears of each step."""
    config = work.config
    wires, staleness = Wires(lines=config.network), Staleness()
    events = Events(wires)
    servers = [CoreServer(f"server {n}", work, events, staleness) for n in range(config.servers)]
    workers = [CoreWorker(rank, work, events, servers, tell) for rank in range(work.workers)]
    for worker in workers:
        worker.begin()
    events.run()
    return Outcome(
        work.mode,
        work.workers,
        "cores",
        config.steps,
        work.times.sum(axis=1).tolist(),
        [worker.lasting for worker in workers],
        staleness.counts,
        sum(getattr(server.mode, "dropped", 0) for server in servers),
        events.messages,
        wires.sent.total(),
    )
