"""Pushes of workers: each goes into a buffer, its hot rows into one that leaves earlier."""

from __future__ import annotations

from collections import Counter

from kv.dispatcher.buffers import Pairs, Place
from kv.dispatcher.hotkeys import HotKeys, parted
from kv.dispatcher.known_tables import KnownTables
from kv.dispatcher.members import Members
from kv.dispatcher.merging import Merging
from kv.dispatcher.receiving import Shard, received
from kv.dispatcher.upstream import Servers
from postoffice.postoffice import Postoffice
from van.message import Message


class Pushes:
    """Takes pushes. Called with the dispatcher's lock held.

    Args:
        office: the dispatcher's node.
        servers: know the slot map.
        tables: those that are known.
        pairs: the buffers.
        members: the dispatcher's workers.
        merging: sends buffers on.
        counts: of pushes and their rows.
        hot: finds the keys that many push; None: nothing leaves earlier.
        may_move: rows may get another owner at any time.
    """

    def __init__(
        self,
        office: Postoffice,
        servers: Servers,
        tables: KnownTables,
        pairs: Pairs,
        members: Members,
        merging: Merging,
        counts: Counter[str],
        hot: HotKeys | None,
        may_move: bool,
    ) -> None:
        self._office, self._servers, self._tables = office, servers, tables
        self._pairs, self._members, self._merging = pairs, members, merging
        self._counts, self._hot, self._may_move = counts, hot, may_move

    def take(self, message: Message) -> None:
        """A worker pushes; it is answered when servers have it."""
        tables = self._tables.of(message.meta)
        shard = received(message, tables)
        is_merged = all(table.may_merge for table in tables)
        has_rounds = any(table.has_rounds for table in tables)
        self._counts["pushes"] += 1
        self._counts["rows_in"] += shard.rows
        place: Place = (shard.tables, None, False)
        if has_rounds and is_merged:
            place = ((), shard.step, False)
        elif is_merged and self._hot is not None and self._stays_put:
            ahead, shard = parted(shard, self._hot)
            if ahead is not None:
                self._counts["rows_ahead"] += ahead.rows
                self._fill((ahead.tables, None, True), ahead, True)
        self._fill(place, shard, is_merged)

    def _fill(self, place: Place, shard: Shard, is_merged: bool) -> None:
        pair = self._pairs.of(place, is_merged)
        if pair.round is not None and not self._members.is_whole(pair.round):
            pair.in_pieces = True
        pair.filling.add(shard, self._office.van.now())
        self._merging.look_at(pair)

    @property
    def _stays_put(self) -> bool:
        """Whether rows keep their owners: which of them came ahead is known to these alone."""
        return not self._may_move and not self._servers.slots.version
