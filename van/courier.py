"""The van over real sockets: one thread at a time owns the sockets, whoever waits drives them.

A thread that waits for an answer becomes the leader: it polls, receives and hands messages to
`receiver`, for itself and for the followers who wait too. When it has what it wants, a follower
takes over, and where nobody waits for a while a background thread does. So an answer reaches the
thread that wants it without a hop, and messages are seen even while the program computes.

Source: leader/followers (Schmidt et al., PLoP 1995); ps-lite has a receiving thread instead.
"""

from __future__ import annotations

import logging
import os
import sys
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from types import FrameType
from typing import Any

import zmq
from numpy.typing import DTypeLike, NDArray

from van.config import VanConfig
from van.curve import Curve
from van.endpoints import Endpoints, way_under
from van.errors import AddressError, UnreachablePeerError, VanError
from van.local_lane import PeerUser, user_of_peer
from van.message import Message
from van.outgoing import Parcel
from van.timers import Timers

log = logging.getLogger(__name__)

_BATCH = 64  # messages handed on between two looks at the outbox
_GRACE = 0.01  # seconds without a waiting thread before the background thread polls
_HEARTBEAT = 1.0  # seconds after which a poll returns by itself, against a lost wake


class ZmqVan:
    """Moves messages between this node and its peers over ZeroMQ. See `van.van.Van`.

    Args:
        config: limits and habits.
        context: a ZeroMQ context to share (`inproc://`); by default one of its own.
        background: whether a thread receives while nobody waits. A node whose main thread waits
            all the time (server, scheduler) needs none.
        peer_user: tells the user behind a Unix socket.
        curve: keys of this node and who is let in; None: no encryption. Needs its own context.
        listen_on: host to listen on, such as 0.0.0.0, where that is not the one in the address
            that others get to know.

    Raises:
        ConfigError: `[van] transport` asks for the lane, which CURVE rules out.
    """

    def __init__(
        self,
        config: VanConfig | None = None,
        context: zmq.Context[Any] | None = None,
        background: bool = True,
        peer_user: PeerUser = user_of_peer,
        curve: Curve | None = None,
        listen_on: str = "",
    ) -> None:
        self.config = config or VanConfig()
        way_under(curve, self.config.transport)  # before anything needs to be closed
        self.receiver: Callable[[Message], None] = _nobody
        self.reports_waits: float | None = 30.0
        self.on_refused: Callable[[VanError], None] = _ignore
        self._owned_context: zmq.Context[Any] | None = None
        if context is None:
            context = self._owned_context = zmq.Context()
        self._ends = Endpoints(context, self.config, peer_user, curve, listen_on)
        self._refused = self._ends.refused
        self._outbox: deque[Parcel] = deque()
        self._timers = Timers()
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._leader: int | None = None  # thread that owns the sockets
        self._leader_is_background = False
        self._waiting = 0
        self._last_wait = 0.0
        self._closed = threading.Event()
        self._process = os.getpid()
        self._background = (
            threading.Thread(target=self._run_background, name="pslite-van", daemon=True)
            if background
            else None
        )

    @property
    def is_closed(self) -> bool:
        return self._closed.is_set()

    @property
    def address(self) -> str:
        return self._ends.address

    @property
    def counts(self) -> Counter[str]:
        return self._ends.counts

    @property
    def is_driving(self) -> bool:
        return self._leader == threading.get_ident()

    @property
    def has_more(self) -> bool:
        return self._ends.has_more

    def now(self) -> float:
        return time.monotonic()

    def every(self, seconds: float, call: Callable[[], None]) -> None:
        with self._lock:
            self._timers.every(seconds, call, time.monotonic())
        self._ends.wake()  # whoever drives may be about to sleep for longer

    def at(self, time: float, call: Callable[[], None]) -> None:
        with self._lock:
            self._timers.at(time, call)
        if not self.is_driving:
            self._ends.wake()

    def bind(self, address: str) -> str:
        actual = self._ends.bind(address)
        if self._background is not None:
            self._background.start()
        return actual

    def connect(self, node: int, address: str) -> None:
        self._as_owner(lambda: self._ends.connect(node, address))

    def disconnect(self, node: int) -> None:
        def act() -> None:
            self._flush()  # what was queued for it goes first
            self._ends.disconnect(node)

        self._as_owner(act)

    def send(self, message: Message) -> None:
        """Queue `message` for its recipient; any thread, never blocks.

        Raises:
            CodecError: it has arrays that cannot travel.
        """
        self._refuse_fork()
        parcel = self._ends.parcel(message)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("send %r", message)
        leader, me = self._leader, threading.get_ident()
        if leader is None and not self._outbox:
            try:
                is_led = self._try_lead()
                if is_led:
                    self._post(parcel)
            finally:
                if self._leader == me:
                    self._stop_leading()
            if is_led:
                if self._outbox:  # what others queued while they saw us leading
                    self._send_outbox()
                return
        self._outbox.append(parcel)
        if leader != me:
            self._send_outbox()

    def has_room(self, node: int) -> bool:
        """Whether less waits for `node` than `[van] backlog` and `backlog_bytes` allow."""
        limit, waiting = self.config.backlog, self._ends.waiting_for(node)
        if waiting and (len(waiting) >= limit or waiting.nbytes >= self.config.backlog_bytes):
            return False
        return len(self._outbox) < limit

    def empty(self, node: int, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """An array to be filled and sent to `node`, in shared memory where there is some."""
        return self._ends.empty(node, shape, dtype)

    def shares_memory(self, node: int) -> bool:
        """Whether `node` is reached by the local lane; any thread."""
        return self._ends.shares_memory(node)

    def _send_outbox(self) -> None:
        """Send what is queued, or see that whoever leads does."""
        me, is_led = threading.get_ident(), True
        while self._outbox and is_led:
            if self._leader == me:
                return  # whoever leads here sends it
            try:
                is_led = self._try_lead()
                if is_led:
                    self._flush()
            finally:
                if self._leader == me:
                    self._stop_leading()
        if self._outbox:
            self._ends.wake()

    def wait(self, done: Callable[[], bool], timeout: float | None = None) -> bool:
        """Move messages until `done()` or `timeout` seconds are over; returns the last `done()`.

        `done` is called often and by this thread only; it must be quick and not send.
        """
        self._refuse_fork()
        deadline = None if timeout is None else time.monotonic() + timeout
        me = threading.get_ident()
        if self._leader == me:
            if not self._has_leaked(sys._getframe().f_back):  # a handler waits: it goes on leading
                return self._lead_until(done, deadline)
            self._stop_leading()
        try:
            with self._lock:
                if self._leader is None:
                    self._leader = me
                else:
                    self._waiting += 1
                    try:
                        if not self._follow_until(done, deadline):
                            return done()
                    finally:
                        self._waiting -= 1
                        self._last_wait = time.monotonic()
            return self._lead_until(done, deadline)
        finally:
            if self._leader == me:
                self._stop_leading()
                if self._outbox:  # what others queued while they saw us leading
                    self._send_outbox()

    def _has_leaked(self, frame: FrameType | None, *, is_others: bool = False) -> bool:
        """Whether a thread that is said to lead does not, as its stack shows.

        So it is where two signals, whose handlers raised, came at the end of leading. Of another
        thread's frames `f_locals` must not be read: Python 3.11 crashes if that thread goes on
        meanwhile, as it may where a collection runs a finalizer. So one that is in a call of
        another van is taken for the leader until it leaves that.
        """
        while frame is not None:
            if frame.f_code in _LEADING and (is_others or frame.f_locals.get("self") is self):
                return False
            frame = frame.f_back
        return True

    def _refuse_fork(self) -> None:
        if os.getpid() != self._process:
            raise VanError("a forked process cannot use its parent's node; spawn it instead")

    def _follow_until(self, done: Callable[[], bool], deadline: float | None) -> bool:
        """True when this thread now leads, False when it is done or out of time."""
        while not done():
            if self._leader is None:
                self._leader = threading.get_ident()
                return True
            remaining = _HEARTBEAT if deadline is None else deadline - time.monotonic()
            if remaining <= 0:
                return False
            if self._leader_is_background:
                self._ends.wake()
            self._changed.wait(min(remaining, _HEARTBEAT))
        return False

    def _lead_until(self, done: Callable[[], bool], deadline: float | None) -> bool:
        self._waiting += 1
        try:
            while not done():
                if self._closed.is_set():
                    return False
                remaining = _HEARTBEAT if deadline is None else deadline - time.monotonic()
                if remaining <= 0:
                    return False
                self._turn(min(remaining, _HEARTBEAT), done)
            if self._outbox:
                self._flush()
            return True
        finally:
            self._waiting -= 1
            self._last_wait = time.monotonic()

    def _turn(self, timeout: float, done: Callable[[], bool]) -> None:
        """One round as the leader: send, wait for something, hand messages on until `done()`."""
        ends = self._ends
        if self._outbox:
            self._flush()
        message = ends.next_message()
        if message is not None:
            timeout = 0.0
        elif (until_timer := self._timers.next_due - time.monotonic()) < timeout:
            timeout = max(0.0, until_timer)
        ends.poll(timeout, not self._leader_is_background)
        left = _BATCH
        while message is not None or (message := ends.next_message()) is not None:
            if log.isEnabledFor(logging.DEBUG):
                log.debug("got %r", message)
            self.receiver(message)
            message = None
            if self._outbox:
                self._flush()
            left -= 1
            if not left or done():
                break
        while self._refused:
            self.on_refused(self._refused.pop())
        if self._timers.next_due <= time.monotonic():
            self._run_timers()
        if self._outbox:
            self._flush()
        if self._waiting > 1 or self._leader_is_background:
            with self._lock:
                self._changed.notify_all()

    def _run_timers(self) -> None:
        with self._lock:
            calls = self._timers.due(time.monotonic())
        for call in calls:
            try:
                call()
            except Exception:
                log.exception("a timer failed and goes on")

    def _flush(self) -> None:
        while self._outbox:
            self._post(self._outbox.popleft())

    def _post(self, parcel: Parcel) -> None:
        try:
            self._ends.post(parcel)
        except (UnreachablePeerError, AddressError) as error:
            log.warning("dropped a message: %s", error)
            self.counts["undeliverable"] += 1

    def _as_owner(self, act: Callable[[], None]) -> None:
        """Run `act` on the sockets, now, whoever else drives them."""
        if self._leader == threading.get_ident():
            act()
            return
        try:
            with self._lock:
                self._waiting += 1
                try:
                    self._follow_until(lambda: False, None)
                finally:
                    self._waiting -= 1
            act()
        finally:
            if self._leader == threading.get_ident():
                self._stop_leading()
                self._send_outbox()

    def _try_lead(self, background: bool = False) -> bool:
        with self._lock:
            if self._leader is not None:
                return False
            self._leader = threading.get_ident()
            self._leader_is_background = background
            return True

    def _stop_leading(self) -> None:
        with self._lock:
            self._leader = None
            self._leader_is_background = False
            if self._waiting:
                self._changed.notify_all()

    def _run_background(self) -> None:
        while not self._closed.is_set():
            idle = time.monotonic() - self._last_wait
            if self._waiting or idle < _GRACE or not self._try_lead(background=True):
                self._closed.wait(_GRACE)
                if idle > _HEARTBEAT:
                    self._look_for_leader()
                continue
            try:
                while not self._is_background_over():
                    self._turn(_HEARTBEAT, self._is_background_over)
            except Exception:
                log.exception("the background thread failed on a message and goes on")
            finally:
                self._stop_leading()
                self._send_outbox()

    def _look_for_leader(self) -> None:
        """Nobody has waited for long: does the leader lead?"""
        leader = self._leader
        if leader is not None and self._has_leaked(
            sys._current_frames().get(leader), is_others=True
        ):
            with self._lock:
                if self._leader == leader:
                    self._leader = None

    def _is_background_over(self) -> bool:
        return self._waiting > 0 or self._closed.is_set()

    def close(self, linger: float | None = None) -> None:
        """Send what is queued, at most `linger` (by default `[van] linger`) seconds, and close."""
        if self._closed.is_set() or os.getpid() != self._process:
            return
        limit = self.config.linger if linger is None else linger
        if limit > 0:
            self.wait(lambda: not self._outbox and not self._ends.pending, timeout=limit)
        self._closed.set()
        self._ends.wake()
        if self._background is not None and self._background.is_alive():
            self._background.join()
        self._as_owner(lambda: self._ends.close(linger))
        if self._owned_context is not None:
            self._owned_context.term()  # returns when the sockets' linger is over

    def __repr__(self) -> str:
        return f"<ZmqVan {self.address} waiting={self._waiting}>"


_LEADING = frozenset(
    method.__code__
    for method in (
        ZmqVan.send,
        ZmqVan.wait,
        ZmqVan._as_owner,
        ZmqVan._send_outbox,
        ZmqVan._run_background,
    )
)
"""In calls of these a thread leads."""


def new_context() -> zmq.Context[Any]:
    """A context for several vans of one process, which then reach each other by `inproc://`."""
    return zmq.Context()


def _nobody(message: Message) -> None:
    log.warning("nobody takes %r", message)


def _ignore(error: VanError) -> None:
    log.warning("%s", error)
