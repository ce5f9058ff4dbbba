"""A network inside one process whose every step a seed decides: for tests and for debugging.

Nodes run their programs in threads of which exactly one moves at a time. When all of them wait,
the network picks by its random generator what happens next: one message of one link is delivered
(links are first in, first out), a timer that is due is called, or a program whose wait is over goes
on. So one seed is one order of events, and any order that ZeroMQ could bring can come up. Time is
virtual: it moves on only when nothing else can happen. A program can be killed, and another started
in its place, at any moment.

Source: FoundationDB's simulation (Zhou et al., SIGMOD 2021, section 4) in a page of Python.
"""

from __future__ import annotations

import random
import threading
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from van.codec import Buffer, decode, encode
from van.config import VanConfig
from van.errors import AddressError, CodecError, VanError
from van.faults import Delayed, FaultPlan
from van.message import Message
from van.timers import NEVER, Timers

LONGEST_IDLE = 3600.0  # seconds in which only timers were called: whoever waits, waits for ever


class DeadlockError(VanError):
    """Every program waits, no message is under way and no time-out is due."""


class _Killed(BaseException):
    """Unwinds a program that was killed; no handler of errors takes it for one."""


class Program:
    """One node's program: a thread that runs only while it holds the baton."""

    def __init__(self, name: str, run: Callable[[], None], network: LoopbackNetwork) -> None:
        self.name = name
        self.ready: Callable[[], bool] = lambda: True
        self.deadline: float | None = None
        self.failure: BaseException | None = None
        self.ended = False
        self.is_killed = False
        self.vans: list[LoopbackVan] = []  # made while it ran
        self.baton = threading.Event()
        self._run, self._network = run, network
        self.thread = threading.Thread(target=self._main, name=name, daemon=True)

    def _main(self) -> None:
        self.baton.wait()
        self.baton.clear()
        try:
            if not self._network.aborted and not self.is_killed:
                self._run()
        except _Killed:
            pass
        except BaseException as error:
            if not self.is_killed:
                self.failure = error
        self.ended = True
        self._network.baton.set()

    def pause(self) -> None:
        """Give the baton back and wait until it returns."""
        self._network.baton.set()
        self.baton.wait()
        self.baton.clear()
        if self.is_killed:
            raise _Killed
        if self._network.aborted:
            raise DeadlockError("the network was stopped")


def as_sent(message: Message, config: VanConfig) -> list[Buffer]:
    """The frames of a message, in memory of their own: the sender may change its arrays."""
    return [
        frame if isinstance(frame, (bytes, bytearray, memoryview)) else frame.tobytes()
        for frame in encode(message, config)
    ]


class LoopbackNetwork:
    """Holds the messages under way and decides what happens next.

    Args:
        seed: of the order of events.
        config: limits of the codec, through which every message goes.
        plan: what goes wrong; None: nothing does.
    """

    def __init__(
        self, seed: int = 0, config: VanConfig | None = None, plan: FaultPlan | None = None
    ) -> None:
        self.config = config or VanConfig()
        self.plan = plan
        self.now = 0.0
        self.log: list[str] = []
        self.baton = threading.Event()
        self.aborted = False
        self._random = random.Random(seed)
        self._links: dict[tuple[str, str], deque[list[Buffer]]] = {}
        self._delayed = Delayed()
        self._vans: dict[str, LoopbackVan] = {}
        self._programs: list[Program] = []
        self._current: Program | None = None
        self._frozen: set[str] = set()
        self._last_event = 0.0  # when something else than a timer or what it sent happened
        self._is_running = False

    def van(self) -> LoopbackVan:
        """A van on this network; it dies with the program that makes it."""
        van = LoopbackVan(self)
        if self._current is not None:
            self._current.vans.append(van)
        return van

    def spawn(self, name: str, run: Callable[[], None]) -> None:
        """Add a program; it starts with `run_all`, or at once where that is under way."""
        program = Program(name, run, self)
        self._programs.append(program)
        if self._is_running:
            program.thread.start()

    def kill(self, name: str) -> None:
        """End the programs called `name` at once, as kill -9 would: nothing more is sent.

        Not to be called by the program itself.
        """
        for program in self._programs:
            if program.name == name and not program.ended:
                program.is_killed = True
                for van in program.vans:
                    van.close()
                self.log.append(f"{self.now:.3f} {name} killed")

    def freeze(self, name: str) -> None:
        """Let the programs called `name` stand still, as SIGSTOP would; what comes waits."""
        self._frozen.add(name)
        self.log.append(f"{self.now:.3f} {name} stands still")

    def thaw(self, name: str) -> None:
        """Let them go on."""
        self._frozen.discard(name)
        self.log.append(f"{self.now:.3f} {name} goes on")

    def is_over(self, name: str) -> bool:
        """Whether no program called `name` runs any more."""
        return all(program.ended for program in self._programs if program.name == name)

    def run_all(self) -> None:
        """Run all programs to their ends.

        Raises:
            DeadlockError: nothing can happen any more; the text says who waits.
            Whatever a program raised first.
        """
        for program in self._programs:
            program.thread.start()
        self._is_running = True
        try:
            while any(not program.ended for program in self._programs):
                self._step()
                for program in self._programs:
                    if program.failure is not None:
                        raise program.failure
        finally:
            self._is_running = False
            self._abort()

    def _step(self) -> None:
        able = [p for p in self._programs if not p.ended and self._can_go_on(p)]
        vans = self._moving_vans()
        links = [link for link, queue in self._links.items() if queue and link[1] in vans]
        ticking = [van for van in vans.values() if van.timers.next_due <= self.now]
        choices = len(able) + len(links) + len(ticking)
        if not choices:
            self._advance_time()
            return
        pick = self._random.randrange(choices)
        if pick < len(able):
            self._last_event = self.now
            self._resume(able[pick])
        elif pick < len(able) + len(links):
            self._deliver(links[pick - len(able)])
        else:
            ticking[pick - len(able) - len(links)].tick()

    def _moving_vans(self) -> dict[str, LoopbackVan]:
        """By address those whose programs do not stand still."""
        if not self._frozen:
            return self._vans
        still = [van for p in self._programs if p.name in self._frozen for van in p.vans]
        return {address: van for address, van in self._vans.items() if van not in still}

    def _can_go_on(self, program: Program) -> bool:
        if program.name in self._frozen:
            return program.is_killed
        return program.is_killed or program.ready() or self._overdue(program)

    def _overdue(self, program: Program) -> bool:
        return program.deadline is not None and self.now >= program.deadline

    def _advance_time(self) -> None:
        moving = [p for p in self._programs if not p.ended and p.name not in self._frozen]
        deadlines = [p.deadline for p in moving if p.deadline is not None]
        vans = self._moving_vans().values()
        timers = [van.timers.next_due for van in vans if van.timers.next_due < NEVER]
        if self._delayed.next_due is not None:
            timers.append(self._delayed.next_due)
        if not deadlines and self.now - self._last_event < LONGEST_IDLE:
            deadlines = timers
        if not deadlines:
            waiting = ", ".join(p.name for p in self._programs if not p.ended)
            story = "\n".join(self.log[-20:])
            raise DeadlockError(f"nothing can happen; waiting: {waiting}; last events:\n{story}")
        self.now = max(self.now, min([*deadlines, *timers]))
        for link, frames in self._delayed.due(self.now):
            self._links.setdefault(link, deque()).append(frames)

    def _resume(self, program: Program) -> None:
        self.baton.clear()
        self._current = program
        program.baton.set()
        self.baton.wait()
        self._current = None

    def _deliver(self, link: tuple[str, str]) -> None:
        van = self._vans[link[1]]
        try:
            message = decode(self._links[link].popleft(), self.config)
        except CodecError as error:
            van.counts["malformed"] += 1
            self.log.append(f"{self.now:.3f} {link[0]}>{link[1]} malformed: {error}")
            return
        self.log.append(f"{self.now:.3f} {link[0]}>{link[1]} {message!r}")
        van.counts["received"] += 1
        van.receiver(message)

    def _abort(self) -> None:
        self.aborted = True
        for program in self._programs:
            if not program.ended:
                program.baton.set()
        for program in self._programs:
            program.thread.join(timeout=10)

    def wait(self, done: Callable[[], bool], deadline: float | None) -> bool:
        """Block the program that calls until `done()` or virtual time `deadline`."""
        program = self._current
        if program is None:  # a handler waits, while a message is delivered
            while not done():
                self._step()
            return True
        program.ready, program.deadline = done, deadline
        if not done():
            program.pause()
        program.ready, program.deadline = (lambda: True), None
        return done()

    def attach(self, address: str, van: LoopbackVan) -> None:
        """Make `van` reachable."""
        if address in self._vans:
            raise AddressError(address, "is taken")
        self._vans[address] = van

    def detach(self, address: str) -> None:
        """Make an address unreachable; what is under way to it is lost."""
        self._vans.pop(address, None)

    def post(self, source: str, target: str, message: Message) -> int:
        """Put a message on its way, through the codec as on a real network; its bytes."""
        copied = as_sent(message, self.config)
        link = (source, target)
        for after in [0.0] if self.plan is None else self.plan.fate(message.meta, self.now):
            if after:
                self._delayed.add(self.now + after, (link, copied))
            else:
                self._links.setdefault(link, deque()).append(copied)
        return sum(memoryview(frame).nbytes for frame in copied)


class LoopbackVan:
    """A node's van on a `LoopbackNetwork`. See `van.van.Van`."""

    def __init__(self, network: LoopbackNetwork) -> None:
        self.receiver: Callable[[Message], None] = lambda message: None
        self.on_refused: Callable[[VanError], None] = lambda error: None
        self.reports_waits: float | None = None
        self.is_closed = False
        self.is_driving = False
        self.counts: Counter[str] = Counter()
        self.timers = Timers()
        self.address = ""
        self._network = network
        self._peers: dict[int, str] = {}

    @property
    def has_more(self) -> bool:
        return False

    def now(self) -> float:
        return self._network.now

    def every(self, seconds: float, call: Callable[[], None]) -> None:
        self.timers.every(seconds, call, self.now())

    def at(self, time: float, call: Callable[[], None]) -> None:
        self.timers.at(time, call)

    def tick(self) -> None:
        """Call the timers that are due."""
        for call in self.timers.due(self.now()):
            call()

    def bind(self, address: str) -> str:
        self._network.attach(address, self)
        self.address = address
        return address

    def connect(self, node: int, address: str) -> None:
        self._peers[node] = address

    def disconnect(self, node: int) -> None:
        self._peers.pop(node, None)

    def send(self, message: Message) -> None:
        target = self._peers.get(message.meta.recipient)
        if target is None or self.is_closed:
            self.counts["undeliverable"] += 1
            return
        self.counts["sent"] += 1
        self.counts["sent_bytes"] += self._network.post(self.address, target, message)

    def has_room(self, node: int) -> bool:
        return True

    def empty(self, node: int, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        return np.empty(shape, dtype)

    def shares_memory(self, node: int) -> bool:
        return False

    def wait(self, done: Callable[[], bool], timeout: float | None = None) -> bool:
        return self._network.wait(done, None if timeout is None else self.now() + timeout)

    def close(self, linger: float | None = None) -> None:
        if not self.is_closed:
            self.is_closed = True
            self.timers.clear()
            self._network.detach(self.address)
