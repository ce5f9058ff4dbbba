"""What the scheduler answers to those who come to a barrier. Pure.

Who waits says so again every second, so that a message may be lost, and is told for whom it waits.
"""

from __future__ import annotations

import logging
from collections.abc import Iterable
from typing import Any

from postoffice.barrier import Barriers
from postoffice.membership import Membership
from postoffice.node import Group, node_name
from van.message import Control, Message, Meta

log = logging.getLogger(__name__)


class BarrierDesk:
    """Answers `BARRIER` messages.

    Args:
        membership: says who belongs to a group.
    """

    def __init__(self, membership: Membership) -> None:
        self.barriers = Barriers()
        self._membership = membership

    def come(self, meta: Meta) -> list[Message]:
        """A node has come to a barrier, or says again that it has."""
        try:
            group, name, count = Group(meta.body["group"]), meta.body["name"], meta.body["count"]
            if type(name) is not str or type(count) is not int:
                raise TypeError
        except (KeyError, TypeError, ValueError):
            log.warning("dropped a barrier message without sense from %s", node_name(meta.sender))
            return []
        if self._membership.failure:
            return []  # the cluster ends: nobody passes a barrier because of a failure
        members = self._membership.members(group)
        if meta.sender not in members:
            reason = f"{node_name(meta.sender)} is not in {group!r}, at whose barrier it waits"
            return [self._release(meta.sender, group, name, count + 1, reason)]
        released = self.barriers.arrive(meta.sender, group, name, count, members)
        if not released:
            waits_for = self._describe(group, name, members)
            body = {"group": int(group), "name": name, "waits_for": waits_for}
            return [self._to(meta.sender, Control.BARRIER, body)]
        return self._release_all(released, group, name)

    def recheck(self) -> list[Message]:
        """Whom to let through after a change of membership."""
        messages: list[Message] = []
        if self._membership.failure:
            return messages
        for group, name in self.barriers.places():
            released = self.barriers.recheck(group, name, self._membership.members(group))
            messages += self._release_all(released, group, name)
        return messages

    def _describe(self, group: Group, name: str, members: set[int]) -> str:
        """Who is missing, the dead marked."""
        missing = self.barriers.missing(group, name, members)
        deaths = self._membership.deaths
        return ", ".join(
            f"{node_name(node)} (dead: it {deaths[node]})" if node in deaths else node_name(node)
            for node in missing
        )

    def _release_all(self, nodes: Iterable[int], group: Group, name: str) -> list[Message]:
        passed = self.barriers.passed(group, name)
        here = self._membership.nodes
        return [self._release(node, group, name, passed) for node in nodes if node in here]

    def _release(
        self, node: int, group: Group, name: str, passed: int, error: str | None = None
    ) -> Message:
        body = {"group": int(group), "name": name, "passed": passed, "error": error}
        return self._to(node, Control.BARRIER_DONE, body)

    def _to(self, node: int, control: Control, body: Any) -> Message:
        incarnation = self._membership.nodes[node].incarnation
        return Message(
            Meta(recipient=node, recipient_incarnation=incarnation, control=control, body=body)
        )
