"""What is to go wrong in a job, clause by clause; `pslite.chaos.parsing` reads it from text.

    kill server@20s                              a process ends at once, as by kill -9
    stop worker:1@30s for 10s                    it stands still for a while (SIGSTOP, SIGCONT)
    cont worker:1@50s                            it goes on
    restart server:0@checkpoint                  it is killed, and started again by the launcher
    drop 2%                                      of all messages; also duplicate, delay, reorder
    delay 5% up to 300ms between server and worker:0 from 10s for 20s
    partition server:1 from worker:0@40s for 5s  nothing passes between the two

Times count from the moment when all nodes have met. A process may also meet its fault at a moment
of the job: `@start`, `@barrier`, `@checkpoint`, `@shutdown`, the n-th such, `@barrier:3`, or some
time after it, `@barrier:3+2s`.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal, get_args

from postoffice.node import Role
from van.quantities import SECONDS, format_quantity

Act = Literal["kill", "stop", "cont", "restart"]
Event = Literal["start", "barrier", "checkpoint", "shutdown"]
Harm = Literal["drop", "duplicate", "delay", "reorder"]
ACTS, EVENTS, HARMS = get_args(Act), get_args(Event), get_args(Harm)
ROLES = (Role.SCHEDULER, Role.SERVER, Role.WORKER, Role.DISPATCHER)


@dataclass(frozen=True)
class Who:
    """A node, or where `rank` is None any or all of a role."""

    role: Role
    rank: int | None = None

    def __str__(self) -> str:
        return str(self.role) if self.rank is None else f"{self.role}:{self.rank}"


@dataclass(frozen=True)
class Moment:
    """The n-th time that something happens, or some time after it.

    Without an event it is the time after the cluster's start.
    """

    event: Event | None = None
    nth: int = 1
    after: float = 0.0  # seconds

    def __str__(self) -> str:
        if self.event is None:
            return seconds(self.after)
        nth = "" if self.nth == 1 else f":{self.nth}"
        return f"{self.event}{nth}" + (f"+{seconds(self.after)}" if self.after else "")


@dataclass(frozen=True)
class ProcessFault:
    """A process that is to meet a signal; without a rank the seed chooses one."""

    act: Act
    who: Who
    moment: Moment
    duration: float | None = None  # of a stop; None: until a `cont`

    def __str__(self) -> str:
        return f"{self.act} {self.who}@{self.moment}{_for(self.duration)}"


@dataclass(frozen=True)
class MessageFault:
    """A share of messages that is to be lost, repeated, late or overtaken."""

    harm: Harm
    percent: float
    up_to: float | None = None  # seconds of a delay, or within which others overtake; None: usual
    between: tuple[Who, Who] | None = None  # None: everybody
    start: float | None = None  # seconds; None: from the first message, before the nodes have met
    duration: float | None = None  # None: to the end

    def __str__(self) -> str:
        up_to = "" if self.up_to is None else f" up to {seconds(self.up_to)}"
        between = "" if self.between is None else " between {} and {}".format(*self.between)
        start = "" if self.start is None else f" from {seconds(self.start)}"
        share = f"{self.percent!r}".removesuffix(".0")
        return f"{self.harm} {share}%{up_to}{between}{start}{_for(self.duration)}"


@dataclass(frozen=True)
class Partition:
    """Two nodes, or roles, between which nothing passes."""

    one: Who
    other: Who
    start: float
    duration: float | None = None

    def __str__(self) -> str:
        at = seconds(self.start)
        return f"partition {self.one} from {self.other}@{at}{_for(self.duration)}"


Clause = ProcessFault | MessageFault | Partition


@dataclass(frozen=True)
class Plan:
    """All that is to go wrong."""

    clauses: tuple[Clause, ...] = ()

    @property
    def processes(self) -> list[ProcessFault]:
        return [clause for clause in self.clauses if isinstance(clause, ProcessFault)]

    @property
    def messages(self) -> list[MessageFault | Partition]:
        return [clause for clause in self.clauses if not isinstance(clause, ProcessFault)]

    def __str__(self) -> str:
        return ", ".join(map(str, self.clauses))


def seconds(value: float) -> str:
    """A time as a plan has it.

    >>> seconds(20.0), seconds(0.25), seconds(0.0)
    ('20s', '250ms', '0s')
    """
    return format_quantity(value, SECONDS) if value else "0s"


def _for(duration: float | None) -> str:
    return "" if duration is None else f" for {seconds(duration)}"
