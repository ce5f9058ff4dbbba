"""What the scheduler answers to control messages: membership and barriers joined, still pure.

Gets a message and the time, returns the messages to send. Addresses to connect to travel beside
them, because a node gets its id only when all have come.
"""

from __future__ import annotations

import logging
from typing import Any

from postoffice.barrier import Barriers
from postoffice.errors import RegistrationError
from postoffice.membership import Membership, Phase, Registration
from postoffice.node import Group, Node, Role, node_name
from van.message import Control, Message, Meta

log = logging.getLogger(__name__)

Reply = tuple[str, Message]
"""An address to connect to first ('' for a node of the table) and a message."""


class SchedulerDesk:
    """Handles `REGISTER`, `BARRIER` and `GOODBYE`.

    Args:
        membership: the book of nodes.
        started: the time at which the scheduler began to listen.
        start_timeout: seconds until all nodes must have come.
        report_every: seconds between two reports of who is missing.
    """

    def __init__(
        self,
        membership: Membership,
        started: float,
        start_timeout: float,
        report_every: float = 10.0,
    ) -> None:
        self.membership = membership
        self.barriers = Barriers()
        self._deadline = started + start_timeout
        self._start_timeout = start_timeout
        self._report_every = report_every
        self._next_report = started + report_every

    def handle(self, message: Message) -> list[Reply]:
        """The replies to a control message of a node."""
        meta = message.meta
        if meta.control is Control.REGISTER:
            return self._register(meta)
        if meta.sender not in self.membership.nodes:
            return []
        if meta.control is Control.BARRIER:
            return self._barrier(meta)
        if meta.control is Control.GOODBYE:
            return self._goodbye(meta)
        return []

    def _register(self, meta: Meta) -> list[Reply]:
        known = self.membership.node_of(meta.reply_to, meta.incarnation)
        if known is not None:
            return [self._table_for(known)]
        try:
            request = Registration(
                role=Role(meta.body["role"]),
                rank=meta.body["rank"],
                address=meta.reply_to,
                incarnation=meta.incarnation,
            )
            if request.rank is not None and type(request.rank) is not int:
                raise RegistrationError(f"rank {request.rank!r} is no number")
            if not self.membership.register(request):
                return []
        except RegistrationError as error:
            return self._refuse(meta, str(error))
        except (KeyError, TypeError, ValueError):
            return self._refuse(meta, "a registration needs a role and a rank")
        log.info("all %d nodes have come", len(self.membership.nodes))
        return [
            self._table_for(node)
            for node in self.membership.nodes.values()
            if node.role is not Role.SCHEDULER
        ]

    @staticmethod
    def _refuse(meta: Meta, reason: str) -> list[Reply]:
        if not meta.reply_to:
            return []
        return [(meta.reply_to, Message(Meta(control=Control.REFUSED, body={"reason": reason})))]

    def _table_for(self, node: Node) -> Reply:
        table = [entry.pack() for entry in self.membership.nodes.values()]
        body = {"you": node.id, "nodes": table}
        return node.address, self._to(node.id, Control.NODES, body)

    def _to(self, node: int, control: Control, body: Any = None) -> Message:
        return Message(
            Meta(
                recipient=node,
                recipient_incarnation=self.membership.nodes[node].incarnation,
                control=control,
                epoch=self.membership.epoch,
                body=body,
            )
        )

    def _barrier(self, meta: Meta) -> list[Reply]:
        try:
            group, name, count = Group(meta.body["group"]), meta.body["name"], meta.body["count"]
            if type(name) is not str or type(count) is not int:
                raise TypeError
        except (KeyError, TypeError, ValueError):
            log.warning("dropped a barrier message without sense from %s", node_name(meta.sender))
            return []
        if self.membership.failure:
            return []  # the cluster ends: nobody passes a barrier because of a failure
        members = self.membership.members(group)
        if meta.sender not in members:
            reason = f"{node_name(meta.sender)} is not in {group!r}, at whose barrier it waits"
            return [("", self._release(meta.sender, group, name, count + 1, reason))]
        released = self.barriers.arrive(meta.sender, group, name, count, members)
        passed = self.barriers.passed(group, name)
        return [("", self._release(node, group, name, passed)) for node in released]

    def _release(
        self, node: int, group: Group, name: str, passed: int, error: str | None = None
    ) -> Message:
        body = {"group": int(group), "name": name, "passed": passed, "error": error}
        return self._to(node, Control.BARRIER_DONE, body)

    def _goodbye(self, meta: Meta) -> list[Reply]:
        failure = meta.body.get("failure") if isinstance(meta.body, dict) else None
        before = self.membership.phase
        self.membership.goodbye(meta.sender, failure if type(failure) is str else None)
        replies = [("", self._to(meta.sender, Control.GOODBYE_DONE))]
        if before is Phase.RUNNING and self.membership.phase is not Phase.RUNNING:
            replies += self.stop_all(self.membership.failure)
        if self.membership.failure:
            return replies
        for group, name in self.barriers.places():
            members = self.membership.members(group)
            for node in self.barriers.recheck(group, name, members):
                passed = self.barriers.passed(group, name)
                replies.append(("", self._release(node, group, name, passed)))
        return replies

    def stop_all(self, failure: str | None) -> list[Reply]:
        """Tell every node that has not gone that the cluster ends."""
        others = self.membership.members(Group.ALL & ~Group.SCHEDULER)
        return [("", self._to(node, Control.STOP, {"failure": failure})) for node in sorted(others)]

    def tick(self, now: float) -> str | None:
        """Watch the start; returns why the job must end, or None.

        While nodes are missing, a line every `report_every` seconds says how many of which role.
        """
        if self.membership.phase is not Phase.GATHERING:
            return None
        missing = self.membership.describe_missing()
        if now >= self._deadline:
            return (
                f"after {self._start_timeout:g} s these nodes have not come: {missing}; look at "
                f"their output, or raise [cluster] start_timeout"
            )
        if now >= self._next_report:
            self._next_report += self._report_every
            log.warning("waiting for %s", missing)
        return None

    def refuse_all(self, reason: str) -> list[Reply]:
        """Tell the nodes that did come that the cluster does not start."""
        return [
            (address, Message(Meta(control=Control.REFUSED, body={"reason": reason})))
            for address in self.membership.waiting_addresses()
        ]
