"""A process that holds one peer, and times it when told to.

    python -m pslite.bench.driver FD SPEC OPTIONS

FD is a socket to the command; it brings one JSON request a line, `{"do": NAME, ...}`, and takes one
JSON answer each. The process ends when the socket closes. SPEC is a Python file with a class
`Peer`, or `MODULE:CLASS`; OPTIONS are the class' keyword arguments, as JSON.

All peers are timed by the loop that stands here, over the same lists of keys, made beforehand.
"""

from __future__ import annotations

import importlib
import importlib.util
import inspect
import itertools
import json
import socket
import sys
import time
import traceback
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Any

from pslite.bench.cases import TableCase, gradients, position_lists

MOST_CALLS = 2000  # of one block
LEAST_CALLS = 3
INSTALL = "pip install 'pslite[bench]'"


class Driver:
    """Answers requests about one peer. A request names a method here, or else one of the peer."""

    def __init__(self, peer: Any) -> None:
        self.peer = peer
        self._prepared: tuple[int, int, str] | None = None
        self._armed: list[Callable[[], Any]] = []

    def answer(self, request: dict[str, Any]) -> Any:
        name = request.pop("do")
        if name.startswith("_"):
            raise AttributeError(f"no request {name}")
        return getattr(self if hasattr(self, name) else self.peer, name)(**request)

    def arm(self, case: dict[str, Any], seed: int, calls: int) -> None:
        """Make the lists of a block of `calls` calls, which `fire` then times."""
        self._prepare(chosen := TableCase(**case))
        self._armed = self._calls(chosen, seed, calls)

    def fire(self) -> dict[str, Any]:
        """Seconds of each call, and when the first began and the last ended.

        The times are of the clock that all processes of a machine share.
        """
        seconds, began = [], time.perf_counter()
        for call in self._armed:
            start = time.perf_counter()
            call()
            seconds.append(time.perf_counter() - start)
        ended = time.perf_counter()
        self._armed = []
        return {"seconds": seconds, "began": began, "ended": ended}

    def calibrate(self, case: dict[str, Any], seconds: float) -> int:
        """How many calls of a case fill `seconds`, after some that are not timed."""
        self._prepare(chosen := TableCase(**case))
        self._armed = self._calls(chosen, seed=0, calls=LEAST_CALLS)
        fastest: float = min(self.fire()["seconds"])
        return min(MOST_CALLS, max(LEAST_CALLS, round(seconds / fastest)))

    def loop(self, method: str, arguments: dict[str, Any], calls: int) -> list[float]:
        """Seconds of each of `calls` calls of one method of the peer with the same arguments."""
        function = getattr(self.peer, method)
        seconds = []
        for _ in range(calls):
            start = time.perf_counter()
            function(**arguments)
            seconds.append(time.perf_counter() - start)
        return seconds

    def _prepare(self, case: TableCase) -> None:
        wanted = (case.rows, case.dim, case.optimizer)
        if self._prepared != wanted:
            self._prepared = None
            self.peer.prepare(*wanted)
            self._prepared = wanted

    def _calls(self, case: TableCase, seed: int, calls: int) -> list[Callable[[], Any]]:
        lists = itertools.islice(position_lists(case, seed), calls)
        keys = [self.peer.keys(positions) for positions in lists]
        method = getattr(self.peer, case.op)
        if not case.has_gradients:
            return [partial(method, k) for k in keys]
        grads = itertools.cycle(gradients(case, seed))
        return [partial(method, k, g) for k, g in zip(keys, grads, strict=False)]


def load_peer(spec: str) -> Any:
    """The class that SPEC names."""
    if spec.endswith(".py"):
        path = Path(spec).resolve()
        found = importlib.util.spec_from_file_location(path.stem, path)
        if found is None or found.loader is None:
            raise ImportError(f"{path} is no Python file")
        module = importlib.util.module_from_spec(found)
        sys.modules[path.stem] = module  # a peer may send its functions by name
        found.loader.exec_module(module)
        return module.Peer
    name, _, member = spec.partition(":")
    return getattr(importlib.import_module(name), member)


def serve(channel: socket.socket, spec: str, options: dict[str, Any]) -> None:
    """Answer requests until the channel closes."""
    driver: Driver | None = None
    with channel, channel.makefile("rw", encoding="utf-8") as lines:
        for line in lines:
            try:
                if driver is None:
                    kind = load_peer(spec)
                    known = inspect.signature(kind).parameters
                    driver = Driver(kind(**{k: v for k, v in options.items() if k in known}))
                answer = {"result": driver.answer(json.loads(line))}
            except Exception as error:
                traceback.print_exc()
                answer = {"error": f"{type(error).__name__}: {error}"}
                if isinstance(error, ModuleNotFoundError):
                    answer["error"] += f" ({INSTALL} has what peers need, but for ray)"
            lines.write(json.dumps(answer) + "\n")
            lines.flush()
    close = getattr(driver and driver.peer, "close", None)
    if close is not None:
        close()


if __name__ == "__main__":
    serve(socket.socket(fileno=int(sys.argv[1])), sys.argv[2], json.loads(sys.argv[3]))
