"""Whose turn it is by a record: requests come in any order and go in the recorded one.

A pure state machine: requests and the time go in, requests whose turn it is come out. It holds no
lock, thread or clock. Whatever a record does not know is an error as soon as it comes, and what it
expects and does not get is one after a time.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from kv.replay.entry import Entry, describe
from kv.replay.errors import DivergenceError
from kv.replay.recordfile import Record
from kv.table_protocol import Command
from van.message import Message

_SHOWN = 3  # requests that wait, in an error


class Script:
    """The turns of one server.

    Args:
        record: of the server.
        limit: seconds that nothing may go before that is an error.

    Attributes:
        place: how many requests have gone.
    """

    def __init__(self, record: Record, limit: float) -> None:
        self.record, self.place = record, 0
        self._node = f"server {record.head.server}"
        self._limit = limit
        self._since: float | None = None  # when one went, or the time was asked for first
        entries = record.entries
        keys = _key(entries["rank"].astype(np.uint64), entries["timestamp"].astype(np.uint64))
        self._order = np.argsort(keys, kind="stable")
        self._keys = keys[self._order]
        self._has_come = np.zeros(entries.size, np.bool_)
        self._waiting: dict[int, Message] = {}  # by place

    @property
    def is_over(self) -> bool:
        """Whether all requests have gone."""
        return self.place == self.record.entries.size

    def come(self, message: Message, entry: Entry, tables: Sequence[str]) -> None:
        """A request has come; it waits until `next` gives it back.

        Args:
            entry: what a record would say of it; the number of its tables is not looked at.
            tables: their names.
        Raises:
            DivergenceError: the record knows no such request, or another one.
        """
        place = self._find(entry)
        if place is None:
            self._refuse_unknown(entry, tables)
        else:
            self._compare(place, message, entry, tables)
            self._has_come[place] = True
            self._waiting[place] = message

    def next(self, now: float) -> Message | None:
        """The request whose turn it is, if it has come."""
        message = self._waiting.pop(self.place, None)
        if message is not None:
            self.place += 1
            self._since = now
        return message

    def check_time(self, now: float) -> None:
        """Raise DivergenceError if the next request is overdue."""
        self._since = now if self._since is None else self._since
        if self.is_over or now - self._since < self._limit:
            return
        waiting = [self._describe(place) for place in sorted(self._waiting)[:_SHOWN]]
        more = len(self._waiting) - len(waiting)
        held = f"; held back are {'; '.join(waiting)}" if waiting else ""
        held += f" and {more} more" if more else ""
        raise DivergenceError(
            self._node,
            f"for {self._limit:g} s ([run] replay_limit) the {self._next()} has not come{held}",
        )

    def check_end(self) -> None:
        """The run is over: raise DivergenceError if the record is not."""
        if not self.is_over:
            left = self.record.entries.size - self.place
            raise DivergenceError(
                self._node,
                f"it has ended, but {left} requests did not come, first the {self._next()}",
            )

    # -- what is wrong ------------------------------------------------------------------------

    def _find(self, entry: Entry) -> int | None:
        """The place of a request that has not come yet; one that is tried again has several."""
        key = _key(np.uint64(entry.rank), np.uint64(entry.timestamp))
        index = int(np.searchsorted(self._keys, key))
        while index < self._keys.size and self._keys[index] == key:
            place = int(self._order[index])
            if not self._has_come[place]:
                return place
            index += 1
        return None

    def _refuse_unknown(self, entry: Entry, tables: Sequence[str]) -> None:
        came = describe(entry.command, tables, entry.rank, entry.timestamp)
        total = self.record.entries.size
        if not self.is_over:
            problem = f"it does not know the {came}; expected is the {self._next()}"
        else:
            why = f" (it was stopped: {self.record.ended})" if self.record.ended else ""
            problem = f"it ends after {total} requests{why}, and now came the {came}"
        raise DivergenceError(self._node, problem)

    def _compare(self, place: int, message: Message, entry: Entry, tables: Sequence[str]) -> None:
        expected = self.record.entry(place)
        names = self.record.lists[expected.tables]
        if (expected.command, list(names)) == (entry.command, list(tables)):
            if expected.digest == entry.digest:
                return
            came = describe(entry.command, tables, entry.rank, entry.timestamp)
            problem = f"the {came} is another one than it was: {self._why(message, tables)}"
        else:
            came = describe(entry.command, tables, entry.rank, entry.timestamp)
            problem = f"expected was the {self._describe(place)}, and there came the {came}"
        raise DivergenceError(self._node, problem)

    def _why(self, message: Message, tables: Sequence[str]) -> str:
        """What may have made a request another one, though it is about the same."""
        if message.meta.cmd == Command.DEFINE:
            return f"table {tables[0]} has {_differences(self.record.specs, message.meta.body)}"
        return (
            "its worker computes or reads something else. Are program, data, seeds and the "
            "versions of libraries those of the recorded run?"
        )

    def _next(self) -> str:
        return self._describe(self.place)

    def _describe(self, place: int) -> str:
        entry = self.record.entry(place)
        names = self.record.lists[entry.tables]
        return describe(entry.command, names, entry.rank, entry.timestamp)


def _key(rank: Any, timestamp: Any) -> Any:
    """One number for a worker's request, uint64."""
    return (rank << np.uint64(32)) | timestamp


def _differences(specs: Mapping[str, Mapping[str, Any]], spec: Mapping[str, Any]) -> str:
    known = specs.get(str(spec.get("name")), {})
    found = [
        f"{key} = {spec.get(key)} where it was {known.get(key)}"
        for key in dict.fromkeys((*known, *spec))
        if known.get(key) != spec.get(key)
    ]
    return ", ".join(found) or "another definition"
