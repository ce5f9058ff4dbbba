"""Looks into a running cluster from outside, without being one of its nodes.

    with Observer(van, "tcp://127.0.0.1:4000") as observer:
        for node in observer.nodes():
            print(node, observer.ask(node, "tables"))

The cluster does not notice: no rank is taken, nobody waits for an observer.
"""

from __future__ import annotations

import secrets
from types import TracebackType
from typing import Any, Self

from postoffice.errors import ObserverError
from postoffice.node import SCHEDULER_ID, Node, Role
from van.errors import VanError
from van.message import Control, Message, Meta
from van.van import Van

_PATIENCE = 1.0  # seconds before a question is asked again


class Observer:
    """Asks nodes about topics.

    Args:
        van: moves the questions; bound here, closed by `close`.
        scheduler: its address.
        bind: address to get answers at.
        timeout: seconds to wait for one answer.
    """

    def __init__(
        self, van: Van, scheduler: str, *, bind: str = "tcp://127.0.0.1:0", timeout: float = 5.0
    ) -> None:
        self._van, self._timeout = van, timeout
        self._scheduler = Node(Role.SCHEDULER, 0, scheduler, 0)
        self._reports: dict[int, dict[str, Any]] = {}
        self._asked: set[int] = set()
        self._refusal: VanError | None = None
        van.receiver = self._receive
        van.on_refused = self._note_refused
        van.bind(bind)

    def nodes(self) -> list[Node]:
        """The cluster's node table, by id; only the scheduler before all have come.

        Raises:
            ObserverError: the scheduler does not answer.
        """
        return [Node.unpack(entry) for entry in self.cluster()["nodes"]]

    def cluster(self) -> dict[str, Any]:
        """What the scheduler says: `phase`, `epoch`, `nodes` (packed), `gone` (ids), `missing`."""
        facts: dict[str, Any] = self.ask(self._scheduler, "cluster")
        return facts

    def scheduler(self, topic: str, wish: Any = None) -> Any:
        """What the scheduler reports, as `ask`."""
        return self.ask(self._scheduler, topic, wish)

    def ask(self, node: Node, topic: str, wish: Any = None) -> Any:
        """What `node` reports about `topic`; with a `wish`, what follows from that.

        Raises:
            ObserverError: no answer in time, or it knows nothing of that.
            HandshakeError: its keys and ours do not fit.
        """
        number = secrets.randbits(64)  # nobody else can answer for the node
        self._asked.add(number)
        meta = Meta(
            recipient=node.id,
            recipient_incarnation=node.incarnation,
            reply_to=self._van.address,
            control=Control.QUERY,
            body={"topic": topic, "number": number} | ({} if wish is None else {"wish": wish}),
        )
        self._van.connect(node.id, node.address)
        end = self._van.now() + self._timeout
        while not self._has_heard(number) and (left := end - self._van.now()) > 0:
            self._van.send(Message(meta))  # again, where the node had too many strangers to answer
            patience = _PATIENCE if wish is None else left
            self._van.wait(lambda: self._has_heard(number), min(patience, left))
        self._asked.discard(number)
        report = self._reports.pop(number, None)
        if report is None and self._refusal is not None:
            raise self._refusal
        if report is None:
            hint = "does the job still run?" if node.id == SCHEDULER_ID else "is it stuck?"
            raise ObserverError(f"{node} did not answer within {self._timeout:g} s; {hint}")
        if report["error"] is not None:
            raise ObserverError(f"{node}: {report['error']}")
        return report["facts"]

    def _has_heard(self, number: int) -> bool:
        return number in self._reports or self._refusal is not None

    def _note_refused(self, error: VanError) -> None:
        self._refusal = error

    def _receive(self, message: Message) -> None:
        meta = message.meta
        if meta.control is Control.REPORT and isinstance(meta.body, dict):
            number = meta.body.get("number")
            if (
                type(number) is int
                and number in self._asked
                and meta.body.keys() >= {"facts", "error"}
            ):
                self._reports[number] = meta.body

    def close(self) -> None:
        """Stop looking."""
        self._van.close(0)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self.close()
