"""What every node is told about its cluster before it meets it."""

from __future__ import annotations

from dataclasses import dataclass, field

from postoffice.failure import FailurePolicy


@dataclass(frozen=True, kw_only=True)
class ClusterShape:
    """How many nodes there are, where the scheduler is, and how long anybody may be silent."""

    servers: int
    workers: int
    scheduler: str  # its address, such as tcp://127.0.0.1:4000
    dispatchers: int = 0
    start_timeout: float = 60.0  # seconds until all nodes must have come
    report_every: float = 10.0  # seconds between two reports of who is missing
    heartbeat_interval: float = 1.0  # seconds between two heartbeats of a node
    heartbeat_timeout: float = 10.0  # seconds of silence after which a node is dead; 0: never
    scheduler_timeout: float = 60.0  # seconds of the scheduler's silence that nodes bear
    failures: FailurePolicy = field(default_factory=FailurePolicy)
