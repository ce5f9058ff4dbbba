"""What a scheduler writes down so that another one can go on, and how that one reads it.

A record is a list of (section, value). The newest value of a section counts; notes of an app since
its last state are kept in their order. Sections are `membership`, `barriers`, `map`, and for each
app `app:NAME` and `note:NAME`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import msgpack

from postoffice.barrier import Barriers
from postoffice.errors import JournalError
from postoffice.membership import Membership, Phase
from postoffice.scheduler_app import SchedulerApp
from postoffice.view import unpack_map

Entry = tuple[str, Any]


class Books:
    """Finds out what has to be written down.

    Args:
        membership: the nodes.
        barriers: how often each has been passed.
        slot_map: version and bytes of the slot map.
        apps: what else is decided on the scheduler.
    """

    def __init__(
        self,
        membership: Membership,
        barriers: Barriers,
        slot_map: Callable[[], tuple[int, bytes]],
        apps: Sequence[SchedulerApp],
    ) -> None:
        self._membership, self._barriers = membership, barriers
        self._slot_map, self._apps = slot_map, apps
        self._written: dict[str, Any] = {}  # what tells whether a section has changed
        self._notes: list[Entry] = []

    def note(self, app: SchedulerApp, value: Any) -> None:
        """An app has something to write down with the next record."""
        self._notes.append((f"note:{app.name}", value))

    def save(self, app: SchedulerApp) -> None:
        """An app's state replaces what it noted before."""
        mine = (f"app:{app.name}", f"note:{app.name}")
        self._notes = [entry for entry in self._notes if entry[0] not in mine]
        self._notes.append((f"app:{app.name}", app.state()))

    def changes(self) -> bytes | None:
        """The record of what has changed since the last one; None: nothing has."""
        if self._membership.phase is Phase.GATHERING:
            return None  # nodes say again that they have come
        entries: list[Entry] = []
        for section, mark, value in self._sections():
            if self._written.get(section) != mark:
                self._written[section] = mark
                entries.append((section, value()))
        entries += self._notes
        self._notes = []
        return _packed(entries) if entries else None

    def everything(self) -> bytes:
        """One record that all others can be forgotten for."""
        entries: list[Entry] = []
        for section, mark, value in self._sections():
            self._written[section] = mark
            entries.append((section, value()))
        entries += [(f"app:{app.name}", app.state()) for app in self._apps]
        self._notes = []
        return _packed(entries)

    def _sections(self) -> list[tuple[str, Any, Callable[[], Any]]]:
        membership, barriers = self._membership, self._barriers
        slot_map = self._slot_map()
        mark = (membership.epoch, membership.phase, membership.failure, len(membership.awaited))
        return [
            ("membership", mark, membership.pack),
            ("barriers", barriers.passes, barriers.counts),
            ("map", slot_map[0], lambda: list(slot_map)),
        ]


class Memory:
    """What the records of a former scheduler say.

    Raises:
        JournalError: they are of another program.
    """

    def __init__(self, records: Sequence[bytes], where: str) -> None:
        self._sections: dict[str, Any] = {}
        self._notes: dict[str, list[Any]] = {}
        self._where = where
        try:
            for record in records:
                for section, value in msgpack.unpackb(record, strict_map_key=False):
                    self._take(section, value)
        except (ValueError, TypeError, AttributeError, msgpack.UnpackException) as error:
            raise self._error(error) from None

    def _take(self, section: str, value: Any) -> None:
        kind, _, name = section.partition(":")
        if kind == "note":
            self._notes.setdefault(name, []).append(value)
            return
        self._sections[section] = value
        if kind == "app":
            self._notes.pop(name, None)

    @property
    def is_of_an_open_job(self) -> bool:
        """Whether there is anything to go on with.

        A scheduler that ends in good order leaves nothing. One that was killed as the last node
        had said goodbye may owe it the answer.
        """
        phase = self._sections.get("membership", {}).get("phase")
        return phase in (Phase.RUNNING.value, Phase.STOPPING.value, Phase.STOPPED.value)

    @property
    def last_incarnation(self) -> int:
        """Those given later, the scheduler's own included, must be larger."""
        return int(self._sections["membership"]["last_incarnation"])

    def restore(self, membership: Membership, barriers: Barriers, now: float) -> tuple[int, bytes]:
        """Fill the books; returns the slot map.

        Raises:
            JournalError: the records are not of a job like this one.
        """
        try:
            membership.restore(self._sections["membership"], now)
            barriers.restore([tuple(c) for c in self._sections.get("barriers", [])])
            return unpack_map(self._sections.get("map", [0, b""]))
        except (KeyError, ValueError, TypeError, AttributeError) as error:
            raise self._error(error) from None

    def restore_app(self, app: SchedulerApp) -> None:
        """Give an app what it wrote down."""
        state, notes = self._sections.get(f"app:{app.name}"), self._notes.get(app.name, [])
        if state is not None or notes:
            app.restore(state, notes)

    def _error(self, error: Exception) -> JournalError:
        return JournalError(
            self._where, f"does not fit this job ({error}); delete it to begin anew"
        )


def _packed(entries: list[Entry]) -> bytes:
    packed: bytes = msgpack.packb(entries)
    return packed
