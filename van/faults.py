"""Faults on purpose: a seeded plan of what becomes of each message, and a van that obeys it.

A `FaultPlan` only decides: a link and the time go in, the delays with which copies of a message
arrive come out (none: it is lost). `FaultyVan` puts a plan around any van, and `LoopbackNetwork`
takes one itself. Each link has a generator of its own, seeded with the plan's seed and its two
ends, so the fate of a link's n-th message does not depend on what other links do.

Source: ps-lite's PS_DROP_MSG, which drops what is received; here what is sent may also come twice,
late or out of order, and links may be cut.
"""

from __future__ import annotations

import heapq
import itertools
import random
import threading
from collections import Counter
from collections.abc import Callable, Collection, Iterable, Mapping
from dataclasses import dataclass, field, fields, replace
from typing import Any

import numpy as np
from numpy.typing import DTypeLike, NDArray

from van.errors import ConfigError, VanError
from van.message import Message, Meta
from van.van import Van

ANY = -1
"""Stands for every node, in the links of a plan."""

Link = tuple[int, int]
"""Node ids of sender and recipient; 0 is a node without an id, `ANY` every node."""


@dataclass(frozen=True, kw_only=True)
class Faults:
    """What happens to the messages of a link, as probabilities from 0 to 1.

    Raises:
        ConfigError: a probability is none.
    """

    drop: float = 0.0
    duplicate: float = 0.0  # comes twice, the second time at any moment of `delay_up_to`
    delay: float = 0.0
    delay_up_to: float = 0.5  # seconds
    reorder: float = 0.0
    reorder_within: float = 0.02  # seconds in which others may overtake it

    def __post_init__(self) -> None:
        for name in ("drop", "duplicate", "delay", "reorder"):
            value = getattr(self, name)
            if not 0 <= value <= 1:
                raise ConfigError(f"expected a probability from 0 to 1, got {value!r}", key=name)
        for name in ("delay_up_to", "reorder_within"):
            if not getattr(self, name) >= 0:
                raise ConfigError(f"expected seconds, got {getattr(self, name)!r}", key=name)

    @classmethod
    def all(cls, share: float) -> Faults:
        """Each fault with probability `share`."""
        return cls(drop=share, duplicate=share, delay=share, reorder=share)

    def __or__(self, other: Faults) -> Faults:
        """What happens to messages that both concern: each fault as likely as in the worse."""
        ours = {part.name: getattr(self, part.name) for part in fields(self)}
        # The time of a fault that cannot happen does not count.
        late = [each.delay_up_to for each in (self, other) if each.delay or each.duplicate]
        overtaken = [each.reorder_within for each in (self, other) if each.reorder]
        times = {
            "delay_up_to": max(late, default=self.delay_up_to),
            "reorder_within": max(overtaken, default=self.reorder_within),
        }
        return Faults(**{name: max(ours[name], getattr(other, name)) for name in ours} | times)

    @property
    def is_none(self) -> bool:
        """Whether nothing can happen."""
        return not (self.drop or self.duplicate or self.delay or self.reorder)


@dataclass(frozen=True)
class Cut:
    """A link on which everything is lost for a while, in seconds since the plan's start."""

    source: int
    target: int
    start: float = 0.0
    stop: float = float("inf")

    def hits(self, link: Link, age: float) -> bool:
        """Whether a message of `link` is lost by it at `age`."""
        return _fits((self.source, self.target), link) and self.start <= age < self.stop


def both_ways(one: int, other: int, start: float = 0.0, stop: float = float("inf")) -> list[Cut]:
    """A partition: nothing passes between two nodes, in either direction."""
    return [Cut(one, other, start, stop), Cut(other, one, start, stop)]


@dataclass(frozen=True)
class Spell:
    """Faults between some nodes and some others, in both directions, for a while.

    Args:
        faults: what happens; None: everything is lost.
        one, other: ids of nodes; None: all.
        start, stop: seconds since the plan's start; by default also before that.
    """

    faults: Faults | None
    one: Collection[int] | None = None
    other: Collection[int] | None = None
    start: float = float("-inf")
    stop: float = float("inf")

    def hits(self, link: Link, age: float) -> bool:
        """Whether it concerns a message of `link` at `age`."""
        if not self.start <= age < self.stop:
            return False
        return self._joins(*link) or self._joins(*reversed(link))

    def _joins(self, source: int, target: int) -> bool:
        is_one = self.one is None or source in self.one
        return is_one and (self.other is None or target in self.other)


@dataclass
class FaultPlan:
    """Decides what becomes of each message. Any thread.

    Args:
        seed: of all chance.
        everywhere: of links that `links` does not name.
        links: faults of single links or, with `ANY` as an end, of all of a node's in one direction.
            The most exact entry counts. Or what says it of any link.
        cuts: links that are dead for a while; `cut` and `heal` change them later.
        spells: what happens for a while, beside all that.
        hits: which messages it concerns, by their headers; None: all.

    Attributes:
        counts: of `passed`, `dropped`, `cut`, `duplicated`, `delayed` and `reordered` messages.
    """

    seed: int = 0
    everywhere: Faults = field(default_factory=Faults)
    links: Mapping[Link, Faults] | Callable[[Link], Faults] = field(default_factory=dict)
    cuts: Iterable[Cut] = ()
    spells: Iterable[Spell] = ()
    hits: Callable[[Meta], bool] | None = None
    counts: Counter[str] = field(default_factory=Counter)

    def __post_init__(self) -> None:
        self.cuts, self.spells = list(self.cuts), list(self.spells)
        self._chances: dict[Link, random.Random] = {}
        self._started: float | None = None
        self._lock = threading.Lock()

    def start(self, now: float) -> None:
        """Count the times of cuts and spells from `now`; else the first message does.

        With infinity they have not begun yet, until this is called again.
        """
        self._started = now

    def cut(self, source: int, target: int) -> None:
        """Lose everything from `source` to `target` from now on."""
        with self._lock:
            self.cuts = [*self.cuts, Cut(source, target)]

    def heal(self, source: int, target: int) -> None:
        """End the cuts of that link."""
        with self._lock:
            link = (source, target)
            self.cuts = [cut for cut in self.cuts if (cut.source, cut.target) != link]

    def faults_of(self, link: Link) -> Faults:
        """The faults of a link."""
        if callable(self.links):
            return self.links(link)
        source, target = link
        for name in (link, (source, ANY), (ANY, target)):
            if name in self.links:
                return self.links[name]
        return self.everywhere

    def fate(self, meta: Meta, now: float) -> list[float]:
        """Seconds after which each copy of a message arrives: none where it is lost.

        Args:
            meta: its header.
            now: seconds on the clock of whoever asks.
        """
        if self.hits is not None and not self.hits(meta):
            return [0.0]
        link = (meta.sender, meta.recipient)
        with self._lock:
            if self._started is None:
                self._started = now
            age, faults = now - self._started, self.faults_of(link)
            spells = [spell.faults for spell in self.spells if spell.hits(link, age)]
            if None in spells or any(cut.hits(link, age) for cut in self.cuts):
                self.counts["cut"] += 1
                return []
            for more in spells:
                faults = faults if more is None else faults | more
            return self._chance(link, faults)

    def _chance(self, link: Link, faults: Faults) -> list[float]:
        if faults.is_none:
            self.counts["passed"] += 1
            return [0.0]
        chance = self._chances.get(link)
        if chance is None:
            chance = self._chances[link] = random.Random(f"{self.seed}/{link[0]}>{link[1]}")
        # As many numbers for each message, so that one probability does not shift the others.
        draws = [chance.random() for _ in range(6)]
        if draws[0] < faults.drop:
            self.counts["dropped"] += 1
            return []
        after = 0.0
        if draws[1] < faults.delay:
            self.counts["delayed"] += 1
            after = draws[2] * faults.delay_up_to
        elif draws[1] < faults.delay + (1 - faults.delay) * faults.reorder:
            self.counts["reordered"] += 1
            after = draws[2] * faults.reorder_within
        arrivals = [after]
        if draws[3] < faults.duplicate:
            self.counts["duplicated"] += 1
            arrivals.append(draws[4] * faults.delay_up_to)
        self.counts["passed"] += 1
        return arrivals


def _fits(pattern: Link, link: Link) -> bool:
    return all(wanted in (ANY, end) for wanted, end in zip(pattern, link, strict=True))


class Delayed:
    """Messages that are to arrive later, by the time at which."""

    def __init__(self) -> None:
        self._heap: list[tuple[float, int, Any]] = []
        self._number = itertools.count()

    def add(self, due: float, what: Any) -> None:
        heapq.heappush(self._heap, (due, next(self._number), what))

    @property
    def next_due(self) -> float | None:
        """When `due` has something, if nothing is added."""
        return self._heap[0][0] if self._heap else None

    def due(self, now: float) -> list[Any]:
        """What is due, first things first."""
        found = []
        while self._heap and self._heap[0][0] <= now:
            found.append(heapq.heappop(self._heap)[2])
        return found


def copy_of(message: Message) -> Message:
    """The message as it is now: whoever sent it may change header and arrays meanwhile."""
    meta = Meta(**{part.name: getattr(message.meta, part.name) for part in fields(Meta)})
    return replace(message, meta=meta, arrays=[np.array(array) for array in message.arrays])


class FaultyVan:
    """A van whose messages meet the faults of a plan as they are sent. See `van.van.Van`.

    With a plan on each node both directions of every link have faults; what is received passes
    unless `receives` is set, where only this node has a plan.

    Args:
        van: moves what is left of the messages.
        plan: decides.
        receives: whether what arrives meets the plan too.
    """

    def __init__(self, van: Van, plan: FaultPlan, *, receives: bool = False) -> None:
        self._van, self.plan = van, plan
        self._take: Callable[[Message], None] = lambda message: None
        self._delayed = Delayed()
        self._changed = threading.Condition()
        self._thread: threading.Thread | None = None
        self._is_over = False
        if receives:
            van.receiver = self._receive
        self._receives = receives

    @property
    def receiver(self) -> Callable[[Message], None]:
        return self._take if self._receives else self._van.receiver

    @receiver.setter
    def receiver(self, take: Callable[[Message], None]) -> None:
        self._take = take
        if not self._receives:
            self._van.receiver = take

    @property
    def on_refused(self) -> Callable[[VanError], None]:
        return self._van.on_refused

    @on_refused.setter
    def on_refused(self, take: Callable[[VanError], None]) -> None:
        self._van.on_refused = take

    @property
    def reports_waits(self) -> float | None:
        return self._van.reports_waits

    @reports_waits.setter
    def reports_waits(self, seconds: float | None) -> None:
        self._van.reports_waits = seconds

    def __getattr__(self, name: str) -> Any:
        """What faults do not concern, also what a van has beyond the protocol."""
        return getattr(self._van, name)

    # Said once more for those who check types: `__getattr__` gives them.
    is_closed: bool
    is_driving: bool
    has_more: bool
    address: str
    counts: Counter[str]
    now: Callable[[], float]
    bind: Callable[[str], str]
    connect: Callable[[int, str], None]
    disconnect: Callable[[int], None]
    every: Callable[[float, Callable[[], None]], None]
    at: Callable[[float, Callable[[], None]], None]
    has_room: Callable[[int], bool]
    shares_memory: Callable[[int], bool]

    def empty(self, node: int, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        return self._van.empty(node, shape, dtype)

    def wait(self, done: Callable[[], bool], timeout: float | None = None) -> bool:
        return self._van.wait(done, timeout)

    def send(self, message: Message) -> None:
        # What comes later is copied first: whoever has the message may change it.
        for after in sorted(self.plan.fate(message.meta, self._van.now()), reverse=True):
            if after:
                self._later(after, self._van.send, copy_of(message))
            else:
                self._van.send(message)

    def _receive(self, message: Message) -> None:
        # A late copy is handed on by this van's own thread, which a receiver must bear.
        for after in sorted(self.plan.fate(message.meta, self._van.now()), reverse=True):
            if after:
                self._later(after, self._take, copy_of(message))
            else:
                self._take(message)

    def _later(self, after: float, act: Callable[[Message], None], message: Message) -> None:
        with self._changed:
            if self._is_over:
                return
            self._delayed.add(self._van.now() + after, (act, message))
            if self._thread is None:
                self._thread = threading.Thread(
                    target=self._release, name="pslite faults", daemon=True
                )
                self._thread.start()
            self._changed.notify()

    def _release(self) -> None:
        while True:
            with self._changed:
                due = self._delayed.due(self._van.now())
                if not due:
                    if self._is_over:
                        return
                    next_due = self._delayed.next_due
                    left = None if next_due is None else max(0.0, next_due - self._van.now())
                    self._changed.wait(left)
                    continue
            for act, message in due:
                if not self._van.is_closed:
                    act(message)

    def close(self, linger: float | None = None) -> None:
        """What is still delayed is lost, as on a network."""
        with self._changed:
            self._is_over = True
            self._delayed = Delayed()
            self._changed.notify()
        if self._thread is not None and self._thread is not threading.current_thread():
            self._thread.join()
        self._van.close(linger)

    def __repr__(self) -> str:
        return f"<FaultyVan {self._van!r} {dict(self.plan.counts)}>"
