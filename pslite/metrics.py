"""The metrics of a running job as Prometheus reads them, gathered from all its nodes.

`pslite metrics` prints them once, for a file that some collector reads; with `--listen` it answers
Prometheus itself. Nodes are asked each time, so a job that nobody looks at does no work for it.

Source of the format: Prometheus, Exposition formats, text format 0.0.4.
"""

from __future__ import annotations

import logging
import math
import sys
import threading
from collections.abc import Callable, Iterable, Sequence
from http.server import BaseHTTPRequestHandler, HTTPServer, ThreadingHTTPServer
from typing import Any

from postoffice.errors import ObserverError
from postoffice.node import Node, node_name
from postoffice.observer import Observer
from van.errors import ConfigError, PsliteError

log = logging.getLogger(__name__)

_PATIENCE = 10.0  # seconds for one who looks to say what he wants
CONTENT_TYPE = "text/plain; version=0.0.4; charset=utf-8"

Facts = Sequence[Any]
"""What one node says, as `postoffice.metrics.Metrics.facts`."""


def gather(observer: Observer) -> dict[str, Facts]:
    """What each node that is there says, by its name; `pslite_up` tells who did not answer.

    Raises:
        ObserverError: the scheduler does not answer.
    """
    cluster = observer.cluster()
    found: dict[str, Facts] = {}
    for node in map(Node.unpack, cluster["nodes"]):
        if node.id in cluster["gone"]:
            continue
        try:
            facts, is_up = list(observer.ask(node, "metrics")), 1
        except ObserverError:  # it may just have died, or be busy: the others are told all the same
            facts, is_up = [], 0
        facts.append(["pslite_up", "gauge", "Whether this node has answered.", [[{}, is_up]]])
        found[node_name(node.id)] = facts
    return found


def exposition(nodes: dict[str, Facts]) -> str:
    """The text that Prometheus reads.

    Args:
        nodes: by name, what they say.
    """
    families: dict[str, tuple[str, str, list[str]]] = {}
    for node, facts in nodes.items():
        for name, kind, meaning, samples in facts:
            lines = families.setdefault(name, (kind, meaning, []))[2]
            for labels, value in samples:
                lines += _lines(name, {"node": node, **labels}, value)
    text = []
    for name, (kind, meaning, lines) in sorted(families.items()):
        text += [f"# HELP {name} {_escaped(meaning, quote=False)}", f"# TYPE {name} {kind}", *lines]
    return "\n".join([*text, ""])


def _lines(name: str, labels: dict[str, str], value: Any) -> Iterable[str]:
    if not isinstance(value, dict):
        yield f"{name}{_labels(labels)} {_number(value)}"
        return
    for bound, count in [*value["buckets"], [math.inf, value["count"]]]:
        yield f"{name}_bucket{_labels(labels | {'le': _number(bound)})} {count}"
    yield f"{name}_sum{_labels(labels)} {_number(value['sum'])}"
    yield f"{name}_count{_labels(labels)} {value['count']}"


def _labels(labels: dict[str, str]) -> str:
    return "{" + ",".join(f'{name}="{_escaped(text)}"' for name, text in labels.items()) + "}"


def _escaped(text: str, *, quote: bool = True) -> str:
    text = text.replace("\\", "\\\\").replace("\n", "\\n")
    return text.replace('"', '\\"') if quote else text


def _number(value: float) -> str:
    if math.isinf(value):
        return "+Inf" if value > 0 else "-Inf"
    return str(value)


class _Server(ThreadingHTTPServer):
    """A thread for each look, so that nobody waits for one who says nothing."""

    daemon_threads = True

    def handle_error(self, request: Any, client_address: Any) -> None:
        """Who looks may hang up, or take too long, at any moment."""
        if not isinstance(sys.exception(), ConnectionError | TimeoutError):
            log.exception("a look by %s failed", client_address)


def exporter(host: str, port: int, read: Callable[[], str]) -> HTTPServer:
    """A web server that answers each look with what `read()` returns, one look at a time.

    What goes wrong with the job is answered with 503 and the reason.

    Raises:
        ConfigError: it cannot listen there.
    """

    lock = threading.Lock()

    class Handler(BaseHTTPRequestHandler):
        timeout = _PATIENCE

        def do_GET(self) -> None:
            if self.path.partition("?")[0] not in ("/", "/metrics"):
                self.send_error(404, "look at /metrics")
                return
            try:
                with lock:
                    text, status = read(), 200
            except PsliteError as error:
                text, status = f"{error}\n", 503
            body = text.encode()
            self.send_response(status)
            self.send_header("Content-Type", CONTENT_TYPE)
            self.send_header("Content-Length", str(len(body)))
            self.end_headers()
            self.wfile.write(body)

        def log_message(self, format: str, *args: Any) -> None:
            """Looks come every few seconds; nobody wants a line for each."""

    try:
        return _Server((host, port), Handler)
    except (OSError, OverflowError) as error:
        raise ConfigError(f"cannot listen at {host}:{port}: {error}", key="--listen") from None
