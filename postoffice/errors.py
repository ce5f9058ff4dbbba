"""Errors about who is in the cluster.

PsliteError
└── PostofficeError
    ├── ClusterStartError    nodes are missing when the time to start is up
    ├── RegistrationError    the scheduler refuses a node
    ├── BarrierError         a barrier cannot be passed
    ├── RequestTimeoutError  a request has no answer in time
    ├── ClusterStoppedError  the cluster stopped while something was waited for
    └── ObserverError        a node does not answer somebody outside the cluster
"""

from __future__ import annotations

from van.errors import PsliteError


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


class ObserverError(PostofficeError):
    """A node does not answer somebody who looks into the cluster from outside."""
