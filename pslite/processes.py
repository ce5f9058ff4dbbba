"""Child processes of a launcher: their output, their end, and the guard over all of them.

Every child is the leader of a session of its own, so that Ctrl-C in a terminal reaches the
launcher alone, which then ends its children in order. `pslite.guard` says how it is known which
processes belong to a job.
"""

from __future__ import annotations

import contextlib
import os
import secrets
import select
import selectors
import subprocess
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import BinaryIO

from pslite import guard
from pslite.lifecycle import NodeName
from pslite.output import Lines, Tail
from van.errors import ConfigError

CHUNK = 1 << 16
LOOK = 0.05  # seconds between looks at the children that have not closed their pipe
UNKILLABLE = 2.0  # seconds after which a killed process is left to the system
LAST_WORDS = 64 * CHUNK  # bytes read after a child's end; more can only come from its own children

Sink = Callable[["Child", bytes], None]


class Child:
    """One running node.

    Args:
        process: started with stdout as a pipe that does not block.
        sink: gets the whole lines the node prints.
        log: gets every byte the node prints, unchanged.

    Attributes:
        unsaid: what is still to be written to its standard input.
    """

    def __init__(
        self, name: NodeName, process: subprocess.Popen[bytes], sink: Sink, log: BinaryIO | None
    ) -> None:
        assert process.stdout is not None
        self.name, self.process, self.tail = name, process, Tail()
        self.pipe = process.stdout
        self.is_at_end = False  # its pipe is closed: it has ended or is about to
        self._sink, self._log, self._lines = sink, log, Lines()
        self.unsaid = b""

    def tell(self, data: bytes) -> None:
        """Write to its standard input, if it has one; never waits: the rest goes with `say`."""
        self.unsaid += data
        self.say()

    def say(self) -> None:
        """Write on what it had no room for."""
        if not self.unsaid or self.process.stdin is None:
            return
        try:
            self.unsaid = self.unsaid[os.write(self.process.stdin.fileno(), self.unsaid) :]
        except BlockingIOError:
            pass
        except BrokenPipeError:
            self.unsaid = b""  # it has ended

    def read(self) -> int:
        """Take what has been printed, at most one chunk; the number of bytes."""
        try:
            data = os.read(self.pipe.fileno(), CHUNK)
        except BlockingIOError:
            return 0
        if not data:
            self.is_at_end = True
            return 0
        if self._log is not None:
            self._log.write(data)
        self._show(self._lines.feed(data))
        return len(data)

    def close(self) -> None:
        """Show the last words of a child that has ended, and let go of its pipe and log."""
        taken = 0
        while taken < LAST_WORDS and (nbytes := self.read()):
            taken += nbytes
        self._show(self._lines.close())
        self.pipe.close()
        if self.process.stdin is not None:
            self.process.stdin.close()
        if self._log is not None:
            self._log.close()

    def _show(self, block: bytes) -> None:
        if block:
            self.tail.add(block)
            self._sink(self, block)


class Family:
    """The children of one job.

    Leaving the `with` block ends them all, and the processes that they started.

    Args:
        sink: gets the whole lines each child prints.
        env: the environment to start from.
        log_dir: where the output of each child is also written, unchanged; None: nowhere.
        run_dir: the job's folder, whose `cluster.json` is brought to an end if this process cannot.
    """

    def __init__(
        self,
        sink: Sink,
        env: Mapping[str, str],
        log_dir: Path | None = None,
        run_dir: Path | None = None,
    ) -> None:
        self.token = secrets.token_hex(8)
        self.children: dict[NodeName, Child] = {}
        self._sink, self._env, self._log_dir, self._run_dir = sink, env, log_dir, run_dir
        self._selector = selectors.DefaultSelector()
        self._logs: set[Path] = set()
        self._next_look = 0.0
        self._watched: list[int] = []
        self._guard: subprocess.Popen[bytes] | None = None

    def __enter__(self) -> Family:
        folder = "" if self._run_dir is None else str(self._run_dir.resolve())
        # By path and without site: the guard needs nothing of ours and should be up at once.
        self._guard = subprocess.Popen(
            [sys.executable, "-I", "-S", guard.__file__, self.token, folder],
            stdin=subprocess.PIPE,
            stdout=subprocess.DEVNULL,
            env={name: value for name, value in self._env.items() if name != guard.TOKEN},
            start_new_session=True,
        )
        return self

    def __exit__(self, *_: object) -> None:
        self.end(grace=0.0)
        for child in list(self.children.values()):
            with contextlib.suppress(subprocess.TimeoutExpired):
                child.process.wait(UNKILLABLE)
            self._bury(child)
        self._selector.close()
        if self._guard is not None and self._guard.stdin is not None:
            self._tell_guard(guard.OVER)
            with contextlib.suppress(BrokenPipeError):
                self._guard.stdin.close()
            self._guard.wait(guard.GRACE + UNKILLABLE)

    def start(
        self,
        name: NodeName,
        command: Sequence[str],
        env: Mapping[str, str] | None = None,
        *,
        listens: bool = False,
    ) -> Child:
        """Start one child, in `env` or the environment of the family.

        With `listens` its standard input is a pipe from here, see `Child.tell`.

        Raises:
            ConfigError: the command cannot be run, or its log cannot be written.
        """
        log = self._open_log(name)
        try:
            process = subprocess.Popen(
                command,
                stdin=subprocess.PIPE if listens else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=subprocess.STDOUT,
                env={**(self._env if env is None else env), guard.TOKEN: self.token},
                start_new_session=True,
                bufsize=0,
                # Left to close-on-exec: the guard's pipe must stay open up to the very exec.
                close_fds=False,
            )
        except (OSError, ValueError) as error:
            if log is not None:
                log.close()
            reason = getattr(error, "strerror", None) or str(error)
            raise ConfigError(f"{name}: cannot run {command[0]!r}: {reason}") from None
        self._tell_guard(b"%d" % process.pid)
        child = Child(name, process, self._sink, log)
        for pipe in (process.stdin, child.pipe):
            if pipe is not None:
                os.set_blocking(pipe.fileno(), False)
        self._selector.register(child.pipe, selectors.EVENT_READ, child)
        self.children[name] = child
        return child

    def watch(self, file: int) -> None:
        """Let a turn also end when `file` can be read; it stays open as long as the family."""
        self._watched.append(file)
        self._selector.register(file, selectors.EVENT_READ)

    def turn(self, timeout: float, *, is_reading: bool = True) -> None:
        """Wait for output of any child, at most `timeout` seconds, and take it.

        With `is_reading` false output stays with the children, who wait when their pipe is full.
        """
        for child in self.children.values():
            child.say()
        if not is_reading:
            select.select(self._watched, [], [], min(timeout, 0.01))
            return
        if any(child.is_at_end for child in self.children.values()):
            timeout = min(timeout, 0.01)  # its end is a moment away and wakes nobody
        for key, _ in self._selector.select(timeout):
            if isinstance(key.data, Child):
                key.data.read()
                if key.data.is_at_end:
                    self._selector.unregister(key.data.pipe)

    def reap(self, now: float) -> list[tuple[Child, int]]:
        """The children that have ended since, their output taken, with their exit status."""
        is_due = now >= self._next_look  # a child whose pipe someone else holds open ends silently
        if is_due:
            self._next_look = now + LOOK
        ended = []
        for child in list(self.children.values()):
            status = child.process.poll() if is_due or child.is_at_end else None
            if status is not None:
                self._bury(child)
                ended.append((child, status))
        return ended

    def signal(self, signum: int) -> None:
        """Send a signal to all processes of the job."""
        guard.send(self.token, self._running(), signum)

    def end(self, grace: float = guard.GRACE) -> None:
        """End all processes of the job: SIGTERM, and SIGKILL after `grace` seconds."""
        guard.end(self.token, self._running(), grace)

    def _running(self) -> list[int]:
        return [child.process.pid for child in self.children.values()]

    def _bury(self, child: Child) -> None:
        if not child.is_at_end:
            self._selector.unregister(child.pipe)
        child.close()
        del self.children[child.name]

    def _tell_guard(self, word: bytes) -> None:
        if self._guard is not None and self._guard.stdin is not None:
            with contextlib.suppress(BrokenPipeError):
                os.write(self._guard.stdin.fileno(), word + b"\n")

    def _open_log(self, name: NodeName) -> BinaryIO | None:
        if self._log_dir is None:
            return None
        path = self._log_dir / f"{str(name).replace(' ', '-')}.log"
        try:
            self._log_dir.mkdir(parents=True, exist_ok=True)
            if path in self._logs:  # of a node that is started again
                return open(path, "ab", buffering=0)
            self._logs.add(path)
            return open(path, "wb", buffering=0)
        except OSError as error:
            raise ConfigError(f"log {path} cannot be written: {error.strerror}") from None
