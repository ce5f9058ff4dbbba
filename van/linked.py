"""A van whose messages take the time that a simulated network needs: bandwidth, latency and loss.

Each node of a job has one, so both directions of a link are heeded. What is sent waits here until
its last bit would be at the other end; what is received waits for this node's own line, which
others may have filled. `van.wires` says how long; whatever really moves the messages, shared memory
included, is used as a network would be. Control messages (heartbeats, say) and those of a high
priority do not wait behind the rest. Questions from outside the cluster pass as they are.

A message that still waits here is not sent again: it can only be behind itself.
"""

from __future__ import annotations

import logging
import os
from collections import Counter
from collections.abc import Callable
from dataclasses import fields, replace
from functools import lru_cache, partial
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from van.codec import Buffer, encode
from van.config import VanConfig
from van.faults import Delayed, FaultPlan, Faults, FaultyVan
from van.faults import Link as Ends
from van.intake import Intake
from van.message import Control, Message, Meta
from van.van import Van
from van.wires import Lines, Wires

log = logging.getLogger(__name__)

_FROM_OUTSIDE = (Control.QUERY, Control.REPORT)
_SOON = 20e-6  # seconds, for which no thread can be put to sleep
_MOST_LINKS = 4096

NameOf = Callable[[int], str | None]
"""The name of a node, as lines are named; None: it is none of the cluster's."""


def losses(lines: Lines, name_of: NameOf) -> Callable[[Ends], Faults]:
    """What links lose, for a `FaultPlan`."""

    @lru_cache(maxsize=_MOST_LINKS)
    def of_link(link: Ends) -> Faults:
        source, target = map(name_of, link)
        if source is None or target is None:
            return Faults()
        return Faults(drop=lines.link(source, target).loss)

    return of_link


class LinkedVan(FaultyVan):
    """A van in a simulated network. See `van.van.Van`.

    Args:
        van: moves the messages.
        lines: what the network is like.
        name: of this node.
        name_of: of others, by id.
        config: habits of `van`.
        seed: of what is lost.
    """

    def __init__(
        self, van: Van, lines: Lines, name: str, name_of: NameOf, config: VanConfig, seed: int
    ) -> None:
        def named(node: int) -> str | None:
            return name_of(node) if node else name  # none yet: it is this one that sends

        plan = FaultPlan(seed, links=losses(lines, named))
        super().__init__(van, plan, receives=True)
        self._wires, self._name, self._name_of = Wires(lines=lines), name, name_of
        self._config, self._process = config, os.getpid()
        self._messages: Counter[int] = Counter()  # that wait, by recipient
        self._nbytes: Counter[int] = Counter()
        self._keys: set[tuple[object, ...]] = set()
        self._leaving: set[int] = set()  # to be disconnected after what waits
        self._intake = Intake(self._wires.seconds(name))
        self._coming = Delayed()

    def send(self, message: Message) -> None:
        meta = message.meta
        target = self._name_of(meta.recipient)
        if target is None or meta.control in _FROM_OUTSIDE:
            self._van.send(message)
            return
        nbytes, key = self._size(message), _key(meta)
        with self._changed:
            if key in self._keys:
                self.counts["still under way"] += 1
                return
            now = self._van.now()
            first_bit = self._wires.leave(self._name, nbytes, now, target, _is_urgent(meta))
            due = self._wires.lands(self._name, nbytes, first_bit, target)
            if not self.plan.fate(meta, now):
                return
            if due > now:
                self._hold(due - now, message, nbytes, key)
                return
        self._van.send(message)

    def _hold(self, after: float, message: Message, nbytes: int, key: Any) -> None:
        node = message.meta.recipient
        self._messages[node] += 1
        self._nbytes[node] += nbytes
        if key is not None:
            self._keys.add(key)
        self._later(after, partial(self._go, nbytes, key), self._kept(message))

    def _go(self, nbytes: int, key: Any, message: Message) -> None:
        """The last bit of a message would be there: move it."""
        node = message.meta.recipient
        try:
            self._van.send(message)
        except Exception:
            log.exception("a message could not be sent")
        with self._changed:
            self._keys.discard(key)
            self._messages[node] -= 1
            self._nbytes[node] -= nbytes
            is_last = not self._messages[node]
            if is_last:
                del self._messages[node], self._nbytes[node]
            parts = is_last and node in self._leaving
            self._leaving -= {node} if parts else set()
        if parts:
            self._van.disconnect(node)

    def _kept(self, message: Message) -> Message:
        """The message as it is now.

        Its header may be used again, and so may small arrays, which a van copies; large ones it
        does not, so they stay.
        """
        meta = Meta(**{part.name: getattr(message.meta, part.name) for part in fields(Meta)})
        arrays = [
            np.array(array) if array.nbytes < self._config.zero_copy_from else array
            for array in map(np.asarray, message.arrays)
        ]
        return replace(message, meta=meta, arrays=arrays)

    def _size(self, message: Message) -> int:
        header, *arrays = encode(message, self._config)
        return len(header) + sum(map(_nbytes, arrays))

    def _receive(self, message: Message) -> None:
        meta = message.meta
        source = self._name_of(meta.sender) if meta.sender else None
        if source is None or meta.control in _FROM_OUTSIDE or not self._wires.seconds(self._name):
            self._take(message)
            return
        nbytes, now = self._size(message), self._van.now()
        first_bit = 2 * now - self._wires.lands(source, nbytes, now, self._name)
        due = self._intake.arrive(nbytes, first_bit, now)
        if _is_urgent(meta) or (due <= now + _SOON and self._coming.next_due is None):
            self._take(message)
            return
        self._coming.add(due, message)
        self._van.at(due, self._hand_on)

    def _hand_on(self) -> None:
        """Called by the thread that drives the van: it alone takes what comes."""
        for message in self._coming.due(self._van.now()):
            self._take(message)

    def connect(self, node: int, address: str) -> None:
        self._leaving.discard(node)
        self._van.connect(node, address)

    def disconnect(self, node: int) -> None:
        with self._changed:
            if node in self._messages:
                self._leaving.add(node)
                return
        self._van.disconnect(node)

    def has_room(self, node: int) -> bool:
        is_full = self._messages.get(node, 0) >= self._config.backlog
        if is_full or self._nbytes.get(node, 0) >= self._config.backlog_bytes:
            return False
        return self._van.has_room(node)

    def shares_memory(self, node: int) -> bool:
        """A network lies between, as far as anybody can tell."""
        return False

    def empty(self, node: int, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        return np.empty(shape, dtype)

    def close(self, linger: float | None = None) -> None:
        limit = self._config.linger if linger is None else linger
        is_ours = os.getpid() == self._process and not self._van.is_closed
        if self._messages and limit > 0 and is_ours:
            self._van.wait(lambda: not self._messages, limit)
        super().close(linger)

    def __repr__(self) -> str:
        return f"<LinkedVan {self._name} {self._van!r} waiting={self._messages.total()}>"


def _nbytes(frame: Buffer | NDArray[Any]) -> int:
    return frame.nbytes if isinstance(frame, (np.ndarray, memoryview)) else len(frame)


def _is_urgent(meta: Meta) -> bool:
    return bool(meta.control) or meta.priority > 0


def _key(meta: Meta) -> tuple[object, ...] | None:
    """What a message shares with its repeats; None: it is never the same."""
    if meta.control:
        return None
    who = (meta.recipient, meta.recipient_incarnation, meta.incarnation)
    what = (meta.flags, meta.kind, meta.app, meta.customer, meta.cmd)
    return (*who, *what, meta.timestamp, meta.piece)
