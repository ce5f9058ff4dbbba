"""What closes rounds: ends of steps, workers that begin, finish or die, and time.

Where a clock has advanced by it, pulls that waited for it are answered.
"""

from __future__ import annotations

import logging
from collections.abc import Callable

from kv.engine import Engine
from kv.errors import KVError
from kv.executor import Executor, Turns
from kv.serving.commands import Answering, Commands
from kv.serving.ranks import Ranks
from kv.serving.tables import ServedTables
from kv.table_protocol import Command
from postoffice.node import Role, role_and_rank
from postoffice.postoffice import Postoffice
from van.message import Message, answer_to

log = logging.getLogger(__name__)

SETTLING = "rounds"  # the lane of what closes rounds
_LOOK = 0.02  # seconds between two looks at rounds that close after a time


class Rounds:
    """Has the engine close rounds.

    Args:
        office: the node.
        engine: has the rounds.
        executor: works on what no request asks for.
        tables: a dead worker's requests about these come first.
        ranks: of those who ask.
        forget: drops what is kept of a worker's node.
        answer_held: called when a clock has advanced.

    Attributes:
        is_watching: whether rounds that close after a time are looked at.
    """

    def __init__(
        self,
        office: Postoffice,
        engine: Engine,
        executor: Executor,
        tables: ServedTables,
        ranks: Ranks,
        forget: Callable[[int], None],
        answer_held: Callable[[], None],
    ) -> None:
        self._office, self._engine, self._executor = office, engine, executor
        self._tables, self._ranks = tables, ranks
        self._forget, self._answer_held = forget, answer_held
        self.is_watching = self._is_settling = False
        self.commands: Commands = {
            Command.STEP: self._step,
            Command.FINISH: self._finish,
            Command.BEGIN: self._begin,
        }

    # -- because of requests ------------------------------------------------------------------

    def _step(self, message: Message) -> Answering:
        meta = message.meta
        steps = meta.body.get("steps")  # of several workers, where a dispatcher says it
        if steps is None:
            steps = [(self._ranks.of(meta), meta.body["clock"], meta.body.get("position", -1))]
        for rank, clock, position in steps:
            yield from self._letting_go(self._engine.stepping(int(rank), int(clock), int(position)))
        if all(position < 0 for _, _, position in steps):
            return Message(answer_to(meta))
        return Message(answer_to(meta, body={"round": self._engine.latest_round}))

    def _finish(self, message: Message) -> Answering:
        meta = message.meta
        rests = bool(meta.body and meta.body.get("rests"))
        if not rests and role_and_rank(meta.sender)[0] is Role.WORKER:
            self._forget(meta.sender)
        leave = self._engine.losing if rests else self._engine.finishing
        yield from self._letting_go(leave(self._ranks.of(meta)))
        return Message(answer_to(meta))

    def _begin(self, message: Message) -> Answering:
        meta, engine = message.meta, self._engine
        rank, step = self._ranks.of(meta), meta.body["clock"]
        if step is not None:
            position = int(meta.body["position"])
            life = int(meta.body.get("life", meta.incarnation))  # where a dispatcher says it
            beginning = engine.beginning(rank, life, int(step), position)
            yield from self._letting_go(beginning)
        engine.progress.check_rank(rank)
        completed, position = engine.progress.completed[rank], engine.progress.positions[rank]
        return Message(answer_to(meta, body={"completed": completed, "position": position}))

    # -- because of a death, or of time -------------------------------------------------------

    def lose(self, node: int) -> None:
        """A node has died and the job goes on: nobody waits for it, if it was a worker."""
        role, rank = role_and_rank(node)
        if role is Role.WORKER and rank < self._engine.progress.num_workers:
            self._forget(node)
            lanes = [SETTLING, *((node, table) for table in list(self._tables.by_id))]
            self._executor.submit(self._and_let_go(self._engine.losing(rank)), lanes)

    def watch(self) -> None:
        """Look every so often whether a round is to be closed because its time is over."""
        if self._engine.has_windows:
            self.is_watching = True
            self._office.van.every(_LOOK, self._look)

    def _look(self) -> None:
        due_at = self._engine.due_at
        if due_at is not None and self._engine.now() >= due_at and not self._is_settling:
            self._is_settling = True
            self._executor.submit(self._closing(), [SETTLING])

    def _closing(self) -> Turns[None]:
        self._is_settling = False
        yield from self._and_let_go(self._engine.settling())

    def _and_let_go(self, settling: Turns[bool]) -> Turns[None]:
        """Close rounds that no request closes; a round that fails is said to nobody but the log."""
        try:
            yield from self._letting_go(settling)
        except KVError as error:
            log.warning("%s: %s", self._office.name, error)

    def _letting_go(self, settling: Turns[bool]) -> Turns[None]:
        """Close rounds; if a clock has advanced, pulls that waited for it are answered."""
        has_advanced = True  # where a round failed, too, others go on
        try:
            has_advanced = yield from settling
        finally:
            if has_advanced:
                self._answer_held()
