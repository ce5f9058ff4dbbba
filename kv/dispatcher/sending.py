"""Pushes on their way to servers, and what their workers hear when servers have answered."""

from __future__ import annotations

import threading
from collections import Counter
from collections.abc import Callable, Sequence

import numpy as np

from kv.dispatcher.aggregating import Part, tables_of
from kv.dispatcher.answering import Answers
from kv.dispatcher.buffers import Pairs
from kv.dispatcher.hotkeys import masks_of
from kv.dispatcher.known_tables import KnownTables
from kv.dispatcher.pulls import Pulls
from kv.dispatcher.receiving import Keys, Shard, parts_of
from kv.dispatcher.refusing import Error
from kv.dispatcher.resolving import resolve
from kv.dispatcher.upstream import Servers
from kv.table_protocol import Command
from postoffice.postoffice import Postoffice
from van.errors import PsliteError
from van.message import Message, answer_to


class Sending:
    """Sends pushes that stand for those of workers. Called with the dispatcher's lock held.

    Args:
        office: the dispatcher's node.
        lock: the dispatcher's.
        servers: to whom.
        tables: those that are known.
        pairs: where the rest of a push waits for its hot rows.
        pulls: answers the pull of a push and pull.
        answers: to workers.
        counts: of `merges` and `rows_out`.

    Attributes:
        under_way: pushes that servers have not answered, and those that are being added up.
        with_servers: by rank, shards that have no answer.
        on_answer: each called when servers have answered a push.
    """

    def __init__(
        self,
        office: Postoffice,
        lock: threading.RLock,
        servers: Servers,
        tables: KnownTables,
        pairs: Pairs,
        pulls: Pulls,
        answers: Answers,
        counts: Counter[str],
    ) -> None:
        self._office, self._lock, self._servers = office, lock, servers
        self._tables, self._pairs, self._pulls = tables, pairs, pulls
        self._answers, self._counts = answers, counts
        self.under_way = 0
        self.with_servers: Counter[int] = Counter()
        self.on_answer: list[Callable[[], None]] = []

    def send(self, parts: Sequence[Part], shards: Sequence[Shard]) -> None:
        """Send a push whose place among those under way is taken.

        Args:
            parts: the sums, by table of `tables_of(shards)`.
            shards: what is inside.
        """
        tables = self._tables.named(tables_of(shards))
        self.with_servers.update(shard.rank for shard in shards)
        self._counts["merges"] += 1
        self._counts["rows_out"] += sum(len(values) for _, values in parts)

        def answered(error: BaseException | None, said: Error | None) -> None:
            with self._lock:
                self.under_way -= 1
                self.with_servers.subtract(shard.rank for shard in shards)
                for shard in shards:
                    if shard.cold is None:
                        self._pushed(shard, error, said)
                    elif error is None:
                        shard.cold.waits -= 1
                    else:
                        self._drop(shard.cold, error, said)
                for call in self.on_answer:
                    call()

        try:
            masks = None
            if shards[0].cold is not None:
                masks = [
                    masks_of(keys, [_keys_in(shard, table.id) for shard in shards])
                    for table, (keys, _) in zip(tables, parts, strict=True)
                    if keys is not None
                ]
            self._servers.push(tables, parts, resolve(shards), answered, masks)
        except PsliteError as error:  # such as numbers that are not finite
            answered(error, None)

    def _drop(self, cold: Shard, error: BaseException, said: Error | None) -> None:
        """The hot rows of a push were refused, and so is the rest."""
        for pair in self._pairs:
            if cold in pair.filling.shards:
                pair.filling.shards.remove(cold)
        self._pushed(cold, error, said and said._replace(failed=b""))

    def _pushed(self, shard: Shard, error: BaseException | None, said: Error | None) -> None:
        """All servers have answered a worker's push."""
        message = shard.message
        self._pulls.pushed_at[shard.rank] = self._office.van.now()
        if error is not None:
            self._answers.fail(message, error, said)
        elif message.meta.cmd == Command.PUSH_PULL:
            # Of the message: hot rows that went ahead are in no part of this shard, and a table
            # that it names twice stands there once.
            parts = parts_of(message, self._tables.of(message.meta))
            self._pulls.ask(message, [keys for keys, _ in parts], True)
        else:
            clocks = self._servers.versions.clocks(shard.tables)
            self._answers.answer(message, Message(answer_to(message.meta, clocks=clocks)))


def _keys_in(shard: Shard, table: int) -> Keys:
    """A shard's keys of a sparse table; none, if it has nothing of it."""
    for name, (keys, _) in zip(shard.tables, shard.parts, strict=True):
        if name == table and keys is not None:
            return keys
    return np.empty(0, np.uint64)
