"""`pslite ctl scale`: another number of servers for a running job, while it goes on."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

from postoffice.observer import Observer
from van.errors import ConfigError

_LOOK = 0.2  # seconds between two looks


def scale(
    observer: Observer,
    servers: int,
    timeout: float,
    say: Callable[[str], None],
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Ask for `servers` servers, and return when the slots are where they belong.

    Servers that are still to come are named; each is started as any server node, without a rank.

    Raises:
        ConfigError: it is not done within `timeout` seconds; it goes on all the same.
        ObserverError: the scheduler does not answer, or refuses.
    """
    facts: dict[str, Any] = observer.scheduler("scale", servers)
    missing = servers - sum(rank < servers for rank in facts["alive"])
    if missing > 0:
        say(
            f"{missing} more to come: start `DMLC_ROLE=server pslite node` with the job's settings "
            f"and no PSLITE_RANK for each"
        )
    deadline = time.monotonic() + timeout
    while not _is_there(facts, servers):
        if time.monotonic() > deadline:
            raise ConfigError(
                f"not all slots have moved within {timeout:g} s: servers {facts['alive']}, orders "
                f"under way {facts['orders']}; they move on, look again with the same command"
            )
        sleep(_LOOK)
        facts = observer.scheduler("placement")
    say(f"{servers} servers have all slots (map {facts['version']})")


def _is_there(facts: dict[str, Any], servers: int) -> bool:
    has_come = len(facts["alive"]) == servers
    return has_come and facts["is_settled"] and set(facts["owner"]) == set(facts["alive"])
