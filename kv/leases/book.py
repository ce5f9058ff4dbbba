"""The data sets of a job under their names, and all that happens to them in one order."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from kv.errors import LeaseError
from kv.leases.dealing import Dealing, by_speed
from kv.leases.events import Event, Opened
from kv.leases.pieces import DataSet
from kv.leases.reading import Ranges, ranges_read, spans_of
from kv.leases.shards import DataShards

MOST_SETS = 10_000  # data sets of a job: each costs memory until its end


class LeaseBook:
    """All data sets of one job.

    Args:
        workers: how many the job has.
        record: called with each event before it counts.
        dealing: who gets which piece, where speeds do not say it.
    """

    def __init__(
        self,
        workers: int,
        record: Callable[[Event], None] = lambda event: None,
        dealing: Dealing | None = None,
    ) -> None:
        self.shards: dict[str, DataShards] = {}
        self._workers, self._record, self._dealing = workers, record, dealing
        self.resumed: dict[str, Ranges] = {}  # what former jobs read of sets not opened yet

    def open(self, data: DataSet) -> DataShards:
        """The leases of a data set; the first worker that opens it makes them.

        Raises:
            LeaseError: another worker has described it differently.
        """
        known = self.shards.get(data.name)
        if known is None:
            if len(self.shards) >= MOST_SETS:
                raise LeaseError(f"more than {MOST_SETS} data sets in one job; give them one name")
            event = Opened(data, spans_of(data, self.resumed.get(data.name, ())))
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

    def resume(self, read: Mapping[str, Iterable[Sequence[int]]]) -> None:
        """What a former job had read, as its `read` said: it counts when a set is opened."""
        found = {name: [list(one) for one in ranges] for name, ranges in read.items()}
        self.resumed |= {name: one for name, one in found.items() if name not in self.shards}

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
        deal = by_speed if self._dealing is None else self._dealing.deal
        made = DataShards(event.data, self._workers, self._record, done=event.done, deal=deal)
        self.shards[event.name] = made
        self.resumed.pop(event.name, None)
        return made

    def begun(self) -> list[str]:
        """The data sets of which pieces were given away."""
        return [name for name, shards in self.shards.items() if shards.has_begun]

    def read(self) -> dict[str, Ranges]:
        """What has been read of each data set: the positions of readers, for a checkpoint."""
        return self.resumed | {name: ranges_read(shards) for name, shards in self.shards.items()}

    def seen(self) -> dict[str, list[list[int]]]:
        """Progress within pieces, [piece, positions] by data set: all that no event holds."""
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
