"""Which job keeps its checkpoints in a place: a second one there would remove those of the first.

    URL/owner.json    the process that leads its checkpoints

Who begins to lead writes itself down there, unless another that is written down still lives, as
far as can be seen from this host. Who finds another there later has lost the place to it, and saves
no more. So of two jobs in one place, wherever they run, one keeps it and the other is told.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable
from typing import Any

from kv.checkpoint.errors import CheckpointError
from kv.checkpoint.places import Place
from van.identity import lives, this_process

FILE = "owner.json"
PATIENCE = 10.0  # seconds in which a job that was killed may be on its way out
_LOOK = 0.2  # seconds between two looks at it


class Owner:
    """One leader's claim to a place.

    Args:
        place: where.
        sleep: waits.
    """

    def __init__(self, place: Place, sleep: Callable[[float], None] = time.sleep) -> None:
        self._place, self._sleep = place, sleep
        self._is_taken = False

    def take(self) -> None:
        """See that the place is this process'; before anything is made or removed there.

        Raises:
            CheckpointError: another job keeps its checkpoints there, or it cannot be written.
        """
        self._place.make()
        me = this_process()
        looks = round(PATIENCE / _LOOK)
        while (other := self._read()) is not None and other != me:
            is_there = lives(other)
            if self._is_taken or (is_there and looks == 0):
                raise CheckpointError(self._place.url, _told(other))
            if not is_there:
                break
            looks -= 1
            self._sleep(_LOOK)
        if other != me:
            self._place.publish(FILE, json.dumps(me).encode() + b"\n")
        self._is_taken = True

    def _read(self) -> dict[str, Any] | None:
        if not self._place.has(FILE):
            return None
        with self._place.open(FILE) as file:
            data = file.read()
        try:
            found = json.loads(data)
        except ValueError:
            return None
        return found if isinstance(found, dict) else None


def _told(other: dict[str, Any]) -> str:
    return (
        f"another job keeps its checkpoints there (process {other.get('pid')} on "
        f"{other.get('host')}); give each job a folder of its own"
    )
