"""How long the stages of a request take in a process, seen by wrapping the functions that do them.

Nothing is paid where no trace is on: the code of pslite does not know of it. A stage's time is its
function's without that of other stages called within. A stage none of whose functions is there any
more is reported, not missed in silence.

`pslite.bench.trace:start` as `[server] app` traces a server; its spans are written to a file in the
folder that the environment names when the server ends.
"""

from __future__ import annotations

import atexit
import functools
import importlib
import inspect
import json
import os
import threading
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

FOLDER = "PSLITE_BENCH_TRACE"

Span = tuple[str, float, float]
"""Stage, when it began (on the clock that all processes share), its own seconds."""

# stage -> functions, each where its callers look it up; with (), the function that it returns. A
# stage has several where a request may take several ways.
WORKER = {
    "merge keys": ["kv.keylists.merged:MergedLists.prepare"],
    "split by server": ["kv.remote_worker:RemoteWorker._cut", "kv.conversation:cut_in_pieces"],
    "copy gradients": ["kv.conversation:pack"],
    "name the key list": ["kv.remote_worker:RemoteWorker._signature_to_send"],
    "encode and send": ["van.courier:ZmqVan.send"],
    "receive and decode": ["van.endpoints:Endpoints.next_message"],
    "put in the caller's order": ["kv.pulling:Pull.put", "kv.pulling:Pull.results"],
    "await the answer": ["van.endpoints:Endpoints.poll"],
    "rest": [
        "kv.remote_worker:RemoteWorker.pull_wanted",
        "kv.remote_worker:RemoteWorker.push_many",
        "kv.remote_worker:RemoteWorker.push_pull_wanted",
        "kv.remote_worker:RemoteWorker.wait",
    ],
}
SERVER = {
    "receive and decode": WORKER["receive and decode"],
    "look up": ["kv.store.index:Index.find"],
    "read rows": ["kv.store.formats:FloatRows.gather"],
    "update rows": ["kv.store.formats:FloatRows.update"],
    "rest of the store": ["kv.store.sparse:SparseStore.pull", "kv.store.sparse:SparseStore.push"],
    "check and dispatch": ["kv.table_server:TableServer._receive"],
    "encode and send": WORKER["encode and send"],
}


class Trace:
    """Spans of this process. `install` is for good."""

    def __init__(self) -> None:
        self.spans: list[Span] = []
        self.missing: list[str] = []
        self._inner = threading.local()

    def install(self, stages: dict[str, list[str]]) -> None:
        """Wrap the functions of all stages."""
        for stage, references in stages.items():
            found = [self._wrap(stage, reference) for reference in references]
            if not any(found):
                self.missing.append(f"{stage}: {', '.join(references)}")

    def _wrap(self, stage: str, reference: str) -> bool:
        """Whether there is such a function."""
        try:
            self._replace(stage, reference)
        except (ImportError, AttributeError):
            return False
        return True

    def _replace(self, stage: str, reference: str) -> None:
        module, _, path = reference.partition(":")
        owner: Any = importlib.import_module(module)
        *parents, name = path.split(".")
        for parent in parents:
            owner = getattr(owner, parent)
        makes_it, name = name.endswith("()"), name.removesuffix("()")
        function = getattr(owner, name)
        if makes_it:
            setattr(owner, name, lambda *args: self._timed_function(stage, function(*args)))
        else:
            setattr(owner, name, self.timed(stage, function))

    def _timed_function(self, stage: str, made: Any) -> Any:
        return self.timed(stage, made) if inspect.isfunction(made) else made

    def timed(self, stage: str, function: Callable[..., Any]) -> Callable[..., Any]:
        """`function`, each call noted as a span of `stage`."""
        inner, spans, clock = self._inner, self.spans, time.perf_counter

        @functools.wraps(function)
        def call(*args: Any, **kwargs: Any) -> Any:
            outside = getattr(inner, "seconds", 0.0)
            inner.seconds = 0.0
            begun = clock()
            try:
                return function(*args, **kwargs)
            finally:
                whole = clock() - begun
                spans.append((stage, begun, whole - inner.seconds))
                inner.seconds = outside + whole

        return call


def totals(spans: Sequence[Span], begun: float, ended: float) -> dict[str, float]:
    """Seconds of each stage among the spans that began between two times.

    >>> totals([("a", 1.0, 0.5), ("b", 2.0, 0.25), ("a", 3.0, 0.5), ("a", 9.0, 1.0)], 0.0, 5.0)
    {'a': 1.0, 'b': 0.25}
    """
    found: dict[str, float] = {}
    for stage, start, seconds in spans:
        if begun <= start <= ended:
            found[stage] = found.get(stage, 0.0) + seconds
    return found


def start(office: Any) -> None:
    """Trace this server; called before it joins the cluster."""
    trace = Trace()
    trace.install(SERVER)
    path = Path(os.environ[FOLDER]) / f"server-{os.getpid()}.json"
    atexit.register(lambda: path.write_text(json.dumps([trace.missing, trace.spans])))
