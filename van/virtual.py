"""A network inside one process whose links have latency and bandwidth, on a virtual clock.

As on `van.loopback`, nodes run their programs in threads of which one moves at a time, and no
time passes but where all wait. But when a message arrives is not up to chance: `van.wires` says it,
events wait in a heap for their time, and what is due at the same time happens in the order in which
it was caused. So the same programs give the same run, and the clock says how long it would take.

Only what an event may have changed is looked at after it, so that many nodes cost no more an event
than few.
"""

from __future__ import annotations

import heapq
import itertools
from collections import deque
from collections.abc import Callable
from functools import partial

from van.codec import Buffer, decode
from van.config import VanConfig
from van.faults import FaultPlan
from van.loopback import (
    LONGEST_IDLE,
    DeadlockError,
    LoopbackNetwork,
    LoopbackVan,
    Program,
    as_sent,
)
from van.message import Message
from van.timers import NEVER
from van.wires import Wires

_TOLD = 20  # messages that a DeadlockError shows


class VirtualNetwork(LoopbackNetwork):
    """Moves messages as `wires` allow.

    Args:
        wires: latency and bandwidth.
        config: limits of the codec, through which every message goes.
        plan: what goes wrong; None: nothing does.

    Attributes:
        messages: that were delivered.
    """

    def __init__(
        self, wires: Wires, config: VanConfig | None = None, plan: FaultPlan | None = None
    ) -> None:
        super().__init__(0, config, plan)
        self.wires = wires
        self.messages = 0
        self._events: list[tuple[float, int, Callable[[], None]]] = []
        self._serials = itertools.count()
        self._able: deque[Program] = deque()
        self._paused: dict[Program, int] = {}  # the serial number of its wait
        self._recent: deque[tuple[float, str, str, Message]] = deque(maxlen=_TOLD)

    @property
    def current(self) -> Program | None:
        """The program that moves; None while an event happens."""
        return self._current

    def van(self) -> VirtualVan:
        van = VirtualVan(self)
        if self._current is not None:
            self._current.vans.append(van)
        return van

    def at(self, time: float, call: Callable[[], None]) -> None:
        """Call that at virtual `time`, after what is due by then already."""
        heapq.heappush(self._events, (time, next(self._serials), call))

    def sleep(self, seconds: float) -> None:
        """Let virtual time pass for the program that calls: it computes meanwhile."""
        self.wait(lambda: False, self.now + seconds)

    def spawn(self, name: str, run: Callable[[], None]) -> None:
        super().spawn(name, run)
        self._able.append(self._programs[-1])

    def kill(self, name: str) -> None:
        super().kill(name)
        for program in list(self._paused):
            if program.is_killed:
                self._wake(program)

    def run_all(self) -> None:
        for program in self._programs:
            program.thread.start()
        self._is_running = True
        try:
            while any(not program.ended for program in self._programs):
                self._step()
        finally:
            self._is_running = False
            self._abort()

    def _step(self) -> None:
        """Let programs that can go on do so; without any, let the next event happen."""
        if not self._able:
            self._happen()
        while self._able:
            program = self._able.popleft()
            self._last_event = self.now
            self._resume(program)
            if program.failure is not None:
                raise program.failure

    def _happen(self) -> None:
        if not self._events:
            raise self._deadlock()
        self.now, _, call = heapq.heappop(self._events)
        call()

    def _deadlock(self) -> DeadlockError:
        waiting = ", ".join(p.name for p in self._programs if not p.ended)
        story = "\n".join(f"{now:.6f} {a}>{b} {what!r}" for now, a, b, what in self._recent)
        return DeadlockError(f"nothing can happen; waiting: {waiting}; last messages:\n{story}")

    def _wake(self, program: Program) -> None:
        if self._paused.pop(program, None) is not None:
            self._able.append(program)

    def look_at(self, program: Program | None) -> None:
        """Something has happened that `program` may wait for."""
        if program is not None and program in self._paused and program.ready():
            self._wake(program)

    def wait(self, done: Callable[[], bool], deadline: float | None) -> bool:
        program = self._current
        if program is None:  # a handler waits, while a message is delivered
            if deadline is not None:
                self.at(deadline, lambda: None)  # so that something happens then
            while not done() and (deadline is None or self.now < deadline):
                self._step()
            return done()
        if done():
            return True
        program.ready, program.deadline, serial = done, deadline, next(self._serials)
        self._paused[program] = serial
        if deadline is not None:
            self.at(deadline, partial(self._time_out, program, serial))
        program.pause()
        program.ready, program.deadline = (lambda: True), None
        return done()

    def _time_out(self, program: Program, serial: int) -> None:
        if self._paused.get(program) == serial:
            self._wake(program)

    def tick(self, van: VirtualVan, due: float) -> None:
        """Call a van's timers, which were due at `due` when this was planned, and plan the next.

        Raises:
            DeadlockError: nothing but timers has happened for an hour, and no program has a
                time-out: whoever waits, waits for ever.
        """
        if van.is_closed or van.timers.next_due != due:
            return
        is_hopeless = all(program.deadline is None for program in self._paused)
        if is_hopeless and self.now - self._last_event > LONGEST_IDLE:
            raise self._deadlock()
        van.tick()
        self.look_at(van.owner)
        self.plan_tick(van)

    def plan_tick(self, van: VirtualVan) -> None:
        """See to it that the van's next timer is called."""
        due = van.timers.next_due
        if due < NEVER:
            self.at(due, partial(self.tick, van, due))

    # -- messages -----------------------------------------------------------------------------

    def post(self, source: str, target: str, message: Message) -> int:
        frames = as_sent(message, self.config)
        nbytes = sum(memoryview(frame).nbytes for frame in frames)
        first_bit = self.wires.leave(source, nbytes, self.now, target)
        for after in [0.0] if self.plan is None else self.plan.fate(message.meta, self.now):
            self.at(first_bit + after, partial(self._arrive, source, target, frames, nbytes))
        return nbytes

    def _arrive(self, source: str, target: str, frames: list[Buffer], nbytes: int) -> None:
        last_bit = self.wires.arrive(target, nbytes, self.now, source)
        if last_bit > self.now:
            self.at(last_bit, partial(self._hand_over, source, target, frames))
        else:
            self._hand_over(source, target, frames)

    def _hand_over(self, source: str, target: str, frames: list[Buffer]) -> None:
        van = self._vans.get(target)
        if van is None:  # it is gone, and what was under way to it lost
            return
        message = decode(frames, self.config)
        self._recent.append((self.now, source, target, message))
        self.messages += 1
        van.counts["received"] += 1
        van.receiver(message)
        assert isinstance(van, VirtualVan)
        self.look_at(van.owner)


class VirtualVan(LoopbackVan):
    """A node's van on a `VirtualNetwork`. See `van.van.Van`.

    Attributes:
        owner: the program that waits on it.
    """

    _network: VirtualNetwork

    def __init__(self, network: VirtualNetwork) -> None:
        super().__init__(network)
        self.owner: Program | None = None

    def every(self, seconds: float, call: Callable[[], None]) -> None:
        before = self.timers.next_due
        super().every(seconds, call)
        if self.timers.next_due != before:
            self._network.plan_tick(self)

    def at(self, time: float, call: Callable[[], None]) -> None:
        before = self.timers.next_due
        super().at(time, call)
        if self.timers.next_due != before:
            self._network.plan_tick(self)

    def wait(self, done: Callable[[], bool], timeout: float | None = None) -> bool:
        self.owner = self._network.current or self.owner
        return super().wait(done, timeout)
