"""The van over ZeroMQ: one thread at a time owns the sockets, whoever waits drives them.

A thread that waits for an answer becomes the leader: it polls, receives and hands messages to
`receiver`, for itself and for the followers who wait too. When it has what it wants, a follower
takes over, and where nobody waits for a while a background thread does. So an answer reaches the
thread that wants it without a hop, and messages are seen even while the program computes.

Source: leader/followers (Schmidt et al., PLoP 1995); ps-lite has a receiving thread instead.
"""

from __future__ import annotations

import logging
import os
import threading
import time
from collections import Counter, deque
from collections.abc import Callable
from typing import Any

import zmq

from van.codec import Frame, encode
from van.config import VanConfig
from van.errors import ProtocolVersionError, UnreachablePeerError, VanError
from van.message import Message
from van.zmq_sockets import ZmqSockets

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
    """

    def __init__(
        self,
        config: VanConfig | None = None,
        context: zmq.Context[Any] | None = None,
        background: bool = True,
    ) -> None:
        self.config = config or VanConfig()
        self.receiver: Callable[[Message], None] = _nobody
        self.reports_waits: float | None = 30.0
        self.on_refused: Callable[[ProtocolVersionError], None] = _ignore
        self._owned_context: zmq.Context[Any] | None = None
        if context is None:
            context = self._owned_context = zmq.Context()
        self._sockets = ZmqSockets(context, self.config)
        self._outbox: deque[tuple[int, list[Frame]]] = deque()
        self._changed = threading.Condition()
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
        return self._sockets.address

    @property
    def counts(self) -> Counter[str]:
        return self._sockets.counts

    def now(self) -> float:
        return time.monotonic()

    def bind(self, address: str) -> str:
        actual = self._sockets.bind(address)
        if self._background is not None:
            self._background.start()
        return actual

    def connect(self, node: int, address: str) -> None:
        self._as_owner(lambda: self._sockets.connect(node, address))

    def disconnect(self, node: int) -> None:
        def act() -> None:
            self._flush()  # what was queued for it goes first
            self._sockets.disconnect(node)

        self._as_owner(act)

    def send(self, message: Message) -> None:
        """Queue `message` for its recipient; any thread, never blocks.

        Raises:
            CodecError: it has arrays that cannot travel.
        """
        self._refuse_fork()
        frames = encode(message, self.config)
        if log.isEnabledFor(logging.DEBUG):
            log.debug("send %r", message)
        self._outbox.append((message.meta.recipient, frames))
        if self._leader == threading.get_ident():
            return  # flushed when this turn ends
        self._send_outbox()

    def _send_outbox(self) -> None:
        """Send what is queued, or see that whoever leads does."""
        while self._outbox and self._try_lead():
            try:
                self._flush()
            finally:
                self._stop_leading()
        if self._outbox:
            self._sockets.wake()

    def wait(self, done: Callable[[], bool], timeout: float | None = None) -> bool:
        """Move messages until `done()` or `timeout` seconds are over; returns the last `done()`.

        `done` is called often and by this thread only; it must be quick and not send.
        """
        self._refuse_fork()
        deadline = None if timeout is None else time.monotonic() + timeout
        if self._leader == threading.get_ident():  # a handler waits: it goes on leading
            return self._lead_until(done, deadline)
        with self._changed:
            self._waiting += 1
            try:
                if not self._follow_until(done, deadline):
                    return done()
            finally:
                self._waiting -= 1
                self._last_wait = time.monotonic()
        try:
            return self._lead_until(done, deadline)
        finally:
            self._stop_leading()
            self._send_outbox()  # what others queued while they saw us leading

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
                self._sockets.wake()
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
                self._turn(min(remaining, _HEARTBEAT))
            self._flush()
            return True
        finally:
            self._waiting -= 1
            self._last_wait = time.monotonic()

    def _turn(self, timeout: float) -> None:
        """One round as the leader: send, wait for something, hand it on."""
        self._flush()
        if self._sockets.poll(timeout):
            for message in self._sockets.receive(_BATCH):
                if log.isEnabledFor(logging.DEBUG):
                    log.debug("got %r", message)
                self.receiver(message)
        while self._sockets.refused:
            self.on_refused(self._sockets.refused.pop())
        self._flush()
        if self._waiting > 1 or self._leader_is_background:
            with self._changed:
                self._changed.notify_all()

    def _flush(self) -> None:
        while self._outbox:
            node, frames = self._outbox.popleft()
            try:
                self._sockets.send(node, frames)
            except UnreachablePeerError as error:
                log.warning("dropped a message: %s", error)
                self.counts["undeliverable"] += 1

    def _as_owner(self, act: Callable[[], None]) -> None:
        """Run `act` on the sockets, now, whoever else drives them."""
        if self._leader == threading.get_ident():
            act()
            return
        with self._changed:
            self._waiting += 1
            try:
                self._follow_until(lambda: False, None)
            finally:
                self._waiting -= 1
        try:
            act()
        finally:
            self._stop_leading()
            self._send_outbox()

    def _try_lead(self, background: bool = False) -> bool:
        with self._changed:
            if self._leader is not None:
                return False
            self._leader = threading.get_ident()
            self._leader_is_background = background
            return True

    def _stop_leading(self) -> None:
        with self._changed:
            self._leader = None
            self._leader_is_background = False
            if self._waiting:
                self._changed.notify_all()

    def _run_background(self) -> None:
        while not self._closed.is_set():
            idle = time.monotonic() - self._last_wait
            if self._waiting or idle < _GRACE or not self._try_lead(background=True):
                self._closed.wait(_GRACE)
                continue
            try:
                while not self._waiting and not self._closed.is_set():
                    self._turn(_HEARTBEAT)
            except Exception:
                log.exception("the background thread failed on a message and goes on")
            finally:
                self._stop_leading()
                self._send_outbox()

    def close(self, linger: float | None = None) -> None:
        """Send what is queued, at most `linger` (by default `[van] linger`) seconds, and close."""
        if self._closed.is_set() or os.getpid() != self._process:
            return
        limit = self.config.linger if linger is None else linger
        if limit > 0:
            self.wait(lambda: not self._outbox and not self._sockets.pending, timeout=limit)
        self._closed.set()
        self._sockets.wake()
        if self._background is not None and self._background.is_alive():
            self._background.join()
        self._as_owner(lambda: self._sockets.close(linger))
        if self._owned_context is not None:
            self._owned_context.term()  # returns when the sockets' linger is over

    def __repr__(self) -> str:
        return f"<ZmqVan {self.address} waiting={self._waiting}>"


def new_context() -> zmq.Context[Any]:
    """A context for several vans of one process, which then reach each other by `inproc://`."""
    return zmq.Context()


def _nobody(message: Message) -> None:
    log.warning("nobody takes %r", message)


def _ignore(error: ProtocolVersionError) -> None:
    log.warning("%s", error)
