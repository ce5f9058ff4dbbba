"""Faults of messages inside a node, and what the node notes of what it sees.

Every process of the job has the same plan and seed. Each harms what it sends, so that both
directions of a link meet the plan; the fate of a link's n-th message depends on the seed alone.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

from postoffice.head import SchedulerOffice
from postoffice.node import Node, Role, node_id, node_name
from postoffice.postoffice import Postoffice
from postoffice.scheduler_app import SchedulerApp
from postoffice.view import ClusterView
from pslite.chaos.chronicle import Chronicle, start_of
from pslite.chaos.config import ChaosConfig
from pslite.chaos.plan import MessageFault, Partition, Who
from van.faults import FaultPlan, Faults, FaultyVan, Spell
from van.message import Control, Flag, Message, Meta
from van.van import Van

CHECKPOINT_APP, SAVE = (1 << 32) + 104, 1  # as in kv.checkpoint.desk
_MOST_RANKS = 1024
_FOREVER = float("inf")


def fault_plan(chaos: ChaosConfig) -> FaultPlan:
    """The part of a plan that concerns messages; its clock does not run yet."""
    plan = FaultPlan(chaos.seed, spells=[_spell(clause) for clause in chaos.parsed.messages])
    plan.start(_FOREVER)
    return plan


def _spell(clause: MessageFault | Partition) -> Spell:
    start = -_FOREVER if clause.start is None else clause.start
    stop = _FOREVER if clause.duration is None else start + clause.duration
    if isinstance(clause, Partition):
        return Spell(None, _ids(clause.one), _ids(clause.other), start, stop)
    one, other = (None, None) if clause.between is None else map(_ids, clause.between)
    return Spell(_faults(clause), one, other, start, stop)


def _faults(clause: MessageFault) -> Faults:
    values: dict[str, float] = {clause.harm: clause.percent / 100}
    if clause.up_to is not None:
        values["reorder_within" if clause.harm == "reorder" else "delay_up_to"] = clause.up_to
    return Faults(**values)


def _ids(who: Who) -> frozenset[int]:
    ranks = range(_MOST_RANKS) if who.rank is None else [who.rank]
    return frozenset(node_id(who.role, rank) for rank in ranks)


def _asks(meta: Meta) -> bool:
    return not meta.control and not meta.flags & Flag.ANSWER


class Chaos:
    """The faults of one node, and its part of the chronicle.

    Args:
        config: the plan.
        folder: of the job; None: nothing is noted, and times count from this node's own start.
        name: of the node.
    """

    def __init__(self, config: ChaosConfig, folder: Path | None, name: str) -> None:
        self._config, self._folder = config, folder
        self._chronicle = None if folder is None else Chronicle(folder, name)
        self._plan: FaultPlan | None = None
        self._has_begun = False
        self._seen: set[object] = set()

    def around(self, van: Van) -> Van:
        """`van`, or what harms its messages where the plan wants that."""
        if not self._config.parsed.messages:
            return van
        self._plan = fault_plan(self._config)
        return FaultyVan(van, self._plan)

    def watch(self, office: Postoffice) -> None:
        """Note what this node sees; to be called before it starts."""
        self._office = office
        office.on_view.append(self._saw)
        office.before_goodbye.append(self.end)
        inner = office.van.receiver

        def look(message: Message) -> None:
            self._look(message)
            inner(message)

        office.van.receiver = look
        if isinstance(office, SchedulerOffice):
            office.apps.append(_Herald(office, self._note))

    def _note(self, what: str, **facts: Any) -> None:
        if self._chronicle is not None:
            self._chronicle.note(what, **facts)

    def _saw(self, old: ClusterView, new: ClusterView) -> None:
        if new.epoch == 0:
            return
        if not self._has_begun:
            self._begin()
        dead = sorted(map(node_name, new.dead))
        self._note("view", epoch=new.epoch, map=new.map_version, dead=dead)

    def _begin(self) -> None:
        """The cluster runs, or has for a while where this node comes late."""
        self._has_begun = True
        began = None if self._folder is None else start_of(self._folder)
        if began is None and self._office.role is Role.SCHEDULER:
            self._note("start")
        if self._plan is not None:
            self._plan.start(self._office.van.now() if began is None else began)

    def _look(self, message: Message) -> None:
        """Moments of the job at which a process may be meant to meet its fault."""
        meta = message.meta
        if meta.control is Control.BARRIER and self._office.role is Role.SCHEDULER:
            body = meta.body if isinstance(meta.body, dict) else {}
            self._once("barrier", *(repr(body.get(key)) for key in ("group", "name", "count")))
        elif meta.app == CHECKPOINT_APP and meta.cmd == SAVE and _asks(meta):
            self._once("checkpoint", meta.sender, meta.incarnation, meta.timestamp)

    def _once(self, what: str, *which: object) -> None:
        if (what, *which) not in self._seen:
            self._seen.add((what, *which))
            self._note(what)

    def end(self) -> None:
        """Note what became of this node's messages."""
        if self._plan is not None:
            self._note("messages", counts=dict(self._plan.counts))


class _Herald(SchedulerApp):
    """Notes who comes, dies and goes, and how much work the workers have done."""

    name = "chaos"

    def __init__(self, office: SchedulerOffice, note: Callable[..., None]) -> None:
        self._office, self._note = office, note
        self._work: dict[str, list[int]] = {}

    def joined(self, node: Node, now: float) -> None:
        self._note("joined", node=node_name(node.id), life=node.incarnation)

    def died(self, node: Node, now: float) -> None:
        why = self._office.deaths.get(node.id, "is dead")
        self._note("died", node=node_name(node.id), life=node.incarnation, why=why)

    def left(self, node: Node, now: float) -> None:
        self._note("left", node=node_name(node.id))

    def tick(self, now: float) -> None:
        said = self._office.said
        work = {node_name(node): its["work"] for node, its in said.items() if "work" in its}
        if work != self._work:
            self._work = work
            self._note("work", work=work)
