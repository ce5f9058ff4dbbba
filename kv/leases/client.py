"""A worker's ways to the leases: `RemoteLeases` over the network, `LocalLeases` in one process.

A question is sent again when it has no answer for some seconds: all that is said here may be said
twice.
"""

from __future__ import annotations

import time
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from kv.errors import KVError
from kv.leases.pieces import DataSet, Piece
from kv.leases.protocol import LEASES_APP, Command
from kv.leases.reader import Reading
from kv.leases.reading import Ranges
from kv.leases.shards import Answer
from kv.remote import remote_error
from postoffice.customer import Customer
from postoffice.errors import ClusterStoppedError, RequestTimeoutError
from postoffice.node import SCHEDULER_ID
from postoffice.postoffice import Postoffice
from van.message import Message, Meta

if TYPE_CHECKING:
    from kv.local import LocalCluster

AGAIN = 5.0  # seconds without an answer after which a question is asked again
PAUSE = 0.1  # seconds between two questions while others work on the last pieces
MOST_UNANSWERED = 64  # words of progress; more wait for nothing, they are left out
LIFE = 1  # of a worker in one process, which ends with all others


class RemoteLeases:
    """Speaks with the scheduler's desk.

    Args:
        office: the worker's node, not yet started.
    """

    def __init__(self, office: Postoffice) -> None:
        self._office = office
        self._customer = Customer(LEASES_APP, 0, office, make_error=remote_error)
        self._progress: dict[str, tuple[int, int]] = {}  # what was said last, by data set

    def open(self, data: DataSet) -> bool:
        """Describe a data set; whether others have begun. LeaseError: they say otherwise."""
        return bool(self._say(Command.OPEN, {"set": data.pack()})["begun"])

    def ask(self, name: str) -> Answer:
        """A piece, if there is one."""
        found = self._say(Command.ASK, {"data": name})
        piece = found["piece"]
        return Answer(None if piece is None else Piece.unpack(piece), bool(found["over"]))

    def see(self, name: str, piece: int, seen: int) -> None:
        """Progress; waits for nothing, an error is raised by what is said next."""
        self._customer.raise_failed()
        self._progress[name] = piece, seen
        if self._customer.pending < MOST_UNANSWERED:
            self._send(Command.SEE, {"data": name, "piece": piece, "seen": seen})

    def look(self) -> Reading:
        """How far all workers have come."""
        found = self._say(Command.LOOK, {})
        return Reading(list(found["begun"]), dict(found["read"]))

    def settle(self) -> None:
        """Return when all that was said of progress is known."""
        for name, (piece, seen) in self._progress.items():
            self._say(Command.SEE, {"data": name, "piece": piece, "seen": seen})

    def resume(self, read: Mapping[str, Ranges]) -> None:
        """What a former job had read, which is not read again."""
        self._say(Command.RESUME, {"read": dict(read)})

    def finish(self, name: str, piece: int) -> bool:
        """A piece is done; whether it counts."""
        self._progress.pop(name, None)
        return bool(self._say(Command.FINISH, {"data": name, "piece": piece})["counts"])

    def pause(self) -> bool:
        """Move messages for a moment. Raises ClusterStoppedError."""
        self._office.wait(lambda: False, PAUSE)
        return True

    def _say(self, command: Command, body: dict[str, Any]) -> dict[str, Any]:
        while True:
            request = self._send(command, body, is_awaited=True)
            try:
                found: dict[str, Any] = self._customer.wait(request, AGAIN)
                return found
            except RequestTimeoutError:  # the scheduler may be another by now
                self._customer.forget(request)

    def _send(self, command: Command, body: dict[str, Any], *, is_awaited: bool = False) -> int:
        if self._office.van.is_closed:  # an iteration outlives its worker
            raise KVError("this worker is closed")
        finish = _body_of_first if is_awaited else None
        request = self._customer.new_request([SCHEDULER_ID], finish)
        meta = Meta(
            recipient=SCHEDULER_ID,
            app=LEASES_APP,
            timestamp=request,
            oldest=self._customer.oldest,
            piece=1,
            cmd=command,
            body=body,
        )
        with self._customer.sending(request):
            self._customer.send(Message(meta))
        return request


def _body_of_first(answers: list[Message]) -> Any:
    return answers[0].meta.body


class LocalLeases:
    """Uses the leases of a cluster in this process.

    Args:
        rank: the worker's.
    """

    def __init__(self, cluster: LocalCluster, rank: int) -> None:
        self._cluster, self._rank = cluster, rank

    def open(self, data: DataSet) -> bool:
        """Describe a data set; whether others have begun. LeaseError: they say otherwise."""
        with self._cluster.lock:
            return self._cluster.leases.open(data).has_begun

    def ask(self, name: str) -> Answer:
        """A piece, if there is one."""
        with self._cluster.lock:
            return self._cluster.leases.get(name).ask(self._rank, LIFE, self._now())

    def see(self, name: str, piece: int, seen: int) -> None:
        """Progress."""
        with self._cluster.lock:
            self._cluster.leases.get(name).see(self._rank, LIFE, piece, seen)

    def look(self) -> Reading:
        """How far all workers have come."""
        with self._cluster.lock:
            return Reading(self._cluster.leases.begun(), self._cluster.leases.read())

    def settle(self) -> None:
        """All that was said is known."""

    def resume(self, read: Mapping[str, Ranges]) -> None:
        """What a former job had read, which is not read again."""
        with self._cluster.lock:
            self._cluster.leases.resume(read)

    def finish(self, name: str, piece: int) -> bool:
        """A piece is done; whether it counts."""
        with self._cluster.lock:
            counts = self._cluster.leases.get(name).finish(self._rank, LIFE, piece, self._now())
            self._cluster.changed.notify_all()
            return counts

    def pause(self) -> bool:
        """Wait for another worker's thread; False where one thread drives them all."""
        if not self._cluster.threads:
            return False
        with self._cluster.lock:
            if self._cluster.failure is None:
                self._cluster.changed.wait(PAUSE)
            if self._cluster.failure is not None:
                raise ClusterStoppedError(f"the local cluster stopped: {self._cluster.failure}")
        return True

    def _now(self) -> float:
        # One thread takes the workers' steps in turn and is to repeat itself: it has no clock.
        return time.monotonic() if self._cluster.threads else 0.0
