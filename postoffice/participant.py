"""A node among others: who it is and who is there, waiting for them, and its end.

Nothing is sent or taken here: `postoffice.sender` and `postoffice.receiver` add that.

Source: ps-lite, src/postoffice.cc.
"""

from __future__ import annotations

import logging
import math
import secrets
from collections import Counter
from collections.abc import Callable

from postoffice.errors import ClusterStoppedError, PostofficeError
from postoffice.metrics import Metrics
from postoffice.node import Node, Role, node_name
from postoffice.queries import Queries
from postoffice.shape import ClusterShape
from postoffice.view import ClusterView
from van.van import Van

log = logging.getLogger(__name__)


class Participant:
    """What a node knows of itself and of the cluster.

    Args:
        role: what this node does.
        van: moves its messages.
        shape: the cluster.
        nonce: tells this process from all others until the scheduler has given it an incarnation;
            by default random.

    Attributes:
        view: what this node knows of the cluster.
        nodes: the node table of `view`.
        epoch: that of `view`.
        incarnation: this node's life; 0 until it is in the cluster.
        counts: what has happened how often.
    """

    def __init__(
        self, role: Role, van: Van, shape: ClusterShape, *, nonce: int | None = None
    ) -> None:
        self.role, self.van, self.shape = role, van, shape
        self.view = ClusterView()
        self.nodes: dict[int, Node] = {}
        self.node_id = 0  # until it is given one
        self.epoch = 0
        self.incarnation = 0
        self.nonce = secrets.randbits(63) if nonce is None else nonce
        self.counts: Counter[str] = Counter()
        self.queries, self.metrics = Queries(), Metrics()
        self.metrics.offer(
            "pslite_network_tx_bytes",
            "counter",
            "Bytes of the messages that this node has sent.",
            lambda: [({}, self.van.counts["sent_bytes"])],
        )
        self.queries.offer("metrics", self.metrics.facts)
        self._end: tuple[type[PostofficeError], str] | None = None
        self._stopped = False

    # -- who is there -------------------------------------------------------------------------

    @property
    def rank(self) -> int:
        """This node's rank within its role."""
        return self.nodes[self.node_id].rank

    @property
    def name(self) -> str:
        """Such as `worker 0`."""
        return node_name(self.node_id) if self.node_id else f"{self.role} (not started)"

    @property
    def is_stopped(self) -> bool:
        """Whether this node must end: the cluster has, or this node is no part of it any more."""
        return self._stopped

    def members(self, role: Role) -> list[int]:
        """Ids of the nodes of `role` in the node table, by rank."""
        return sorted(node.id for node in self.nodes.values() if node.role is role)

    # -- waiting ------------------------------------------------------------------------------

    def wait(
        self,
        done: Callable[[], bool],
        timeout: float | None = None,
        what: Callable[[], str] = lambda: "others",
    ) -> bool:
        """Move messages until `done()`; False when `timeout` seconds are over.

        A long wait is reported from time to time, with `what()` it is for.

        Raises:
            ClusterStoppedError: the cluster ended first.
            FencedNodeError: this node was declared dead.
            SchedulerLostError: the scheduler has been silent for too long.
        """
        started, every = self.van.now(), self.van.reports_waits
        while True:
            left = None if timeout is None else timeout - (self.van.now() - started)
            turn = left if every is None else min(every, math.inf if left is None else left)
            if self.van.wait(lambda: done() or self._stopped, turn):
                if done():
                    return True
                self.raise_end()
                raise ClusterStoppedError("the cluster has stopped")
            waited = self.van.now() - started
            if every is None or self.van.is_closed or (timeout is not None and waited >= timeout):
                return False
            log.warning("%s has waited %.0f s for %s%s", self.name, waited, what(), self._away())

    def _away(self) -> str:
        """For people who wait: what else is wrong."""
        return ""

    # -- its end ------------------------------------------------------------------------------

    def stop(self, failure: str | None = None) -> None:
        """End this node's `serve`, from any thread."""
        self._stop(ClusterStoppedError, failure)

    def _stop(self, kind: type[PostofficeError], failure: str | None) -> None:
        if self._end is None and failure is not None:
            self._end = (kind, failure)
        self._stopped = True

    def raise_end(self) -> None:
        """Raise why this node must end, if it must and not because all is done."""
        if self._end is not None:
            kind, text = self._end
            raise kind(text)
