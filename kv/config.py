"""Settings of the servers and of how workers keep step with each other."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import Literal

from van.errors import ConfigError

_REFERENCE = re.compile(r"[^\W\d]\w*(\.[^\W\d]\w*)*:[^\W\d]\w*(\.[^\W\d]\w*)*")


@dataclass(frozen=True, kw_only=True)
class ServerConfig:
    """One server, the ini section `[server]`."""

    app: str = ""  # one's own server program, MODULE:FUNCTION; empty: the tables of pslite

    def __post_init__(self) -> None:
        if self.app and not _REFERENCE.fullmatch(self.app):
            raise ConfigError(
                f"expected MODULE:FUNCTION such as my_server:start, got {self.app!r}",
                section="server",
                key="app",
            )


@dataclass(frozen=True, kw_only=True)
class ParamSyncConfig:
    """How pushes of several workers come together, the ini section `[param_sync]`."""

    mode: Literal["async", "sync"] = (
        "async"  # async: at once; sync: one step a round of all workers
    )
