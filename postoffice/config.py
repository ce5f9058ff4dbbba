"""Settings of the cluster: how many nodes of each role, and where they meet."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from postoffice.failure import DispatcherFailure, FailurePolicy, ServerFailure, WorkerFailure
from van.errors import ConfigError
from van.quantities import Seconds

MAX_WORKERS = 1 << 16  # more than one scheduler can serve
SHORTEST_BEAT = 0.01  # seconds
MAX_SERVERS = 1024  # one slot of the key space each


@dataclass(frozen=True, kw_only=True)
class ClusterConfig:
    """The nodes of one job, the ini section `[cluster]`.

    Raises:
        ConfigError: a value is out of range.
    """

    servers: int = 1  # server processes, 1 to 1024
    workers: int = 1  # worker processes, at least 1
    replicas: int = 0  # copies of each row on other servers, 0 or 1; 1 needs two servers
    dispatchers: int = 0  # processes that merge workers' pushes; at most one for each worker
    scheduler: str = "127.0.0.1:0"  # where the scheduler listens, HOST:PORT; port 0: any free one
    host: str = "127.0.0.1"  # where the other nodes listen and are reached
    bind: str = ""  # where nodes listen, if elsewhere: 0.0.0.0 is every address of the machine
    advertise: str = ""  # host by which others reach the other nodes of this machine; empty: host
    transport: Literal["tcp"] = "tcp"  # how messages travel between nodes
    start_timeout: Seconds = 60.0  # for all nodes to find each other; then the job ends
    heartbeat_interval: Seconds = 1.0  # how often a node says that it lives
    heartbeat_timeout: Seconds = 10.0  # a node silent for so long is dead, 1s or more; 0: never
    scheduler_timeout: Seconds = 60.0  # how long the others bear the scheduler's silence; 0: ever
    on_worker_failure: WorkerFailure = "stop"  # the job ends, goes on without it, or awaits it
    on_server_failure: ServerFailure = "stop"  # the same where no other server has its rows
    on_dispatcher_failure: DispatcherFailure = "continue"  # without it, or with another one
    restart_timeout: Seconds = 60.0  # for an awaited node to come back; then the job ends
    max_restarts: int = 3  # of one node by the launcher; then its failure ends the job
    journal: str = ""  # file from which a scheduler started again goes on; empty: none
    etcd: str = ""  # the same in etcd, http://HOST:PORT, where standbys wait; empty: none

    def __post_init__(self) -> None:
        split_address(self.scheduler)
        _check("servers", 1 <= self.servers <= MAX_SERVERS, self.servers, f"1 to {MAX_SERVERS}")
        _check("workers", 1 <= self.workers <= MAX_WORKERS, self.workers, f"1 to {MAX_WORKERS}")
        _check("host", bool(self.host), self.host, "a host name or address")
        is_place = self.advertise not in ("0.0.0.0", "::", "*")
        _check("advertise", is_place, self.advertise, "a host others reach; use bind to listen")
        _check("start_timeout", self.start_timeout > 0, self.start_timeout, "more than 0s")
        _check("replicas", self.replicas in (0, 1), self.replicas, "0 or 1")
        if self.replicas and self.servers < 2:
            raise _error("replicas", "a copy lies on another server: use [cluster] servers = 2")
        _check(
            "dispatchers",
            0 <= self.dispatchers <= self.workers,
            self.dispatchers,
            f"0 to {self.workers}, as many as there are workers",
        )
        _check("max_restarts", self.max_restarts >= 0, self.max_restarts, "0 or more")
        self._check_times()

    def _check_times(self) -> None:
        interval, timeout = self.heartbeat_interval, self.heartbeat_timeout
        _check("heartbeat_interval", interval >= SHORTEST_BEAT, f"{interval:g}s", "10ms or more")
        least = max(1.0, 2 * interval)
        _check(
            "heartbeat_timeout",
            timeout == 0 or timeout >= least,
            f"{timeout:g}s",
            f"0s, or {least:g}s or more (two heartbeats of {interval:g}s)",
        )
        for key in ("scheduler_timeout", "restart_timeout"):
            value = getattr(self, key)
            _check(key, value >= 0, value, "0s or more")

    @property
    def failures(self) -> FailurePolicy:
        """What the death of a node means."""
        return FailurePolicy(
            on_worker=self.on_worker_failure,
            on_server=self.on_server_failure,
            on_dispatcher=self.on_dispatcher_failure,
            restart_timeout=self.restart_timeout,
        )

    @property
    def advertised_host(self) -> str:
        """Where servers and workers of this machine are reached."""
        return self.advertise or self.host

    def listening_host(self, reached_at: str) -> str:
        """Where a node listens that others reach at the host `reached_at`."""
        if self.bind:
            return self.bind
        return self.host if reached_at == self.advertise else reached_at

    @property
    def scheduler_host(self) -> str:
        return split_address(self.scheduler)[0]

    @property
    def scheduler_port(self) -> int:
        return split_address(self.scheduler)[1]


def split_address(address: str) -> tuple[str, int]:
    """Host and port of `HOST:PORT` or `[IPV6]:PORT`.

    >>> split_address("127.0.0.1:9091"), split_address("[::1]:0")
    (('127.0.0.1', 9091), ('::1', 0))

    Raises:
        ConfigError: not of that form, or the port is not 0 to 65535.
    """
    host, colon, port = address.rpartition(":")
    if host.startswith("[") and host.endswith("]"):
        host = host[1:-1]
    elif ":" in host:
        raise _error("scheduler", f"{address!r}: write an IPv6 address as [ADDRESS]:PORT")
    if not colon or not host or not (port.isascii() and port.isdigit()) or int(port) > 65535:
        raise _error("scheduler", f"expected HOST:PORT with a port of 0 to 65535, got {address!r}")
    return host, int(port)


def join_address(host: str, port: int) -> str:
    """`HOST:PORT`, with brackets around an IPv6 address.

    >>> join_address("::1", 9091)
    '[::1]:9091'
    """
    return f"[{host}]:{port}" if ":" in host else f"{host}:{port}"


def _check(key: str, is_right: bool, value: object, expected: str) -> None:
    if not is_right:
        raise _error(key, f"expected {expected}, got {value}")


def _error(key: str, problem: str) -> ConfigError:
    return ConfigError(problem, section="cluster", key=key)
