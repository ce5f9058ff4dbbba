"""What a server keeps of slots that another one serves, besides their rows.

Those lie in the tables, and whose they are is said by the slots that a table calls its own. Here
are the pushes that the other server holds for their rounds, and which pushes it has applied or
holds: as the other would know it, so that this server can take its place.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray

from kv.consistency.base import Kept, Update
from kv.delivery.windows import Windows
from kv.engine_table import Table
from kv.placement import NUM_SLOTS
from kv.replication.records import Slots
from van.message import Meta

Keys = NDArray[np.uint64]


class Copies:
    """Pushes by table that other servers hold for rounds, and the windows of their slots."""

    def __init__(self) -> None:
        self.windows = Windows(np.zeros(NUM_SLOTS, np.bool_))
        self.held: dict[Table, list[Kept]] = {}

    def note(self, push: Meta | None, table: Table, slots: Slots) -> None:
        """The push was applied to that table in `slots`, or is held there."""
        if push is not None:
            stream = self.windows.stream(push)
            if stream is not None:
                self.windows.record(stream, push, slots, table=table.id)

    def hold(self, table: Table, rank: int, number: int, update: Update) -> None:
        """The other server holds a push for the round of that number."""
        self.held.setdefault(table, []).append((rank, number, update))

    def settle(self, table: Table, last: int, slots: Slots) -> None:
        """Rounds up to `last` are applied in `slots`: what was held for them is in the rows."""
        kept = self.held.get(table)
        if kept:
            left = [
                (rank, number, without(table, update, slots) if number <= last else update)
                for rank, number, update in kept
            ]
            self.held[table] = [entry for entry in left if entry[2].keys.size]

    def forget(self, slots: Slots) -> None:
        """The slots are copied anew, or not at all any more."""
        self.windows.forget(slots)
        for table in self.held:
            self.take_held(table, slots)

    def take_held(self, table: Table, slots: Slots) -> list[Kept]:
        """What is held for `slots`, which is then forgotten here."""
        kept = self.held.get(table, [])
        taken, left = parted(table, kept, slots)
        self.held[table] = left
        return taken


def without(table: Table, update: Update, slots: Slots) -> Update:
    """A push without its keys in `slots`."""
    return _chosen(update, ~slots[table.slots_of(update.keys)])


def within(table: Table, update: Update, slots: Slots) -> Update:
    """A push with its keys in `slots` only."""
    return _chosen(update, slots[table.slots_of(update.keys)])


def parted(table: Table, kept: Sequence[Kept], slots: Slots) -> tuple[list[Kept], list[Kept]]:
    """Kept pushes in two: their keys in `slots`, and the rest, with those that have no keys."""
    inside: list[Kept] = []
    outside: list[Kept] = []
    for rank, number, update in kept:
        mine = within(table, update, slots)
        if mine.keys.size:
            inside.append((rank, number, mine))
        if mine.keys.size < update.keys.size or not update.keys.size:
            outside.append((rank, number, without(table, update, slots)))
    return inside, outside


def _chosen(update: Update, chosen: NDArray[np.bool_]) -> Update:
    if chosen.all():
        return update
    return update._replace(keys=update.keys[chosen], grads=update.grads[chosen])
