"""A worker's steps, its barriers and gathers, and what it does together with the others."""

from __future__ import annotations

import logging
from collections.abc import Iterable, Sequence
from typing import Any

from kv.consistency.position import Position
from kv.consistency.settings import SemiSync, Sync
from kv.conversation import Conversation
from kv.gather import Gatherer
from kv.leases.client import RemoteLeases
from kv.leases.pieces import DataSet
from kv.leases.reader import Shards
from kv.spec import TableSpec
from kv.table_protocol import Command, table_id
from postoffice.node import Group
from postoffice.postoffice import Postoffice
from van.message import Flag, Message

log = logging.getLogger(__name__)
_ROUNDS = (Sync, SemiSync)


class KeepsStep(Conversation):
    """Says how far a worker is. Arguments as for `kv.remote_worker.RemoteWorker`.

    Args:
        has_rounds: ends of steps are said from the start; else from the first table that cares.
        chosen: see `Conversation`.
    """

    def __init__(
        self, office: Postoffice, *, has_rounds: bool, may_move: bool, **chosen: Any
    ) -> None:
        super().__init__(office, **chosen)
        self._gatherer = Gatherer(office)
        self.leases = RemoteLeases(office)
        self._may_move, self._has_rounds = may_move, has_rounds
        self._position, self._last_step = Position(), -1
        self._bases: dict[tuple[int, int], int] = {}  # table, server -> clock of the last pull
        self._specs: dict[int, TableSpec] = {}  # of all tables, by id
        self._is_amid_step = False  # something was pushed since the last step ended
        self._rests = self._has_begun = self._has_finished = False
        office.statuses["work"] = lambda: [self._steps, self._customer.requests]

    @property
    def rank(self) -> int:
        return self.office.rank

    @property
    def num_workers(self) -> int:
        return self.office.shape.workers

    @property
    def _may_change(self) -> bool:
        """Where steps are counted, between two of them: the pushes of one go one way."""
        return not (self._has_rounds and self._is_amid_step)

    def _introduction(self) -> dict[str, Any]:
        return {
            "step": self._steps,
            "position": self._position.next,
            "rests": self._rests or self._has_finished,
            "tables": [spec.to_dict() for spec in self._specs.values()],
        }

    @property
    def steps(self) -> int:
        """Steps completed; of a worker that was started again, those of its former lives, too."""
        if self._has_rounds:
            self._begin()
        return self._steps

    def _begin(self) -> None:
        """Go on where a former life of this worker was, if there was one and the others wait.

        It may have said the end of a step to some servers only: that step counts everywhere. What
        it pushed after that is to be pushed again, so rounds forget it.
        """
        if self._has_begun:
            return
        self._has_begun = True
        office = self.office
        if office.shape.failures.on_worker == "restart" and office.node_id in office.view.fenced:
            for known in self.ask_all(Command.BEGIN, body={"clock": None}, finish=_bodies_of):
                self._steps = max(self._steps, known["completed"])
                self._position.begin_at(known["position"])
            body = {"clock": self._steps, "position": self._position.next}
            self.ask_all(Command.BEGIN, body=body)

    def resume_at(self, steps: int, clocks: Iterable[tuple[str, int]] = ()) -> None:
        """Go on after so many steps, with those clocks by table; the servers know them already."""
        self._steps = steps
        self._position.resume((table_id(name), clock) for name, clock in clocks)

    @property
    def is_first(self) -> bool:
        """Whether this worker leads what all do together."""
        return self._gatherer.is_collector

    def ranks_here(self) -> set[int]:
        """Ranks of the workers that a barrier waits for."""
        return self._gatherer.awaited()

    def passed(self, barrier: str) -> int:
        """How often that barrier was passed, as far as this worker knows."""
        return self.office.passed(Group.WORKERS, barrier)

    def step(self) -> None:
        """This worker's step is over; raises the error of a push that nobody has waited for.

        The step counts all the same.
        """
        self._must_be_open()
        if self._has_rounds:
            # A push that is under way, or must be sent again, belongs before the step's end.
            if (self._may_move or self.office.view.map_version) and not self.way.is_open:
                # Another server may become the owner of a push's rows. It would not know that the
                # push is to come, so it must be there before any server hears of the step's end.
                self.office.wait(
                    lambda: not self._pushes_under_way(), what=lambda: "the pushes of a step"
                )
            before = self._pushes_under_way()
            flags = Flag.PUSH | Flag.EVERYWHERE
            body: dict[str, Any] = {"clock": self._steps}
            take = None
            if self._position:
                clocks = [(table, clock) for (table, _), clock in self._bases.items()]
                body["position"] = self._position.step(clocks, self._hear_out)
                take = self._hear
            servers = self._servers()
            self._last_step = self._tell(
                Command.STEP, flags, servers, body=body, before=before, take=take
            )
        self._steps, self._is_amid_step = self._steps + 1, False
        self._customer.raise_failed()

    def _hear(self, answer: Message) -> bool:
        """What is answered to the end of a step."""
        if answer.meta.body is not None:
            self._position.hear(answer.meta.body["round"])
        return True

    def _hear_out(self) -> None:
        """Wait for the answers to the end of the step before."""
        last = self._last_step
        self.office.wait(
            lambda: self._customer.is_done(last), what=lambda: "the end of the step before"
        )

    def _warn_of_steps(self) -> None:
        """Say it where all pushes to a table lie in a round that has not ended."""
        modes = (spec.mode for spec in self._specs.values())
        if self._is_amid_step and not self._steps and any(isinstance(m, _ROUNDS) for m in modes):
            log.warning(
                "%s ends without ever having called step(): in modes sync and semi_sync what it "
                "has pushed was not there for any of its pulls",
                self.office.name,
            )

    def finish(self) -> None:
        """This worker pushes no more and nobody waits for its steps; it may still pull."""
        self._customer.wait_all()
        self.ask_all(Command.FINISH)
        self._has_finished, self._is_amid_step = True, False

    def rest(self) -> None:
        """Nobody waits for this worker's steps from now on, though it may push and step again.

        A second call does nothing, nor does any where no table counts steps.
        """
        if self._has_rounds and not self._rests:
            self._rests = True
            self._customer.wait_all()
            self.ask_all(Command.FINISH, body={"rests": True})

    def barrier(self, name: str = "") -> None:
        """Return when all workers have come here and their pushes are answered."""
        self._must_be_open()
        self._customer.wait_all()
        self._change_way()
        self.office.barrier(Group.WORKERS, name)

    def gather(self, value: Any) -> list[Any] | None:
        """Collect a value of each worker at rank 0; see `kv.protocols.Worker.gather`."""
        self._must_be_open()
        return self._gatherer.gather(value)

    def shards(
        self,
        name: str,
        records: int,
        *,
        epochs: int = 1,
        unit: int = 1,
        grain: int = 1,
        in_parts: bool = False,
    ) -> Shards:
        """The pieces of a data set that fall to this worker; see `kv.protocols.Worker.shards`."""
        parts = self.num_workers if in_parts else 1
        size = {"records": records, "epochs": epochs, "unit": unit, "grain": grain}
        data = DataSet(name=name, parts=parts, **size)
        return Shards(self.leases, data, self._customer.wait_all, self.rest)

    def has_begun(self, name: str) -> bool:
        """Whether pieces of that data set were given away."""
        return name in self.leases.look().begun


def _bodies_of(answers: Sequence[Message]) -> list[Any]:
    return [answer.meta.body for answer in answers]
