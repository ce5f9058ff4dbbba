"""The processes that measure, seen from the command: started, asked, and ended for certain.

They are children of a `pslite.processes.Family`, so its guard ends them, and what they started,
even if the command is killed. Each is asked over a socket of its own; what it prints is kept for
the message about its failure.
"""

from __future__ import annotations

import json
import os
import select
import signal
import socket
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Any, Self

import pslite
from pslite import guard
from pslite.bench.errors import PeerError
from pslite.lifecycle import NodeName, describe_status
from pslite.processes import Child, Family

LOOK = 0.2  # seconds between looks at what the children print
TIMEOUT = 120.0  # seconds for an answer, if the question says nothing else
NO_TOKEN = "none, the session alone"
GOODBYE = 25.0  # seconds to end well


class Driven:
    """One such process.

    Attributes:
        label: the peer's name in tables.
    """

    def __init__(self, label: str, family: Family, child: Child, channel: socket.socket) -> None:
        self.label, self._family, self._child = label, family, child
        self._channel = channel
        self._received = b""

    @property
    def pid(self) -> int:
        return self._child.process.pid

    def ask(self, do: str, timeout: float = TIMEOUT, **arguments: Any) -> Any:
        """The answer to one request; raises PeerError if there is none or it is an error."""
        self.send(do, **arguments)
        return self.answer(timeout)

    def send(self, do: str, **arguments: Any) -> None:
        """Send a request whose answer is fetched later."""
        line = json.dumps({"do": do, **arguments}) + "\n"
        try:
            self._channel.sendall(line.encode())
        except OSError:
            raise self._died() from None

    def answer(self, timeout: float = TIMEOUT) -> Any:
        """The answer to the oldest request that has none yet."""
        deadline = time.monotonic() + timeout
        while b"\n" not in self._received:
            left = deadline - time.monotonic()
            if left <= 0:
                self.kill()  # a late answer must not be taken for that to another question
                raise PeerError(self.label, f"no answer within {timeout:g} s")
            ready, _, _ = select.select([self._channel], [], [], min(left, LOOK))
            self._family.turn(0.0)
            if ready:
                self._receive()
            elif self._child.process.poll() is not None:
                raise self._died()
        line, _, self._received = self._received.partition(b"\n")
        answer = json.loads(line)
        if "error" in answer:
            raise PeerError(self.label, answer["error"])
        return answer["result"]

    def _receive(self) -> None:
        try:
            data = self._channel.recv(1 << 20)
        except OSError:
            data = b""
        if not data:
            raise self._died()
        self._received += data

    def _died(self) -> PeerError:
        deadline = time.monotonic() + 2.0
        while self._child.process.poll() is None and time.monotonic() < deadline:
            self._family.turn(0.05)
        self._family.turn(0.0)
        status = self._child.process.poll()
        how = "it went silent" if status is None else f"it ended with {describe_status(status)}"
        words = self._child.tail.text()
        return PeerError(self.label, how + (f": {words[-1].strip()}" if words else ""))

    def pause(self) -> None:
        """Stop all processes of its session where they are."""
        guard.send(NO_TOKEN, [self.pid], signal.SIGSTOP)

    def resume(self) -> None:
        """Let them go on."""
        guard.send(NO_TOKEN, [self.pid], signal.SIGCONT)

    def shut(self) -> None:
        """Tell it to end."""
        self._channel.close()

    def close(self) -> None:
        """Let it end by itself, and end it and its session otherwise."""
        self.shut()
        deadline = time.monotonic() + GOODBYE
        while self._child.process.poll() is None and time.monotonic() < deadline:
            self._family.turn(0.05)
        self.kill()

    def kill(self) -> None:
        """End it and all processes of its session at once."""
        self.shut()
        guard.end(NO_TOKEN, [self.pid], grace=0.0)
        self._family.reap(time.monotonic() + 1.0)


class Children:
    """All processes of one run. Leaving the `with` block ends them."""

    def __init__(self, env: Mapping[str, str]) -> None:
        ours = str(Path(pslite.__file__).resolve().parent.parent)
        path = os.pathsep.join(filter(None, [ours, env.get("PYTHONPATH", "")]))
        self._family = Family(lambda child, block: None, {**env, "PYTHONPATH": path})
        self._started: list[Driven] = []

    def start(self, label: str, spec: str, **options: Any) -> Driven:
        """Start a process that holds the peer of `spec`; see `pslite.bench.driver`."""
        mine, theirs = socket.socketpair()
        with theirs:
            theirs.set_inheritable(True)
            command = [sys.executable, "-m", "pslite.bench.driver", str(theirs.fileno())]
            name = NodeName(label, len(self._started))
            child = self._family.start(name, [*command, spec, json.dumps(options)])
        driven = Driven(label, self._family, child, mine)
        self._started.append(driven)
        return driven

    def __enter__(self) -> Self:
        self._family.__enter__()
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        for driven in self._started:
            driven.shut()
        self._family.__exit__(kind, error, trace)
