"""The scheduler's end of the balance: moves workers, and keeps what all nodes have decided.

    BalanceApp(office, config, run_dir)      # before office.listen()

Decisions of all nodes come with their heartbeats and are appended to RUN/balance.jsonl, one JSON
object a line, by this scheduler alone. A move is a new epoch (`ClusterView.ways`), which the
scheduler's journal keeps.
"""

from __future__ import annotations

import json
import logging
from collections import deque
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from kv.dispatcher.assignment import dispatcher_of
from kv.dispatcher.balance import Decision
from kv.dispatcher.balance_config import BalanceConfig
from kv.dispatcher.balance_desk import BalanceDesk, Said
from kv.dispatcher.journal import Decisions
from kv.dispatcher.protocol import STATUS
from postoffice.head import SchedulerOffice
from postoffice.node import Node, Role, node_id, role_and_rank
from postoffice.scheduler_app import SchedulerApp

log = logging.getLogger(__name__)

FILE = "balance.jsonl"
_SHOWN = 8  # last decisions that `pslite status` shows


class BalanceApp(SchedulerApp):
    """Moves workers between dispatchers.

    Args:
        office: of the scheduler, which does not listen yet.
        config: marks and times.
        run_dir: gets the file of decisions; None: none is kept.
        begins: this is the job's first scheduler: what is in the file is another job's.

    Attributes:
        last: the last decisions of all nodes.
    """

    name = "balance"

    def __init__(
        self,
        office: SchedulerOffice,
        config: BalanceConfig,
        run_dir: Path | None = None,
        begins: bool = True,
    ) -> None:
        self.office, self._config = office, config
        self._path = None if run_dir is None else run_dir / FILE
        self._decisions = Decisions(office)
        self._seen: dict[str, tuple[int, int]] = {}  # by node: life and number of the last one
        self.last: deque[Decision] = deque(maxlen=_SHOWN)
        self._desk: BalanceDesk | None = None
        if self._path is not None and begins:
            self._path.unlink(missing_ok=True)
        elif self._path is not None and self._path.exists():
            self._read(self._path)
        office.apps.append(self)
        office.queries.offer(STATUS, self._facts)

    @property
    def desk(self) -> BalanceDesk:
        """What decides; it goes on from the ways that a scheduler before this one has given."""
        if self._desk is None:
            shape, view = self.office.shape, self.office.view
            ranks = range(shape.workers if shape.dispatchers else 0)
            homes = [dispatcher_of(rank, shape.workers, shape.dispatchers) for rank in ranks]
            self._desk = BalanceDesk(self._config, homes)
            self._desk.ways = {role_and_rank(node)[1]: to for node, to in view.ways.items()}
        return self._desk

    def died(self, node: Node, now: float) -> None:
        if node.role is Role.DISPATCHER and self.desk.died(node.rank):
            self._redirect()

    def left(self, node: Node, now: float) -> None:
        self._hear(node.id, self.office.said.get(node.id))

    def tick(self, now: float) -> None:
        for node, status in sorted(self.office.said.items()):
            self._hear(node, status)
        if self._config.overflow:
            decision = self.desk.decide(now, self._said())
            if decision is not None:
                epoch = self._redirect()
                self._keep(self._decisions.note(replace(decision, epoch=epoch)))

    def _said(self) -> dict[int, Said]:
        """What the living dispatchers say."""
        found = {}
        view = self.office.view
        for node, status in self.office.said.items():
            role, rank = role_and_rank(node)
            if role is Role.DISPATCHER and node in view.nodes and node not in view.gone:
                with suppress(KeyError, TypeError, ValueError):
                    found[rank] = Said.of(status[STATUS])
        return found

    def _redirect(self) -> int:
        """Tell everybody where workers go; the epoch of that."""
        ways = {node_id(Role.WORKER, worker): to for worker, to in self.desk.ways.items()}
        return self.office.redirect(ways)

    # -- what was decided ---------------------------------------------------------------------

    def _hear(self, node: int, status: Any) -> None:
        if isinstance(status, dict) and STATUS in status:
            self._note(node, status[STATUS])

    def _note(self, node: int, status: Any) -> None:
        """Keep a node's decisions that are new here."""
        with suppress(KeyError, TypeError, ValueError):
            life = int(status["life"])
            for packed in status["decisions"]:
                decision = Decision.unpack(packed)
                known = self._seen.get(decision.node, (0, 0))
                if (life, decision.number) > known:
                    self._seen[decision.node] = life, decision.number
                    self._keep(decision, life)

    def _read(self, path: Path) -> None:
        """What a scheduler before this one has kept, so that it is not kept twice."""
        for line in path.read_text(encoding="utf-8", errors="replace").splitlines():
            with suppress(KeyError, TypeError, ValueError):
                packed = json.loads(line)
                life = int(packed.pop("life"))
                decision = Decision.unpack(packed)
                self._seen[decision.node] = life, decision.number
                self.last.append(decision)

    def _keep(self, decision: Decision, life: int | None = None) -> None:
        self.last.append(decision)
        if self._path is None:
            return
        life = self.office.incarnation if life is None else life
        line = decision.pack() | {"life": life}
        try:
            with self._path.open("a", encoding="utf-8") as file:
                file.write(json.dumps(line) + "\n")
        except OSError as error:
            log.warning("%s cannot be written: %s", self._path, error.strerror)
            self._path = None

    def _facts(self) -> dict[str, Any]:
        """What somebody outside the cluster is told."""
        return {
            "ways": [list(item) for item in sorted(self.desk.ways.items())],
            "decisions": [decision.pack() for decision in self.last],
        }

    def remarks(self) -> list[str]:
        return [
            *(
                f"worker {worker} goes through dispatcher {to} for now"
                for worker, to in sorted(self.desk.ways.items())
            ),
            *(f"decided by {decision.node}: {decision}" for decision in self.last),
        ]

    # -- what outlives the scheduler ----------------------------------------------------------

    def restore(self, state: Any, notes: Sequence[Any]) -> None:
        self._desk = None
