"""The scheduler's node: a postoffice whose control messages go to the desk.

office = SchedulerOffice(van, shape)
print(office.listen())            # nodes can register from here on
office.start()                    # returns when all have come
office.serve()                    # returns when all have gone
office.finalize()
"""

from __future__ import annotations

from typing import Any

from postoffice.errors import ClusterStartError, ClusterStoppedError
from postoffice.membership import Membership, Phase
from postoffice.node import SCHEDULER_ID, Node, Role
from postoffice.postoffice import RETRY, ClusterShape, Postoffice
from postoffice.scheduler import SchedulerDesk
from van.message import Message
from van.van import Van

_LAST_GOODBYES = 3.0  # seconds the scheduler stays for them after a failure


class SchedulerOffice(Postoffice):
    """The scheduler of a cluster; it listens on the shape's scheduler address.

    Args:
        van: moves its messages; bound by `listen` or `start`.
        shape: the cluster.
        incarnation: grows from start to start; by default the time in nanoseconds.
    """

    def __init__(self, van: Van, shape: ClusterShape, *, incarnation: int | None = None) -> None:
        super().__init__(
            Role.SCHEDULER, van, shape, bind=shape.scheduler, rank=0, incarnation=incarnation
        )
        self.node_id = SCHEDULER_ID
        self._desk: SchedulerDesk | None = None
        self.queries.offer("cluster", self._facts)

    def listen(self) -> str:
        """Bind, so that nodes can register; returns the real address.

        Raises:
            AddressError: the address is not to be had.
        """
        if self._desk is None:
            shape = self.shape
            me = Node(Role.SCHEDULER, 0, self.van.bind(shape.scheduler), self.incarnation)
            self.nodes = {me.id: me}
            expected = {
                Role.SERVER: shape.servers,
                Role.WORKER: shape.workers,
                Role.DISPATCHER: shape.dispatchers,
            }
            self._desk = SchedulerDesk(
                Membership(expected, me), self.van.now(), shape.start_timeout, shape.report_every
            )
        return self.van.address

    def _facts(self) -> dict[str, Any]:
        """What `postoffice.observer.Observer.cluster` returns."""
        membership = self._membership
        return {
            "phase": membership.phase.value,
            "epoch": membership.epoch,
            "nodes": [membership.nodes[node].pack() for node in sorted(membership.nodes)],
            "gone": sorted(membership.gone),
            "missing": membership.describe_missing() if membership.phase is Phase.GATHERING else "",
        }

    @property
    def _membership(self) -> Membership:
        assert self._desk is not None, "listen comes first"
        return self._desk.membership

    def start(self) -> None:
        """Return when all nodes have come.

        Raises:
            ClusterStartError: not all come in time; the text names who is missing.
            AddressError: the address to listen on is not to be had.
        """
        self.listen()
        assert self._desk is not None
        while self._membership.phase is Phase.GATHERING:
            self.van.wait(lambda: self._membership.phase is not Phase.GATHERING, timeout=RETRY)
            problem = self._desk.tick(self.van.now())
            if problem is not None:
                self._send_replies(self._desk.refuse_all(problem))
                raise ClusterStartError(problem)

    def serve(self) -> None:
        """Return when every node has said goodbye.

        Raises:
            ClusterStoppedError: a node failed; the text says which and why.
        """
        membership = self._membership
        self.van.wait(lambda: membership.phase is not Phase.RUNNING or self._stopped)
        # After a failure some nodes may be past saying goodbye.
        patience = _LAST_GOODBYES if membership.failure or self._stopped else None
        self.van.wait(lambda: membership.phase is Phase.STOPPED, patience)
        failure = membership.failure or self._failure
        if failure is not None:
            raise ClusterStoppedError(failure)

    def stop(self, failure: str | None = None) -> None:
        """End the cluster; any thread."""
        if self._desk is not None:
            self._send_replies(self._desk.stop_all(failure))
        super().stop(failure)

    def finalize(self, failure: str | None = None, timeout: float = 10.0) -> None:
        """Close; what was sent last still gets the van's linger."""
        self.van.close()

    def _receive_control(self, message: Message) -> None:
        assert self._desk is not None
        self._send_replies(self._desk.handle(message))
        self.nodes = dict(self._membership.nodes)
