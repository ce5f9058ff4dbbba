"""A cluster of processes on this machine around a worker program.

`run_local` starts a scheduler, then servers and workers, shows what they print under their names
and sees to it that all of them end, whatever happens to any of them or to the launcher itself.
It runs in one thread: `pslite.lifecycle` decides, `pslite.processes` acts.
"""

from __future__ import annotations

import contextlib
import os
import re
import shutil
import signal
import socket
import sys
import sysconfig
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TextIO

import pslite
from postoffice.config import join_address, split_address
from postoffice.node import Role
from pslite import environ, guard
from pslite.config import JobConfig
from pslite.environ import NodeSettings
from pslite.lifecycle import Failure, Lifecycle, NodeName, Phase
from pslite.output import Screen
from pslite.processes import Child, Family
from pslite.rundir import RunDirectory
from van.errors import ConfigError

READY = re.compile(rb"^pslite: scheduler listening on tcp://(\S+)$", re.MULTILINE)
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
TICK = 0.1  # seconds between looks at the clock while nothing happens
PROCESSES_PER_CORE = 32
SCHEDULER = NodeName(Role.SCHEDULER, 0)


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
    verbose: int = 0
    finish_timeout: float = 30.0
    grace: float = guard.GRACE
    node_command: Sequence[str] = (sys.executable, "-m", "pslite", "node")
    prepare: bool = True


def run_local(job: JobConfig, command: Sequence[str], options: LaunchOptions | None = None) -> int:
    """Run `command` as the workers of a local cluster; the exit code for the shell.

    0 if every node ended with 0; else the exit code of the first node that did not (128 + n if
    signal n ended it); 128 + n also if the launcher itself got signal n.

    Args:
        job: servers, workers and all other settings.
        command: the worker program; a leading `python` is the Python that runs this.
    Raises:
        ConfigError: the command is not found, too many nodes, or a folder cannot be written.
    """
    options = options or LaunchOptions()
    env = environ.current() if options.env is None else options.env
    command = resolve_command(command, env)
    check_size(job)
    with _run_directory(options.run_dir) as run_dir:
        screen = Screen(options.out, colour=options.colour)
        job_run = _LocalJob(job, command, env, options, screen, run_dir)
        return job_run.run()


def resolve_command(command: Sequence[str], env: Mapping[str, str]) -> list[str]:
    """The command with its program found: `python` is our own, others are looked up in PATH.

    Raises:
        ConfigError: nothing to run, or the program is not found.
    """
    if not command:
        raise ConfigError("no worker program; give it after --, as in -- python my_worker.py")
    program, *arguments = command
    if program in ("python", "python3"):
        return [sys.executable, *arguments]
    found = shutil.which(program, path=env.get("PATH", os.defpath))
    if found is None:
        raise ConfigError(
            f"worker program {program!r} not found, or not executable; "
            f"is it spelled right, or missing a leading `python`?"
        )
    return [found, *arguments]


def with_pslite(env: Mapping[str, str]) -> dict[str, str]:
    """`env` in which a Python finds this pslite, also when it runs from a source folder."""
    home = Path(pslite.__file__).resolve().parent.parent
    if home in {Path(sysconfig.get_path(kind)).resolve() for kind in ("purelib", "platlib")}:
        return dict(env)  # installed, and that folder must not come before Python's own
    path = [part for part in env.get("PYTHONPATH", "").split(os.pathsep) if part]
    return {**env, "PYTHONPATH": os.pathsep.join([*path, str(home)])}


def check_size(job: JobConfig) -> None:
    """Refuse more processes than this machine could run in any useful way.

    Raises:
        ConfigError: too many servers and workers for the number of cores.
    """
    nodes, most = (
        job.cluster.servers + job.cluster.workers,
        PROCESSES_PER_CORE * (os.cpu_count() or 1),
    )
    if nodes > most:
        raise ConfigError(
            f"{job.cluster.servers} servers and {job.cluster.workers} workers are {nodes} "
            f"processes; at most {most} are started on the {os.cpu_count()} cores here",
            section="cluster",
        )


class _LocalJob:
    """One run of `run_local`."""

    def __init__(
        self,
        job: JobConfig,
        command: Sequence[str],
        env: Mapping[str, str],
        options: LaunchOptions,
        screen: Screen,
        run_dir: RunDirectory | None,
    ) -> None:
        self._job, self._command, self._env, self._options = job, command, env, options
        self._screen, self._run_dir = screen, run_dir
        self._life = Lifecycle(finish_timeout=options.finish_timeout, grace=options.grace)
        self._family = Family(self._show, env, options.log_dir)
        self._address: str | None = None
        self._signalled = Phase.STARTING
        self._tails: dict[NodeName, list[str]] = {}
        self._signals_got: list[int] = []
        self._is_read = True  # somebody reads what the nodes print

    def run(self) -> int:
        begun = time.monotonic()
        code = 1
        try:
            with self._signals(), self._family:
                self._note(state="starting", launcher=os.getpid(), name=self._job.run.name)
                self._start_all()
                while not self._life.is_over:
                    self._turn()
            code = self._report(time.monotonic() - begun)
        finally:
            self._note(state="ended", exit_code=code, nodes=[])
        return code

    def _start_all(self) -> None:
        cluster = self._job.cluster
        self._start(Role.SCHEDULER, 0, self._job, self._options.node_command)
        job = self._await_scheduler()
        if job is not None:
            for rank in range(cluster.servers):
                self._start(Role.SERVER, rank, job, self._options.node_command)
            for rank in range(cluster.workers):
                self._start(Role.WORKER, rank, job, self._command)
            self._note(state="running", scheduler=f"tcp://{job.cluster.scheduler}")
        self._life.all_started(time.monotonic())

    def _start(self, role: Role, rank: int, job: JobConfig, command: Sequence[str]) -> None:
        if self._life.is_stopping:
            return
        settings = NodeSettings(role=role, rank=rank, job=job, verbose=self._options.verbose)
        env = with_pslite({**environ.child_environ(self._env, settings), "PYTHONUNBUFFERED": "1"})
        name = NodeName(role, rank)
        self._family.start(name, command, env)
        self._life.started(name)
        self._note(nodes=self._nodes())

    def _await_scheduler(self) -> JobConfig | None:
        """The job with the address at which the scheduler listens; None if it does not."""
        deadline = time.monotonic() + self._job.cluster.start_timeout
        while self._address is None and not self._life.is_stopping:
            if time.monotonic() > deadline:
                problem = "printed no address within [cluster] start_timeout"
                failure = Failure(SCHEDULER, 1, problem)
                self._life.fail(failure, time.monotonic())
            self._turn()
            if not self._life.alive and self._life.failure is None:
                problem = "ended before it had printed its address"
                failure = Failure(SCHEDULER, 1, problem)
                self._life.fail(failure, time.monotonic())
        if self._life.is_stopping or self._address is None:
            return None
        cluster = replace(self._job.cluster, scheduler=self._address)
        return replace(self._job, cluster=cluster)

    def _turn(self) -> None:
        """Take what the nodes print, see who has ended, and do what follows from it."""
        self._family.turn(TICK)
        now = time.monotonic()
        while self._signals_got:
            signum = self._signals_got.pop(0)
            problem = f"the launcher got {signal.Signals(signum).name}"
            self._life.fail(Failure(None, -signum, problem), now)
        # Of several that ended at once the one killed by a signal is the likeliest cause.
        for child, status in sorted(self._family.reap(now), key=lambda ended: ended[1]):
            self._tails[child.name] = child.tail.text()
            is_consequence = any("ClusterStoppedError" in line for line in child.tail.text())
            self._life.exited(child.name, status, now, is_consequence=is_consequence)
        self._life.tick(now)
        if self._life.phase is not self._signalled and self._life.is_stopping:
            self._signalled = self._life.phase
            is_kill = self._life.phase is Phase.KILLING
            self._family.signal(signal.SIGKILL if is_kill else signal.SIGTERM)

    def _show(self, child: Child, block: bytes) -> None:
        if child.name == SCHEDULER and self._address is None:
            ready = READY.search(block)
            if ready:
                host, port = split_address(ready[1].decode("ascii", "replace"))
                self._address = join_address(host, port)
        if self._is_read:
            try:
                self._screen.write(child.name.role, str(child.name), block)
            except BrokenPipeError:
                self._is_read = False
                self._signals_got.append(signal.SIGPIPE)

    def _nodes(self) -> list[dict[str, object]]:
        return [
            {"role": name.role, "rank": name.rank, "pid": child.process.pid}
            for name, child in self._family.children.items()
        ]

    def _note(self, **facts: object) -> None:
        if self._run_dir is not None:
            self._run_dir.update(**facts)

    def _report(self, seconds: float) -> int:
        cluster, failure = self._job.cluster, self._life.failure
        if failure is None:
            self._say(
                f"job {self._job.run.name} done in {seconds:.1f} s "
                f"({cluster.servers} servers, {cluster.workers} workers)"
            )
            return 0
        who = f"{failure.node}: " if failure.node else ""
        self._say(f"job {self._job.run.name} stopped after {seconds:.1f} s: {who}{failure.problem}")
        last_words = self._tails.get(failure.node, []) if failure.node else []
        is_in_sight = self._screen.ends_with(str(failure.node), len(last_words)) and is_same_file(
            self._options.out, self._options.err
        )
        if last_words and not is_in_sight:
            block = "".join(f"\n    {line}" for line in last_words)
            self._say(f"the last lines of {failure.node}:{block}")
        return failure.exit_code

    def _say(self, text: str) -> None:
        with contextlib.suppress(BrokenPipeError):
            self._options.err.write(f"pslite: {text}\n")
            self._options.err.flush()

    @contextlib.contextmanager
    def _signals(self) -> Iterator[None]:
        """Turn signals to this process into the end of the job, and wake the loop for them."""
        wake, woken = socket.socketpair()
        woken.setblocking(False)
        wake.setblocking(False)

        def stop(signum: int, _: object) -> None:
            self._signals_got.append(signum)
            with contextlib.suppress(BlockingIOError):
                wake.send(b"!")

        def drain() -> None:
            with contextlib.suppress(BlockingIOError):
                woken.recv(64)

        before = {}
        try:
            self._family.watch(woken.fileno(), drain)
            with contextlib.suppress(ValueError):  # not the main thread: signals are the caller's
                for signum in SIGNALS:
                    # What was ignored from the start, as by nohup, stays ignored.
                    if signal.getsignal(signum) != signal.SIG_IGN:
                        before[signum] = signal.signal(signum, stop)
                if signal.getsignal(signal.SIGCHLD) == signal.SIG_IGN:
                    # Inherited from whoever started us; exit codes would be lost.
                    before[signal.SIGCHLD] = signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            yield
        finally:
            for signum, handler in before.items():
                signal.signal(signum, handler)
            wake.close()
            woken.close()


def is_same_file(one: TextIO, other: TextIO) -> bool:
    """Whether both streams go to one terminal, file or pipe."""
    try:
        return os.path.sameopenfile(one.fileno(), other.fileno())
    except (OSError, ValueError, AttributeError):
        return one is other


@contextlib.contextmanager
def _run_directory(path: Path | None) -> Iterator[RunDirectory | None]:
    if path is None:
        yield None
        return
    directory = RunDirectory(path)
    try:
        yield directory
    finally:
        directory.close()
