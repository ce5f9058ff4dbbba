"""The data sets of a job under their names, and all that happens to them in one order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

from kv.errors import LeaseError
from kv.leases.events import Event, Opened
from kv.leases.pieces import DataSet, Span
from kv.leases.shards import DataShards

MOST_SETS = 10_000  # data sets of a job: each costs memory until its end


class LeaseBook:
    """All data sets of one job.

    Args:
        workers: how many the job has.
        record: called with each event before it counts.
    """

    def __init__(self, workers: int, record: Callable[[Event], None] = lambda event: None) -> None:
        self.shards: dict[str, DataShards] = {}
        self._workers, self._record = workers, record
        self._resumed: dict[str, tuple[Span, ...]] = {}

    def open(self, data: DataSet) -> DataShards:
        """The leases of a data set; the first worker that opens it makes them.

        Raises:
            LeaseError: another worker has described it differently.
        """
        known = self.shards.get(data.name)
        if known is None:
            if len(self.shards) >= MOST_SETS:
                raise LeaseError(f"more than {MOST_SETS} data sets in one job; give them one name")
            event = Opened(data, self._resumed.pop(data.name, ()))
            self._record(event)
            known = self._add(event)
        if known.data != data:
            raise LeaseError(
                f"data set {data.name}: this worker says {_differences(data, known.data)}; "
                f"all workers must say the same"
            )
        return known

    def get(self, name: str) -> DataShards:
        """The leases of a data set that was opened.

        Raises:
            LeaseError: it was not.
        """
        try:
            return self.shards[name]
        except (KeyError, TypeError):
            raise LeaseError(f"no data set {name!r} was opened in this job") from None

    def lose(self, worker: int, why: str, now: float, *, before: int | None = None) -> None:
        """A worker died or left; see `DataShards.lose`."""
        for shards in self.shards.values():
            shards.lose(worker, why, now, before=before)

    def resume(self, done: Mapping[str, Iterable[Span]]) -> None:
        """What a former job has read, by data set: it counts when the set is opened."""
        self._resumed.update({name: tuple(spans) for name, spans in done.items()})

    def apply(self, event: Event) -> None:
        """Let an event of a ledger count.

        Raises:
            LeaseError: it does not follow from those before.
        """
        if isinstance(event, Opened):
            if event.name in self.shards:
                raise LeaseError(f"data set {event.name} is opened twice")
            self._add(event)
            return
        self.get(event.name).apply(event)

    def _add(self, event: Opened) -> DataShards:
        made = DataShards(event.data, self._workers, self._record, done=event.done)
        self.shards[event.name] = made
        return made

    def done(self) -> dict[str, list[list[int]]]:
        """What is done of each data set, as msgpack types: a checkpoint's positions of readers."""
        return {name: [span.pack() for span in s.done] for name, s in self.shards.items()}

    def seen(self) -> dict[str, list[list[int]]]:
        """Progress within pieces, [piece, records] by data set: all that no event holds."""
        return {
            name: [[number, lease.seen] for number, lease in s.leases.items() if lease.seen]
            for name, s in self.shards.items()
        }

    def facts(self) -> dict[str, Any]:
        """The state in figures, by data set."""
        return {name: shards.facts() for name, shards in self.shards.items()}


def _differences(one: DataSet, other: DataSet) -> str:
    mine, theirs = one.pack(), other.pack()
    return ", ".join(
        f"{key} = {mine[key]} where it was {theirs[key]}"
        for key in mine
        if mine[key] != theirs[key]
    )
