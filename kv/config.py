"""Settings of the servers and of how workers keep step with each other."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from van.errors import ConfigError
from van.quantities import NBytes

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

    mode: Literal["async", "sync"] = "async"  # a push counts at once, or with all of its round
    key_deltas: Literal["auto", "on", "off"] = "auto"  # send keys as differences where smaller
