"""The scheduler's end of the placement of slots.

Tells `PlacementDesk` what happens, and others what it decides.

    app = PlacementApp(office, replicas=1)      # before office.listen()

What it decides is in the scheduler's journal before anybody is told of it, so that a scheduler that
is started again goes on in the midst of fills and moves. Orders are told again at each tick until
their source says that they are done. NumPy only: the scheduler loads no kernel.
"""

from __future__ import annotations

import logging
from collections.abc import Sequence
from typing import Any

from kv.errors import KVError
from kv.placement import MAX_SERVERS, SlotMap
from kv.placement_desk import PlacementDesk, describe
from kv.replication.protocol import PLACEMENT_APP, Said
from postoffice.customer import Customer
from postoffice.head import SchedulerOffice
from postoffice.node import Node, Role, node_id, node_name, role_and_rank
from postoffice.scheduler_app import SchedulerApp
from van.errors import PsliteError
from van.message import Message, Meta

log = logging.getLogger(__name__)

TOPIC, SCALE = "placement", "scale"  # what others may ask about, and for


class PlacementApp(SchedulerApp):
    """Places slots on the servers of a cluster.

    Args:
        office: of the scheduler, which does not listen yet.
        replicas: copies of each slot, 0 or 1.
        why_fixed: why there can be no other number of servers; empty: there can.
    """

    name = "placement"

    def __init__(self, office: SchedulerOffice, replicas: int = 0, why_fixed: str = "") -> None:
        self.office, self._replicas, self._why_fixed = office, replicas, why_fixed
        self._begin()
        office.apps.append(self)
        Customer(PLACEMENT_APP, 0, office, self._receive)
        office.queries.offer(TOPIC, self._facts)
        office.queries.accept(SCALE, self._scale)

    def _begin(self) -> None:
        """No server has come yet."""
        self.desk = PlacementDesk(max(1, self.office.shape.servers), self._replicas)
        self._told = 0  # version of the desk's map that was published
        self._has_started = False
        self._released: set[int] = set()
        self._is_new_here = False  # servers may have come and gone since the journal was written
        self._has_news = False  # orders that nobody has been told of

    # -- nodes ------------------------------------------------------------------------------

    def joined(self, node: Node, now: float) -> None:
        if node.role is not Role.SERVER:
            return
        if self._has_started:
            self.desk.joined(node.rank, node.incarnation)
        else:
            self.desk.alive[node.rank] = node.incarnation
            self._has_started = len(self.desk.alive) == self.office.shape.servers
            if self._has_started:
                self.desk.start({})
        self._tell()

    def died(self, node: Node, now: float) -> None:
        if node.role is Role.SERVER:
            lost = self.desk.died(node.rank)
            if lost.size and not self.office.is_ending:
                log.warning("nobody has a copy of slots %s of %s", describe(lost), node)
            self._tell()

    def left(self, node: Node, now: float) -> None:
        """A server that has said goodbye serves no more: what it had is as if it had died."""
        if node.role is Role.SERVER and self._is_needed():
            self.died(node, now)

    def _is_needed(self) -> bool:
        """Whether workers are there that need the slots; at the end of a job all servers leave."""
        return bool(self.office.view.alive(Role.WORKER))

    def tick(self, now: float) -> None:
        if self._is_new_here:
            self._is_new_here = False
            self._catch_up(now)
        if self.desk.retry(now):
            self._tell()
        self._order()
        for rank in self._released & set(self.desk.released()):
            self._send_home(node_id(Role.SERVER, rank))

    def committed(self, now: float) -> None:
        if self._has_news:
            self._has_news = False
            self._order()
            for rank in set(self.desk.released()) - self._released:
                self._released.add(rank)
                self._send_home(node_id(Role.SERVER, rank))

    def _catch_up(self, now: float) -> None:
        """Hear of the servers that the former scheduler has seen come or go just before its end."""
        view = self.office.view
        there = {n.rank: n for n in view.nodes.values() if n.role is Role.SERVER}
        for rank in [r for r in self.desk.alive if r not in there]:
            self.died(Node(Role.SERVER, rank, "", self.desk.alive[rank]), now)
        for node in there.values():
            if node.id in view.gone:
                self.left(node, now)
            elif self.desk.alive.get(node.rank) != node.incarnation:
                self.joined(node, now)
        self.desk.scale(self.desk.size)  # who had no room is tried again
        self._tell()

    def may_grow(self, role: Role) -> bool:
        return role is Role.SERVER and len(self.desk.alive) < self.desk.size

    def is_covered(self, node: int) -> bool:
        role, rank = role_and_rank(node)
        return role is Role.SERVER and self.desk.covers(rank)

    # -- what is wanted ---------------------------------------------------------------------

    def scale(self, servers: int) -> None:
        """There are to be that many servers.

        Raises:
            KVError: there cannot be.
        """
        if not self._has_started:
            raise KVError("the job is only starting; try again in a moment")
        if self._why_fixed:
            raise KVError(f"this job cannot be scaled: {self._why_fixed}")
        if type(servers) is not int or not 1 <= servers <= MAX_SERVERS:
            raise KVError(f"there can be 1 to {MAX_SERVERS} servers, not {servers!r}")
        if self.desk.replicas and servers < 2:
            raise KVError("with [cluster] replicas = 1 there must be two servers at least")
        self._released.clear()
        self.desk.version += self.desk.version == 0  # a server that comes must know the others'
        self.desk.scale(servers)
        self._tell()

    def _scale(self, wish: Any) -> dict[str, Any]:
        self.scale(wish)
        return self._facts()

    def _facts(self) -> dict[str, Any]:
        """What somebody outside the cluster is told."""
        desk = self.desk
        return {
            "version": desk.version,
            "replicas": desk.replicas,
            "servers": desk.size,
            "alive": sorted(desk.alive),
            "missing": sorted(set(range(desk.size)) - desk.alive.keys()),
            "is_settled": desk.is_settled and not set(desk.released()) - self._released,
            "owner": desk.owner.tolist(),
            "backup": desk.backup.tolist(),
            "orders": [
                [order.number, order.kind.name, order.source, order.target, int(order.slots.size)]
                for order in desk.orders.values()
            ],
            "lost": describe(desk.lost.nonzero()[0]) if desk.lost.any() else "",
            "bare": describe(desk.bare()) if desk.bare().size else "",
            "full": [list(item) for item in sorted(desk.full.items())],
        }

    def remarks(self) -> list[str]:
        facts = self._facts()
        found = []
        if facts["lost"]:
            found.append(f"nobody has the rows of slots {facts['lost']}")
        if facts["bare"] and self._has_started:
            found.append(f"slots {facts['bare']} have no backup")
        found += [f"server {rank} has no room for copies: {why}" for rank, why in facts["full"]]
        return found

    # -- messages ---------------------------------------------------------------------------

    def _receive(self, message: Message) -> None:
        meta = message.meta
        role, rank = role_and_rank(meta.sender)
        if role is not Role.SERVER or meta.cmd not in (Said.DONE, Said.FULL):
            raise KVError("only servers say what is done about slots")
        body = meta.body
        if meta.cmd == Said.FULL:
            self._note_full(
                rank, meta.incarnation, int(body["rank"]), int(body["life"]), body["why"]
            )
        elif self.desk.done(int(body["order"]), rank, meta.incarnation):
            self._tell()
        elif int(body["order"]) not in self.desk.orders:  # the newest map has heard of its end
            over = {"order": int(body["order"]), "map": self.office.view.map_version}
            self._send(meta.sender, Said.OVER, over)

    def _note_full(self, source: int, incarnation: int, target: int, life: int, why: str) -> None:
        """A backup has no room for more of the rows of `source`."""
        desk, is_known = self.desk, target in self.desk.full
        if desk.alive.get(target) != life:
            return
        if desk.refused(source, incarnation, target, why, self.office.van.now()):
            if not is_known:
                log.warning(
                    "server %d has no room for copies (%s); slots %s have no backup; it is tried "
                    "again later",
                    target,
                    why,
                    describe(desk.bare()) or "none",
                )
            self._tell()

    def _tell(self) -> None:
        """Publish the map, if it is another, and give the orders: when they are written down."""
        desk = self.desk
        self._has_news = True
        self.office.save(self)
        if desk.version > self._told:
            self._told = desk.version
            version = self.office.view.map_version + 1
            blob = SlotMap(version, desk.owner, desk.backup).to_bytes()
            self.office.set_map(blob)
        self.office.publish()

    def _send_home(self, node: int) -> None:
        """A server has nothing any more and is to leave: let it end in good order."""
        log.info("%s has no slots any more and may go", node_name(node))
        self._send(node, Said.LEAVE, None)

    def _order(self) -> None:
        for order in list(self.desk.orders.values()):
            self._send(node_id(Role.SERVER, order.source), Said.ORDER, order.pack())

    def _send(self, node: int, said: Said, body: Any) -> None:
        meta = Meta(recipient=node, app=PLACEMENT_APP, cmd=int(said), body=body)
        try:
            self.office.send(Message(meta))
        except PsliteError as error:  # told again at the next tick, or the node is dead
            log.debug("%s is not told: %s", node_name(node), error)

    # -- what outlives the scheduler ----------------------------------------------------------

    def state(self) -> Any:
        return {"desk": self.desk.state(), "started": self._has_started}

    def restore(self, state: Any, notes: Sequence[Any]) -> None:
        self._begin()
        if state is not None:
            self.desk.restore(state["desk"])
            self._has_started, self._told = bool(state["started"]), self.desk.version
            self._is_new_here = self._has_news = self._has_started
