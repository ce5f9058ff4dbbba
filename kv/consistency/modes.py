"""Modes by name. A new one is a class beside this file, its settings, and a line here."""

from __future__ import annotations

from kv.consistency.asynchronous import Asynchronous
from kv.consistency.base import Context, Mode
from kv.consistency.bounded import StaleSynchronous
from kv.consistency.compensated import DelayCompensated
from kv.consistency.semi_sync import SemiSynchronous
from kv.consistency.sync import Synchronous

MODES: dict[str, type[Mode]] = {
    mode.name: mode
    for mode in (Asynchronous, DelayCompensated, StaleSynchronous, Synchronous, SemiSynchronous)
}


def mode_of(context: Context) -> Mode:
    """The mode of one table that its settings say."""
    return MODES[context.settings.name](context)
