"""The barriers of one node: how often it has passed each, and for whom it waits."""

from __future__ import annotations

from typing import Any

from postoffice.barrier import Place
from postoffice.node import Group


class Attendance:
    """What a node knows of its barriers."""

    def __init__(self) -> None:
        self._passed: dict[Place, int] = {}
        self._errors: dict[Place, str | None] = {}
        self._waits_for: dict[Place, str] = {}

    def passed(self, place: Place) -> int:
        """How often the barrier was passed, by all that is known here."""
        return self._passed.get(place, 0)

    def body(self, place: Place) -> dict[str, Any]:
        """What to tell the scheduler when this node comes to the barrier."""
        return {"group": place[0], "name": place[1], "count": self.passed(place)}

    def take(self, body: Any) -> Place:
        """Note a `BARRIER_DONE`, or for whom one waits (`BARRIER`); returns which barrier."""
        place = (int(Group(body["group"])), str(body["name"]))
        if "waits_for" in body:
            self._waits_for[place] = str(body["waits_for"])
            return place
        count = int(body["passed"])
        if count > self.passed(place):
            self._passed[place] = count
            self._errors[place] = body["error"]
        return place

    def leave(self, place: Place) -> str | None:
        """This node goes on; returns why the barrier could not be passed, or None."""
        self._waits_for.pop(place, None)
        return self._errors.pop(place, None)

    def describe(self, place: Place) -> str:
        """For people: what is waited for."""
        who = self._waits_for.get(place, "the others")
        return f"{who} at barrier {place[1]}".rstrip()
