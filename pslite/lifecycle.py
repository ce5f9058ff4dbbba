"""When a local job stops, and how it ended: decisions only, no process and no clock.

All nodes run until the last worker has ended with 0; scheduler and servers then end by
themselves within `finish_timeout`. The first node that ends otherwise, or a signal to the
launcher, stops the job: the rest get SIGTERM and, `grace` seconds later, SIGKILL. A server that was
started while the job ran may have come too late to hear of its end; it is dismissed.

Where the settings say so, a node that fails while the job runs is started again after a pause that
doubles each time, and not too often; or, if it is a worker, the others go on without it. The job
then ended well if any worker did. Or all nodes are ended and the job begins again: where a server
is gone that nobody has a copy of, its rows are in the last checkpoint only.

When a node fails, the others learn of it and may end sooner than it does. Such a node says so by
its exit code, `CONSEQUENCE`, and the one that really failed has a while to show itself.
"""

from __future__ import annotations

import enum
import signal
from dataclasses import dataclass

from postoffice.node import Role

_AFTERMATH = 60.0  # seconds in which a failure that was borne may still end other nodes
CONSEQUENCE = 76  # exit code of a node that ends because another one has failed


class Phase(enum.Enum):
    STARTING = enum.auto()  # not all nodes have been started
    RUNNING = enum.auto()
    FINISHING = enum.auto()  # the workers are done; scheduler and servers should end
    SEEKING = enum.auto()  # a node ended because another failed: which one?
    STOPPING = enum.auto()  # SIGTERM was sent
    KILLING = enum.auto()  # SIGKILL was sent


@dataclass(frozen=True)
class NodeName:
    """What a process is called: `worker 3`, or by its role alone where there is one of it."""

    role: str
    rank: int | None = None

    def __str__(self) -> str:
        has_number = self.rank is not None and self.role != Role.SCHEDULER
        return f"{self.role} {self.rank}" if has_number else str(self.role)


@dataclass(frozen=True)
class Failure:
    """Why a job did not end well: a node and its exit status, or no node and a text."""

    node: NodeName | None
    status: int
    problem: str

    @property
    def exit_code(self) -> int:
        """The status a shell would show: 128 + n after signal n."""
        return self.status if self.status >= 0 else 128 - self.status


@dataclass(frozen=True, kw_only=True)
class Tolerance:
    """What a node's failure means while the job runs, by role.

    `stop`: the job ends; `continue`: it goes on without that node; `restart`: it goes on, and the
    node is started again; `again`: all nodes are ended, and the job begins again.
    """

    worker: str = "stop"
    server: str = "stop"
    scheduler: str = "stop"
    dispatcher: str = "continue"
    restarts: int = 3  # of one node, or of the job
    pause: float = 0.5  # seconds before the first restart, doubled for each later one
    longest_pause: float = 30.0

    def of(self, node: NodeName) -> str:
        """What the failure of `node` means."""
        found = {
            Role.WORKER: self.worker,
            Role.SERVER: self.server,
            Role.SCHEDULER: self.scheduler,
            Role.DISPATCHER: self.dispatcher,
        }
        return found.get(Role(node.role), "stop")

    def pause_before(self, restart: int) -> float:
        """Seconds before the restart of that number, from 1."""
        return min(self.longest_pause, self.pause * 2.0 ** (restart - 1))


class Lifecycle:
    """Follows the nodes of one job.

    Args:
        finish_timeout: seconds that scheduler and servers have after the last worker.
        grace: seconds from SIGTERM to SIGKILL.
        cause_timeout: seconds that a failed node has to end once another has ended because of it.
        tolerance: which failures do not stop the job.

    Attributes:
        restarts: how often each node was started again, or is about to be.
        lost: workers and dispatchers that the others go on without.
        dismissed: of those started late who is no longer needed, and how they end does not matter.
        again: the failure because of which the job begins again, once all nodes have ended.
        beginnings: how often it began again.
    """

    def __init__(
        self,
        *,
        finish_timeout: float,
        grace: float,
        cause_timeout: float = 5.0,
        tolerance: Tolerance | None = None,
    ) -> None:
        self.phase = Phase.STARTING
        self.failure: Failure | None = None
        self.alive: set[NodeName] = set()
        self.deadline: float | None = None
        self.restarts: dict[NodeName, int] = {}
        self.lost: dict[NodeName, Failure] = {}
        self.dismissed: set[NodeName] = set()
        self.again: Failure | None = None
        self.beginnings = 0
        self._tolerance = tolerance or Tolerance()
        self._due: dict[NodeName, float] = {}  # when nodes that failed are started again
        self._returning: set[NodeName] = set()
        self._late: set[NodeName] = set()  # servers, dispatchers started while the job ran
        self._dismissal_at: float | None = None
        self._has_finished_worker = False
        self._finish_timeout, self._grace = finish_timeout, grace
        self._cause_timeout = cause_timeout
        self._consequence: Failure | None = None
        self._borne: tuple[Failure, float] | None = None  # the last that did not stop the job
        self._again_at = 0.0

    @property
    def is_stopping(self) -> bool:
        return self.phase in (Phase.STOPPING, Phase.KILLING)

    @property
    def is_over(self) -> bool:
        has_started = self.phase is not Phase.STARTING
        return has_started and not self.alive and not self._due and self.again is None

    def is_expected(self, node: NodeName) -> bool:
        """Whether it runs, or is about to be started again."""
        return node in self.alive or node in self._due

    def started(self, node: NodeName) -> None:
        self.alive.add(node)
        is_late = self.phase is not Phase.STARTING
        if is_late and node.role in (Role.SERVER, Role.DISPATCHER):
            self._late.add(node)

    def all_started(self, now: float) -> None:
        """No more nodes will be started."""
        if self.phase is Phase.STARTING:
            self.phase = Phase.RUNNING
            self._workers_done(now)

    def exited(
        self, node: NodeName, status: int, now: float, *, is_consequence: bool = False
    ) -> None:
        """A node ended.

        Args:
            node: which.
            status: negative where a signal ended it, as in `subprocess`.
            now: the time in seconds.
            is_consequence: it is known to have ended because another one failed.
        """
        self.alive.discard(node)
        if self.is_stopping or node in self.dismissed:
            return
        failure = Failure(node, status, describe_status(status))
        if status == CONSEQUENCE or (status != 0 and is_consequence):
            self._seek_cause(failure, now)
        elif status != 0:
            self._failed(node, failure, now)
        elif self.phase is Phase.RUNNING:
            self._has_finished_worker |= node.role == Role.WORKER
            self._workers_done(now)
        if status == 0 and node.role == Role.SCHEDULER:  # maybe seen before the last worker's end
            self._dismissal_at = now + self._cause_timeout
        if self.phase is Phase.SEEKING and not self.alive:
            self._give_up_seeking(now)

    def will_return(self, node: NodeName) -> None:
        """Its next failure is meant to be, and it is started again, whatever the settings say."""
        self._returning.add(node)

    def _failed(self, node: NodeName, failure: Failure, now: float) -> None:
        is_running = self.phase is Phase.RUNNING
        if node in self._returning and is_running:
            self._returning.discard(node)
            self.restarts[node] = self.restarts.get(node, 0) + 1
            self._due[node] = now + self._tolerance.pause
            return
        if node.role == Role.DISPATCHER and self._does_without(node):
            self.lost[node] = failure
            return
        what = self._tolerance.of(node) if is_running or self.phase is Phase.SEEKING else "stop"
        if what != "again" and not is_running:  # to begin again it does not matter who is left
            what = "stop"
        if what == "again":
            self._begin_again_later(failure, now)
        elif what == "restart":
            self._restart_later(node, failure, now)
        elif what == "continue":
            self.lost[node] = failure
            if self._others(node):
                self._workers_done(now)
            else:
                self.fail(failure, now)  # nobody is left to go on
        else:
            self.fail(failure, now)

    def _does_without(self, node: NodeName) -> bool:
        """Whether a dispatcher that has failed is not needed, or has failed too often."""
        if self.phase in (Phase.SEEKING, Phase.FINISHING):
            return True
        is_too_often = self.restarts.get(node, 0) >= self._tolerance.restarts
        is_wanted = self._tolerance.of(node) == "restart"
        return self.phase is Phase.RUNNING and is_wanted and is_too_often

    def _others(self, node: NodeName) -> bool:
        """Whether another worker is at work, or has done its part."""
        return self._has_finished_worker or any(n.role == Role.WORKER for n in self.alive - {node})

    def _begin_again_later(self, failure: Failure, now: float) -> None:
        if self.beginnings >= self._tolerance.restarts:
            how_often = f"after {self.beginnings} beginnings from a checkpoint"
            problem = f"{failure.problem}, {how_often} ([cluster] max_restarts)"
            self.fail(Failure(failure.node, failure.status, problem), now)
            return
        self.beginnings += 1
        self.again, self._again_at = failure, now + self._tolerance.pause_before(self.beginnings)
        self.phase, self.deadline = Phase.STOPPING, now + self._grace
        self._due.clear()

    def takes_again(self, now: float) -> bool:
        """Whether all nodes have ended and the job begins again now: they may be started."""
        if self.again is None or self.alive or now < self._again_at:
            return False
        self.again = self.deadline = self._consequence = self._borne = None
        self.lost.clear()
        self._late.clear()
        self._dismissal_at = None
        self._has_finished_worker = False
        self.phase = Phase.STARTING
        return True

    def _restart_later(self, node: NodeName, failure: Failure, now: float) -> None:
        done = self.restarts.get(node, 0)
        if done >= self._tolerance.restarts:
            problem = f"{failure.problem}, after {done} restarts ([cluster] max_restarts)"
            self.fail(Failure(node, failure.status, problem), now)
            return
        self.restarts[node] = done + 1
        if node.role != Role.DISPATCHER:  # whose death the others bear
            self._borne = failure, now
        self._due[node] = now + self._tolerance.pause_before(done + 1)

    def take_due(self, now: float) -> list[NodeName]:
        """The nodes to be started again now; `started` says that they were."""
        due = sorted((n for n, when in self._due.items() if now >= when), key=str)
        for node in due:
            del self._due[node]
        return due

    def take_dismissed(self, now: float) -> list[NodeName]:
        """The nodes to be ended now, as the scheduler that they wait for has ended well."""
        is_time = self._dismissal_at is not None and now >= self._dismissal_at
        if not is_time or self.phase is not Phase.FINISHING:
            return []
        self._dismissal_at = None
        self.dismissed = self._late & self.alive
        return sorted(self.dismissed, key=str)

    def fail(self, failure: Failure, now: float) -> None:
        """Stop the job; the first reason counts. A second signal to the launcher kills at once."""
        if self.again is not None:
            if failure.node is None:  # who runs the job wants no other
                self.again, self.failure = None, failure
        elif self.phase is Phase.STOPPING:
            if failure.node is None:
                self.phase = Phase.KILLING
        elif self.phase is not Phase.KILLING:
            self.phase, self.failure = Phase.STOPPING, failure
            self._due.clear()
            self.deadline = now + self._grace

    def tick(self, now: float) -> None:
        """Move on if the time of the present phase is up."""
        if self.deadline is None or now < self.deadline:
            return
        if self.phase is Phase.FINISHING:
            names = ", ".join(sorted(map(str, self.alive)))
            waited = f"{self._finish_timeout:g} s after the last worker had ended"
            hint = "does the worker program call pslite.connect()?"
            self.fail(Failure(None, 1, f"still running {waited}: {names}; {hint}"), now)
        elif self.phase is Phase.SEEKING:
            self._give_up_seeking(now)
        elif self.phase is Phase.STOPPING:
            self.phase = Phase.KILLING

    def _seek_cause(self, consequence: Failure, now: float) -> None:
        if self._consequence is None:
            self._consequence = consequence
            self.phase, self.deadline = Phase.SEEKING, now + self._cause_timeout

    def _give_up_seeking(self, now: float) -> None:
        assert self._consequence is not None
        failure = self._consequence
        if self._borne is not None and now - self._borne[1] < _AFTERMATH:
            failure = self._borne[0]  # it was more than the others could bear
        self.fail(failure, now)

    def _workers_done(self, now: float) -> None:
        if not any(node.role == Role.WORKER for node in (*self.alive, *self._due)):
            for node in [node for node in self._due if node.role != Role.SCHEDULER]:
                del self._due[node]  # nobody needs it any more
            self.phase, self.deadline = Phase.FINISHING, now + self._finish_timeout


def describe_status(status: int) -> str:
    """What an exit status says.

    >>> describe_status(3), describe_status(-9)
    ('exit code 3', 'killed by SIGKILL (is memory short?)')
    """
    if status == CONSEQUENCE:
        return "ended because another node had failed"
    if status >= 0:
        return f"exit code {status}"
    try:
        name = signal.Signals(-status).name
    except ValueError:
        name = f"signal {-status}"
    return f"killed by {name}" + (" (is memory short?)" if name == "SIGKILL" else "")
