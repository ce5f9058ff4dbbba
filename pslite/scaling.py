"""`pslite ctl scale`: another number of servers for a running job, while it goes on.

The scheduler moves the slots and says which ranks are to come and who may go. A job of `pslite
local` has a launcher, which starts the processes; one rank after the other, so that each is known
by the name it is started under. Elsewhere somebody has to start them, and is told so.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from postoffice.observer import Observer
from pslite.commands import ask_launcher, has_launcher
from van.errors import ConfigError

_LOOK = 0.2  # seconds between two looks

Ask = Callable[[dict[str, Any]], dict[str, Any]]
"""Gives a command to the job's launcher."""


def launcher_of(run: Path | None, scheduler: str | None, timeout: float = 5.0) -> Ask | None:
    """The launcher of the job; None if it has none that can be asked."""
    folder = run or Path("run")
    if scheduler is not None or not has_launcher(folder):
        return None
    return lambda command: ask_launcher(folder, command, timeout)


def scale(
    observer: Observer,
    servers: int,
    timeout: float,
    say: Callable[[str], None],
    ask: Ask | None = None,
    sleep: Callable[[float], None] = time.sleep,
) -> None:
    """Ask for `servers` servers, and return when the slots are where they belong.

    Args:
        ask: reaches the launcher, which starts servers; None: those that are still to come are
            named, and each is started as any server node, without a rank.
    Raises:
        ConfigError: it is not done within `timeout` seconds; it goes on all the same. Or the
            launcher does not answer, or refuses.
        ObserverError: the scheduler does not answer, or refuses.
    """
    if ask is not None:  # first, as it may refuse; so may the scheduler, and then nothing changes
        ask({"do": "check", "servers": servers})
    facts: dict[str, Any] = observer.scheduler("scale", servers)
    if ask is not None:
        ask({"do": "scale", "servers": servers})
    missing = facts["missing"]
    if missing and ask is None:
        say(
            f"{len(missing)} more to come: start `DMLC_ROLE=server pslite node` with the job's "
            f"settings and no PSLITE_RANK for each"
        )
    deadline = time.monotonic() + timeout
    asked: int | None = None
    while not _is_there(facts, servers):
        if ask is not None and facts["missing"] and facts["missing"][0] != asked:
            asked = int(facts["missing"][0])
            if ask({"do": "start", "rank": asked})["is_new"]:
                say(f"server {asked} is started")
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
