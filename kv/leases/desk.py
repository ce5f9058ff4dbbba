"""The scheduler's edge of the leases: workers' requests in, answers out, deaths noted.

An app of the scheduler, see `postoffice.scheduler_app`. The ledger, if the
job has a run folder, is the truth about what was given and done; what a restarted scheduler finds
elsewhere only adds what no event holds.
"""

from __future__ import annotations

import secrets
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from kv.errors import LeaseError
from kv.leases.book import LeaseBook
from kv.leases.dealing import Dealing, Dealt
from kv.leases.events import Event, pack_event, unpack_event
from kv.leases.ledger import FILE, Ledger
from kv.leases.pieces import DataSet
from kv.leases.protocol import LEASES_APP, Command
from postoffice.customer import Customer
from postoffice.head import SchedulerOffice
from postoffice.node import Node, Role, role_and_rank
from postoffice.scheduler_app import SchedulerApp
from van.errors import PsliteError
from van.message import Kind, Message, answer_to

_SILENCE: dict[str, Any] = {}  # in the place of an answer: there is none


class LeaseDesk(SchedulerApp):
    """Gives training data to the workers of a job.

    Args:
        office: the scheduler's node.
        folder: of the job, which gets `ledger.jsonl`; None: nothing is written.
        clock: seconds since 1970, for the ledger.
        dealing: who gets which piece, where speeds do not say it.
    """

    name = "leases"  # of its part of the scheduler's journal

    def __init__(
        self,
        office: SchedulerOffice,
        folder: Path | None,
        clock: Callable[[], float] = time.time,
        dealing: Dealing | None = None,
    ) -> None:
        self._office, self._folder, self._clock = office, folder, clock
        self._dealing = dealing
        self._begin()
        self._commands: dict[int, Callable[[int, int, dict[str, Any]], dict[str, Any] | None]] = {
            Command.OPEN: self._open,
            Command.ASK: self._ask,
            Command.SEE: self._see,
            Command.FINISH: self._finish,
            Command.LOOK: self._look,
            Command.RESUME: self._resume,
        }
        Customer(LEASES_APP, 0, office, self._receive)
        office.queries.offer("leases", lambda: self.book.facts())

    def _begin(self) -> None:
        """A job of which nothing is known yet."""
        self._job = secrets.token_hex(8)
        self._ledger: Ledger | None = None
        self._events: list[Event] = []  # kept where there is no file
        self.book = LeaseBook(self._office.shape.workers, self._record, self._dealing)

    def _record(self, event: Event) -> None:
        if self._folder is None:
            if not self._events:
                self._office.save(self)
            self._office.note(self, pack_event(event))
            self._events.append(event)
            return
        if self._ledger is None:  # only a job that leases data has a ledger
            self._office.save(self)  # first, so that a scheduler that goes on knows whose it is
            self._office.commit()
            self._ledger = Ledger(self._folder / FILE, self._job, self._clock)
        self._ledger.record(event)

    # -- requests -------------------------------------------------------------------------

    def _receive(self, message: Message) -> None:
        meta = message.meta
        try:
            role, rank = role_and_rank(meta.sender)
            command = self._commands.get(meta.cmd)
            if role is not Role.WORKER or command is None or not isinstance(meta.body, dict):
                raise LeaseError(f"{role} {rank} asks for what nobody knows ({meta.cmd})")
            try:
                body = command(rank, meta.incarnation, meta.body)
                if body is _SILENCE:
                    return
            except (KeyError, TypeError) as error:
                raise LeaseError(f"a request of {role} {rank} lacks sense: {error!r}") from None
        except PsliteError as error:
            facts = (type(error).__name__, str(error), self._office.node_id)
            answer = answer_to(meta, Kind.ERROR, error=facts)
        else:
            answer = answer_to(meta)
            answer.body = body
        self._office.send(Message(answer))

    def _open(self, worker: int, life: int, body: dict[str, Any]) -> dict[str, Any]:
        data = DataSet.unpack(body["set"])
        if self._dealing is not None:
            self._dealing.opened(data)
        return {"begun": self.book.open(data).has_begun}

    def _ask(self, worker: int, life: int, body: dict[str, Any]) -> dict[str, Any]:
        answer = self.book.get(body["data"]).ask(worker, life, self._office.van.now())
        if answer.is_silent:
            return _SILENCE
        if self._dealing is not None:
            span = None if answer.piece is None else answer.piece.span
            self._dealing.dealt(body["data"], worker, Dealt(span, answer.is_over))
        piece = None if answer.piece is None else answer.piece.pack()
        return {"piece": piece, "over": answer.is_over}

    def _see(self, worker: int, life: int, body: dict[str, Any]) -> None:
        self.book.get(body["data"]).see(worker, life, body["piece"], body["seen"])

    def _finish(self, worker: int, life: int, body: dict[str, Any]) -> dict[str, Any]:
        shards = self.book.get(body["data"])
        counts = shards.finish(worker, life, body["piece"], self._office.van.now())
        return {"counts": counts}

    def _look(self, worker: int, life: int, body: dict[str, Any]) -> dict[str, Any]:
        return {"begun": self.book.begun(), "read": self.book.read()}

    def _resume(self, worker: int, life: int, body: dict[str, Any]) -> None:
        self.book.resume(body["read"])
        self._office.save(self)

    # -- an app of the scheduler ----------------------------------------------------------

    def joined(self, node: Node, now: float) -> None:
        """A worker that came again holds nothing of its former life's."""
        if node.role is Role.WORKER:
            self.book.lose(node.rank, "started again", now, before=node.incarnation)

    def died(self, node: Node, now: float) -> None:
        """What a dead worker held goes to the living."""
        self._lost(node, "died", now)

    def left(self, node: Node, now: float) -> None:
        """A worker that has finished holds nothing."""
        self._lost(node, "left", now)

    def _lost(self, node: Node, why: str, now: float) -> None:
        if node.role is Role.WORKER:
            self.book.lose(node.rank, why, now)

    def state(self) -> dict[str, Any]:
        """What a restarted scheduler needs, msgpack types."""
        events = [pack_event(event) for event in self._events]
        found = {"job": self._job, "events": events, "seen": self.book.seen()}
        return {**found, "resumed": self.book.resumed}

    def restore(self, state: Any, notes: Sequence[Any] = ()) -> None:
        """Carry on where a former scheduler of this job stopped.

        Raises:
            LeaseError: state or ledger are damaged.
        """
        self.close()
        self._begin()
        if state is None:
            return
        self._job = state["job"]
        self._events = [unpack_event(event) for event in (*state["events"], *notes)]
        former = self._events
        if self._folder is not None:
            path = self._folder / FILE
            if path.exists():
                self._ledger = Ledger(path, self._job, self._clock)
                former = self._ledger.former
        self.book.resume(state.get("resumed", {}))
        for event in former:
            self.book.apply(event)
        for name, pieces in state["seen"].items():
            shards = self.book.get(name)
            for number, seen in pieces:
                lease = shards.leases.get(number)
                if lease is not None:
                    lease.seen = max(lease.seen, seen)

    def close(self) -> None:
        """Close the ledger."""
        if self._ledger is not None:
            self._ledger.close()
