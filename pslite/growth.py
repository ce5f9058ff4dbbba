"""More servers while a job runs: what its launcher does when `pslite ctl scale` asks.

    {"do": "check", "servers": 3}   whether there can be so many; their keys are made
    {"do": "scale", "servers": 3}   likewise, and there are to be so many
    {"do": "start", "rank": 2}      start the server of that rank, unless it runs

Which ranks are to come the scheduler says; servers that leave end by themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

from pslite import repeating
from pslite.capacity import check_size
from pslite.config import JobConfig
from pslite.keyring import check_keys, make_keys, names_of
from van.errors import ConfigError


class Growth:
    """The servers of one job, as many as are wanted now.

    Args:
        job: with its folder of keys, if it has one.
        makes_keys: whether those keys were made for this job alone, and more may be.
        start: starts the server of a rank; False if it runs already.
        is_running: whether the job has started and does not end yet.

    Attributes:
        servers: how many are wanted.
    """

    def __init__(
        self,
        job: JobConfig,
        makes_keys: bool,
        start: Callable[[int], bool],
        is_running: Callable[[], bool],
    ) -> None:
        self._job, self._makes_keys = job, makes_keys
        self._start, self._is_running = start, is_running
        self.servers = self._most = job.cluster.servers

    def handle(self, command: dict[str, Any]) -> dict[str, Any]:
        """Do what a command says.

        Raises:
            ConfigError: it cannot be done, or it is none.
        """
        if not self._is_running():
            raise ConfigError("the job is only starting, or ends; look at pslite status")
        what = command.get("do")
        if what in ("check", "scale"):
            servers = _whole(command, "servers")
            self._check(servers)
            if what == "scale":
                self.servers, self._most = servers, max(servers, self._most)
            return {"servers": self.servers}
        if what == "start":
            rank = _whole(command, "rank")
            if rank >= self.servers:
                raise ConfigError(f"server {rank} is none of {self.servers}")
            return {"is_new": self._start(rank)}
        raise ConfigError(f"{what!r} is no command; check, scale and start are")

    def _check(self, servers: int) -> None:
        if why_fixed := repeating.why_fixed(self._job):
            raise ConfigError(f"this job cannot be scaled: {why_fixed}")
        cluster = replace(self._job.cluster, servers=servers)  # finds what is out of range
        check_size(replace(self._job, cluster=cluster))
        security = self._job.security
        if security.curve and self._makes_keys:
            make_keys(Path(security.keys), names_of("server", servers), [])
        elif security.curve:
            check_keys(security, cluster)

    def grown(self, job: JobConfig) -> JobConfig:
        """`job` with as many servers as there have been at most: none has a higher rank."""
        return replace(job, cluster=replace(job.cluster, servers=self._most))


def _whole(command: dict[str, Any], key: str) -> int:
    value = command.get(key)
    if type(value) is not int or value < 0:
        raise ConfigError(f"{key} is {value!r}, not a whole number")
    return value
