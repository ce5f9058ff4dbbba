"""Tables that a run which repeats cannot have: their values depend on more than an order."""

from __future__ import annotations

from collections.abc import Callable

from kv.consistency.settings import SemiSync, Sync
from kv.errors import SettingError
from kv.spec import TableSpec


def checking(workers: int, *, has_order: bool, dispatchers: int = 0) -> Callable[[TableSpec], None]:
    """What raises SettingError for such a table, given its definition with its mode resolved.

    Args:
        workers: of the job.
        has_order: whether a record holds the order of requests; else rounds or a single worker
            must make it not matter.
        dispatchers: of the job.
    """

    def check(spec: TableSpec) -> None:
        problem = _of_time(spec)
        if problem is None and not has_order and workers > 1:
            problem = _of_order(spec) or (_of_merging(spec) if dispatchers else None)
        if problem is not None:
            raise SettingError(f"table {spec.name}", problem)

    return check


def _of_time(spec: TableSpec) -> str | None:
    if spec.expiry is not None:
        return (
            f"expiry {spec.expiry.name} goes by the clock, so no run with it repeats; leave it out"
        )
    if isinstance(spec.mode, SemiSync) and spec.mode.window > 0:
        return "mode semi_sync closes rounds by the clock with window > 0; set window = 0"
    return None


def _of_order(spec: TableSpec) -> str | None:
    if not isinstance(spec.mode, Sync):
        name = "none" if spec.mode is None else spec.mode.name
        return (
            f"in mode {name} values depend on when pushes come, which [run] deterministic cannot "
            f"fix for several workers; use mode sync, or one worker, or leave deterministic out "
            f"and record the run (--record) to repeat it (--replay)"
        )
    if spec.when_full == "evict" and spec.memory_limit:
        return (
            "when_full = evict takes rows by when they were read, which [run] deterministic cannot "
            "fix for several workers; use refuse or spill"
        )
    return None


def _of_merging(spec: TableSpec) -> str | None:
    chain = spec.compression and spec.compression.dispatcher_server
    if chain is None or not chain.loses:
        return None
    return (
        f"compression {chain} on the link dispatcher-server keeps back what depends on whether a "
        f"round's pushes leave as one, which [run] deterministic cannot fix; say "
        f"{spec.name}@dispatcher-server = none in [compression]"
    )
