"""Settings of the servers and of how workers keep step with each other."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

from kv.consistency.settings import Consistency
from kv.errors import SettingError
from kv.retrying import Retry
from van.errors import ConfigError
from van.quantities import NBytes, Seconds

MOST_THREADS = 64
_REFERENCE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """One server, the ini section `[server]`."""

    app: str = ""  # one's own server program, MODULE:FUNCTION; empty: the tables of pslite
    threads: int = 0  # for long requests; 0: half of the cores, 8 at most
    spill_dir: str = ""  # of rows of tables with when_full=spill; empty: as for temporary files
    key_cache: NBytes = 64 << 20  # bytes of key lists remembered for each worker; 0 remembers none

    def __post_init__(self) -> None:
        if self.app and not _REFERENCE.fullmatch(self.app):
            raise ConfigError(
                f"expected MODULE:FUNCTION such as my_server:start, got {self.app!r}",
                section="server",
                key="app",
            )
        if not 0 <= self.threads <= MOST_THREADS:
            problem = f"expected 0 to {MOST_THREADS}, got {self.threads}"
            raise ConfigError(problem, section="server", key="threads")
        if self.key_cache < 0:
            problem = f"expected a size of 0 or more, got {self.key_cache}"
            raise ConfigError(problem, section="server", key="key_cache")


@dataclass(frozen=True, kw_only=True)
class ParamSyncConfig:
    """How pushes of several workers come together, the ini section `[param_sync]`."""

    mode: Literal["async", "dc_async", "ssp", "sync", "semi_sync"] = "async"  # when a push counts
    staleness: int = 4  # ssp: steps that the fastest worker may lead the slowest by
    quorum: float = 0.75  # semi_sync: workers that close a round; below 1 a fraction of the active
    window: Seconds = 0.0  # semi_sync: a round closes so long after its first step's end; 0: never
    backup_workers: int = 0  # semi_sync: instead of the quorum, so many slowest are dropped
    dc_lambda: float = 0.04  # dc_async: how much a gradient's delay is compensated
    dc_memory: int = 2  # dc_async: pulls of each worker that a server remembers
    lr_by_staleness: bool = False  # async: divide the learning rate of a push by its staleness
    max_staleness: int | None = None  # updates since the pull, above which pushes wait; empty: any
    max_retry: int = 5  # tries of a push that is staler, before its error is raised
    base_delay: Seconds = 0.1  # before the first of them; it doubles each time
    max_delay: Seconds = 2.0  # before any of them
    key_deltas: Literal["auto", "on", "off"] = "auto"  # send keys as differences where smaller

    def __post_init__(self) -> None:
        for mode, keys in _KEYS.items():  # also those of other modes: a mistake is one now
            self._check(mode, keys)
        for key in ("max_staleness", "max_retry", "base_delay", "max_delay"):
            value = getattr(self, key)
            if value is not None and value < 0:
                problem = f"expected 0 or more, got {value}"
                raise ConfigError(problem, section="param_sync", key=key)

    def _check(self, mode: str, keys: Mapping[str, str]) -> None:
        for key, setting in keys.items():
            try:
                Consistency.by_name(mode, **{setting: float(getattr(self, key))})
            except SettingError as error:
                raise ConfigError(error.problem, section="param_sync", key=key) from None

    @property
    def consistency(self) -> Consistency:
        """The mode with its settings."""
        keys = _KEYS.get(self.mode, {})
        values = {setting: float(getattr(self, key)) for key, setting in keys.items()}
        return Consistency.by_name(self.mode, **values)

    @property
    def retry(self) -> Retry:
        """How a push that is too stale is tried again."""
        return Retry(self.max_retry, self.base_delay, self.max_delay)

    @property
    def unused(self) -> list[str]:
        """Keys that are set to something and have no meaning in this mode."""
        others = [key for mode, keys in _KEYS.items() if mode != self.mode for key in keys]
        return [key for key in others if getattr(self, key) != getattr(type(self), key)]


_KEYS: Mapping[str, Mapping[str, str]] = {
    "async": {"lr_by_staleness": "lr_by_staleness"},
    "dc_async": {"dc_lambda": "lam", "dc_memory": "memory"},
    "ssp": {"staleness": "staleness"},
    "semi_sync": {"quorum": "quorum", "window": "window", "backup_workers": "backup_workers"},
}
"""By mode the keys of `[param_sync]` that it has, and its settings of another name."""
