"""Errors about who is in the cluster.

PsliteError
└── PostofficeError
    ├── ClusterStartError    nodes are missing when the time to start is up
    ├── RegistrationError    the scheduler refuses a node
    ├── BarrierError         a barrier cannot be passed
    ├── RequestTimeoutError  a request has no answer in time
    ├── ClusterStoppedError  the cluster stopped while something was waited for
    ├── DeadNodeError        something was meant for a node that is dead
    ├── FencedNodeError      this node was declared dead: the others do not listen to it any more
    ├── SchedulerLostError   the scheduler has been silent for too long
    ├── JournalError         the scheduler's journal cannot be read or written
    │   └── LeadershipLostError  another scheduler leads
    └── ObserverError        a node does not answer somebody outside the cluster
"""

from __future__ import annotations

from van.errors import PsliteError, UnreachablePeerError


class PostofficeError(PsliteError):
    """Something about the cluster's membership went wrong."""


class ClusterStartError(PostofficeError):
    """The cluster is not complete in time; the text names the nodes that are missing."""


class RegistrationError(PostofficeError):
    """The scheduler refuses a node: too many of its role, or settings that disagree."""


class BarrierError(PostofficeError):
    """A barrier cannot be passed; the text names who is missing or misuses it."""


class RequestTimeoutError(PostofficeError):
    """A request has no answer in time; the text names the nodes that did not answer."""


class ClusterStoppedError(PostofficeError):
    """The cluster stopped while this node was waiting."""


class DeadNodeError(PostofficeError, UnreachablePeerError):
    """Something was meant for a node that is dead."""

    def __init__(self, node: int, name: str, hint: str = "") -> None:
        super().__init__(node, f"{name} is dead{f'; {hint}' if hint else ''}")


class FencedNodeError(PostofficeError):
    """This node was declared dead or replaced, and the others do not listen to it any more."""


class SchedulerLostError(PostofficeError):
    """The scheduler has been silent for longer than `[cluster] scheduler_timeout`."""


class JournalError(PostofficeError):
    """The scheduler's journal cannot be read or written; the text says where and what to do."""

    def __init__(self, where: str, problem: str) -> None:
        self.where, self.problem = where, problem
        super().__init__(f"the scheduler's journal {where}: {problem}")


class LeadershipLostError(JournalError):
    """Another scheduler leads the cluster now; this one must not say anything any more."""

    def __init__(self, where: str) -> None:
        super().__init__(where, "another scheduler leads now, so this one ends")


class ObserverError(PostofficeError):
    """A node does not answer somebody who looks into the cluster from outside."""
