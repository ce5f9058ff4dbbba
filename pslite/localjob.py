"""One run of a local cluster: starts the nodes, follows them, reports how it ended.

It runs in one thread: `pslite.lifecycle` decides, `pslite.processes` acts.
"""

from __future__ import annotations

import re
import signal
import sys
import time
from collections.abc import Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TextIO

from postoffice.config import join_address, split_address
from postoffice.node import Role
from pslite import ending, environ, guard
from pslite.chaos.acting import ChaosActor, signal_group
from pslite.chaos.config import counts_of
from pslite.commands import CommandSocket
from pslite.config import JobConfig
from pslite.environ import NodeSettings
from pslite.growth import Growth
from pslite.lifecycle import CONSEQUENCE, Failure, Lifecycle, NodeName, Phase, describe_status
from pslite.obituaries import Obituaries
from pslite.output import Screen, is_same_file
from pslite.prepare import preparation
from pslite.processes import Child, Family
from pslite.recovery import Recovery, tolerance_of
from pslite.rundir import RunDirectory
from pslite.signals import SignalInbox
from van.errors import ConfigError

READY = re.compile(rb"^pslite: scheduler listening on tcp://(\S+)$", re.MULTILINE)
TICK = 0.1  # seconds between looks at the clock while nothing happens
LAST_CHANCE = 1.0  # seconds for a reader who has paused, when the job was stopped by a signal
SCHEDULER = NodeName(Role.SCHEDULER, 0)
SETUP = NodeName("setup")


@dataclass(frozen=True, kw_only=True)
class LaunchOptions:
    """How a local cluster is run; what it is says the `JobConfig`.

    Args:
        env: variables for the nodes to start from; None: those of this process.
        out: gets what the nodes print.
        err: gets what the launcher itself has to say.
        colour: names of nodes in colour; None: if `out` is a terminal.
        log_dir: also one file of output for each node.
        run_dir: gets `cluster.json`.
        needs_run_dir: whether the job must not run without it; else the reason is told.
        verbose: 0, 1 or 2, as PSLITE_VERBOSE.
        finish_timeout: seconds for scheduler and servers to end after the last worker.
        grace: seconds from SIGTERM to SIGKILL.
        node_command: what is started as scheduler and server.
        prepare: compile kernels and try `[server] app` once before any node starts.
    """

    env: Mapping[str, str] | None = None
    out: TextIO = field(default_factory=lambda: sys.stdout)
    err: TextIO = field(default_factory=lambda: sys.stderr)
    colour: bool | None = None
    log_dir: Path | None = None
    run_dir: Path | None = None
    needs_run_dir: bool = True
    verbose: int = 0
    finish_timeout: float = 30.0
    grace: float = guard.GRACE
    node_command: Sequence[str] = (sys.executable, "-m", "pslite", "node")
    prepare: bool = True


class LocalJob:
    """One job; `run` runs it.

    Args:
        job: its settings.
        command: what each worker runs, found already.
        env: variables for all processes to start from.
        options: how it is run; its `env` and `run_dir` are not looked at.
        run_dir: the open folder of the job, if it has one.
        makes_keys: whether its keys were made for this job alone.
    """

    def __init__(
        self,
        job: JobConfig,
        command: Sequence[str],
        env: Mapping[str, str],
        options: LaunchOptions,
        run_dir: RunDirectory | None,
        *,
        makes_keys: bool = False,
    ) -> None:
        self._job, self._command, self._options, self._run_dir = job, command, options, run_dir
        self._env = environ.with_pslite({**env, "PYTHONUNBUFFERED": "1"})
        self._life = Lifecycle(
            finish_timeout=options.finish_timeout,
            grace=options.grace,
            tolerance=tolerance_of(job),
        )
        folder = None if run_dir is None else run_dir.path
        self._recovery = Recovery(job, folder)
        self._growth = Growth(job, makes_keys, self._start_server, self._is_running)
        self._obituaries = Obituaries()
        self._commands: CommandSocket | None = None
        self._screen = Screen(options.out, colour=options.colour)
        self._family = Family(self._show, self._env, options.log_dir, folder)
        self._inbox = SignalInbox()
        self._chaos = self._make_chaos()
        self._address: str | None = None  # where the scheduler listens
        self._met: JobConfig | None = None  # the job with that address
        self._phase_acted_on = Phase.STARTING
        self._tails: dict[NodeName, list[str]] = {}

    def _make_chaos(self) -> ChaosActor | None:
        if not self._job.chaos.plan:
            return None
        if self._run_dir is None:
            problem = "faults on purpose are reported in the run folder, which --run names"
            raise ConfigError(problem, section="chaos", key="plan")
        counts, will_return = counts_of(self._job.cluster), self._life.will_return
        return ChaosActor(self._job.chaos, self._run_dir.path, counts, self._signal, will_return)

    def run(self) -> int:
        """Run the job to its end; the exit code for the shell."""
        begun, code = time.monotonic(), 1
        try:
            with self._inbox, self._family:
                self._note(name=self._job.run.name)
                self._family.watch(self._inbox.fileno())
                self._listen()
                if links := self._job.simulate.imposed:
                    self._say(f"the network is simulated: {links}")
                if self._job.balance.overflow and not self._job.cluster.dispatchers:
                    self._say("[balance] overflow has no effect without dispatchers")
                self._prepare()
                self._start_all()
                while not self._life.is_over:
                    self._turn()
                    if self._life.takes_again(time.monotonic()):
                        self._begin_again()
                self._drain()
            code = self._report(time.monotonic() - begun)
            if self._chaos is not None:
                told, code = self._chaos.finish(code)
                self._say(told)
        finally:
            if self._commands is not None:
                self._commands.close()
            self._screen.writer.close()
            self._note(state="ended", exit_code=code, nodes=[])
        return code

    # -- starting ---------------------------------------------------------------------------

    def _listen(self) -> None:
        """Take commands, where others can find this job."""
        if self._run_dir is None:
            return
        try:
            self._commands = CommandSocket(self._run_dir.path, self._growth.handle)
        except ConfigError as error:  # the file system knows no sockets
            self._say(f"this job takes no commands: {error}")
        else:
            self._family.watch(self._commands.fileno())

    def _prepare(self) -> None:
        arguments = preparation(self._job, self._env) if self._options.prepare else []
        if arguments:
            command = [sys.executable, "-m", "pslite.prepare", *arguments]
            self._start(SETUP, command, self._env)
            while SETUP in self._life.alive:
                self._turn()

    def _start_all(self) -> None:
        node_command = self._options.node_command
        self._start_node(Role.SCHEDULER, 0, self._job, node_command, begins=True)
        job = self._met = self._await_scheduler()
        if job is not None:
            for rank in range(job.cluster.servers):
                self._start_node(Role.SERVER, rank, job, node_command)
            for rank in range(job.cluster.dispatchers):
                self._start_node(Role.DISPATCHER, rank, job, node_command)
            for rank in range(job.cluster.workers):
                self._start_node(Role.WORKER, rank, job, self._command)
            self._note(state="running", scheduler=f"tcp://{job.cluster.scheduler}")
        self._life.all_started(time.monotonic())

    def _begin_again(self) -> None:
        """All nodes have ended; start them anew, to go on from the last checkpoint."""
        self._family.end(grace=0.0)  # what they have left behind
        self._job, whence = self._recovery.job_again()
        self._say(f"job {self._job.run.name} begins again {whence}")
        self._address, self._phase_acted_on = None, Phase.STARTING
        self._obituaries = Obituaries()
        self._note(state="starting", scheduler=None)
        self._start_all()

    def _start_server(self, rank: int) -> bool:
        """Start a server that is to join the running job; False if it is there."""
        assert self._met is not None, "the job runs"
        name = NodeName(Role.SERVER, rank)
        if self._life.is_expected(name):
            return False
        job = self._growth.grown(self._met)
        self._start_node(Role.SERVER, rank, job, self._options.node_command)
        return True

    def _is_running(self) -> bool:
        return self._life.phase is Phase.RUNNING and self._met is not None

    def _start_node(
        self, role: Role, rank: int, job: JobConfig, command: Sequence[str], begins: bool = False
    ) -> None:
        name = NodeName(role, rank)
        settings = NodeSettings(
            role=role,
            rank=rank,
            job=job,
            verbose=self._options.verbose,
            run_dir=None if self._run_dir is None else self._run_dir.path.resolve(),
            begins=begins,
            life=self._obituaries.born(name),
            hears_launcher=name == SCHEDULER,
        )
        self._start(name, command, environ.child_environ(self._env, settings))

    def _start(self, name: NodeName, command: Sequence[str], env: Mapping[str, str]) -> None:
        if self._life.is_stopping:
            return
        child = self._family.start(name, command, env, listens=name == SCHEDULER)
        if name == SCHEDULER:
            child.tell(b"".join(self._obituaries.lines))
        self._life.started(name)
        self._note(nodes=self._nodes())

    def _await_scheduler(self) -> JobConfig | None:
        """The job with the address at which the scheduler listens; None if it does not."""
        deadline = time.monotonic() + self._job.cluster.start_timeout
        while self._address is None and not self._life.is_stopping:
            self._turn()
            if not self._life.alive:
                self._blame_scheduler("ended before it had printed its address")
            elif time.monotonic() > deadline:
                self._blame_scheduler("printed no address within [cluster] start_timeout")
        if self._address is None:
            return None
        cluster = replace(self._job.cluster, scheduler=self._address)
        return replace(self._job, cluster=cluster)

    def _blame_scheduler(self, problem: str) -> None:
        self._life.fail(Failure(SCHEDULER, 1, problem), time.monotonic())

    # -- running ----------------------------------------------------------------------------

    def _turn(self) -> None:
        """Take what the nodes print, see who has ended, and do what follows from it."""
        tick = self._chaos.turn_within(TICK, time.monotonic()) if self._chaos else TICK
        self._family.turn(tick, is_reading=not self._screen.writer.is_full)
        now = time.monotonic()
        if self._screen.writer.is_broken and not self._life.is_stopping:
            failure = Failure(None, -signal.SIGPIPE, "nobody reads the output any more")
            self._life.fail(failure, now)
        for signum in self._inbox.take():
            problem = f"the launcher got {signal.Signals(signum).name}"
            self._life.fail(Failure(None, -signum, problem), now)
        # Of several that ended at once the one killed by a signal is the likeliest cause.
        ended = sorted(self._family.reap(now), key=lambda ended: ended[1])
        for child, status in ended:
            tail = self._tails[child.name] = child.tail.text()
            is_consequence = any("ClusterStoppedError" in line for line in tail)
            self._life.exited(child.name, status, now, is_consequence=is_consequence)
            self._tell_of_failure(child.name, status)
            self._tell_scheduler(child.name, status)
            if self._chaos is not None:
                self._chaos.ended(child.name, describe_status(status))
        if ended:
            self._note(nodes=self._nodes())
        if self._commands is not None:
            self._commands.turn(now)
        self._life.tick(now)
        for name in self._life.take_due(now):
            self._restart(name)
        for name in self._life.take_dismissed(now):
            self._signal(name, signal.SIGTERM)
        if self._chaos is not None and not self._life.is_stopping:
            self._chaos.turn(now, self._life.alive)
        if self._life.is_stopping and self._life.phase is not self._phase_acted_on:
            self._phase_acted_on = self._life.phase
            if self._chaos is not None:
                self._chaos.release()
            is_kill = self._life.phase is Phase.KILLING
            self._family.signal(signal.SIGKILL if is_kill else signal.SIGTERM)

    def _tell_of_failure(self, name: NodeName, status: int) -> None:
        """Say at once what does not stop the job."""
        again = self._life.again
        if again is not None and again.node == name:
            self._say(f"{name}: {again.problem}; its rows are lost: all nodes are ended")
        if self._life.is_stopping or status == 0 or name in self._life.dismissed:
            return
        if name in self._life.lost:
            self._say(f"{name}: {describe_status(status)}; the others go on without it")
        elif self._life.is_expected(name):
            has_copies = name.role == Role.SERVER and self._job.cluster.replicas
            role = ", to be the backup of others" if has_copies else ""
            self._say(f"{name}: {describe_status(status)}; it is started again{role}")

    def _tell_scheduler(self, name: NodeName, status: int) -> None:
        """Let a death that the others outlive be known before the node's silence shows it."""
        if status in (0, CONSEQUENCE) or self._life.is_stopping or name in (SETUP, SCHEDULER):
            return
        line = self._obituaries.died(name, describe_status(status))
        if SCHEDULER in self._family.children:
            self._family.children[SCHEDULER].tell(line)

    def _restart(self, name: NodeName) -> None:
        assert self._met is not None, "only nodes of a running job are started again"
        assert name.rank is not None
        is_worker = name.role == Role.WORKER
        command = self._command if is_worker else self._options.node_command
        job = self._growth.grown(self._met) if name.role == Role.SERVER else self._met
        self._start_node(Role(name.role), name.rank, job, command)
        if self._chaos is not None:
            self._chaos.started(name)

    def _signal(self, name: NodeName, signum: int) -> None:
        child = self._family.children.get(name)
        if child is not None:
            signal_group(child.process.pid, signum)

    def _show(self, child: Child, block: bytes) -> None:
        if child.name == SCHEDULER and self._address is None:
            ready = READY.search(block)
            if ready:
                host, port = split_address(ready[1].decode("ascii", "replace"))
                self._address = join_address(host, port)
        self._screen.write(child.name.role, str(child.name), block)

    def _drain(self) -> None:
        """Wait until all output is read; after a signal, or when one comes, not for long."""
        failure = self._life.failure
        is_hurried = failure is not None and failure.node is None
        deadline = time.monotonic() + LAST_CHANCE
        while not self._screen.writer.drain(TICK):
            if self._inbox.take() or (is_hurried and time.monotonic() > deadline):
                return

    # -- telling ----------------------------------------------------------------------------

    def _nodes(self) -> list[dict[str, object]]:
        return [
            {"role": name.role, "rank": name.rank, "pid": child.process.pid}
            for name, child in self._family.children.items()
        ]

    def _note(self, **facts: object) -> None:
        if self._run_dir is not None:
            self._run_dir.update(**facts)

    def _report(self, seconds: float) -> int:
        name, cluster, failure = self._job.run.name, self._job.cluster, self._life.failure
        if failure is None:
            counts = {"server": self._growth.servers, "worker": cluster.workers}
            if cluster.dispatchers:
                counts["dispatcher"] = cluster.dispatchers
            size = ", ".join(f"{n} {role}{'s' * (n != 1)}" for role, n in counts.items())
            self._say(ending.done(name, seconds, size, self._life))
            return 0
        self._say(ending.stopped(name, seconds, failure))
        lines = self._tails.get(failure.node, []) if failure.node else []
        is_in_sight = self._screen.shows(str(failure.node), len(lines)) and is_same_file(
            self._options.out, self._options.err
        )
        if lines and not is_in_sight:
            self._say(ending.last_lines(failure, lines))
        for advice in self._recovery.advice(failure.node):
            self._say(advice)
        return failure.exit_code

    def _say(self, text: str) -> None:
        is_stuck = not self._screen.writer.drain(0.0)
        if is_stuck and is_same_file(self._options.out, self._options.err):
            return
        with suppress(BrokenPipeError):
            self._options.err.write(f"pslite: {text}\n")
            self._options.err.flush()
