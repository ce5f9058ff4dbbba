"""Which slots a server owns: maps come in, and slots change hands.

A new map is taken up behind all work that there is (lanes), so that no request is half done
meanwhile: what this server has gained it serves from its copies; what it has lost is a copy of
another's from then on, or forgotten.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import numpy as np

from kv.consistency.base import Kept
from kv.consistency.rounds import is_made_again
from kv.executor import Turns, run_through
from kv.placement import NUM_SLOTS, SlotMap
from kv.placement_desk import OrderKind
from kv.replication.copies import parted
from kv.replication.outgoing import Peer, no_slots
from kv.replication.records import Slots
from kv.replication.replica import Replica
from postoffice.view import ClusterView

if TYPE_CHECKING:
    from kv.table_server import TableServer


class Ownership(Replica):
    """Follows maps, and the lives of other servers. Arguments as for `Replica`.

    Attributes:
        map_version: of the map that is taken up.
    """

    def __init__(self, tables: TableServer, timeout: float = 0.3) -> None:
        super().__init__(tables, timeout)
        self.map_version = 0
        self._newest = 0  # version of the newest map that is or will be taken up

    # -- maps and lives ---------------------------------------------------------------------------

    def _take_view(self, old: ClusterView, new: ClusterView) -> None:
        self._note_thread()
        for node, life in new.fenced.items():
            self.receivers.fence(node, life)
        for peer in self.out.peers:
            known = new.nodes.get(peer.node)
            if known is None or known.incarnation != peer.incarnation:
                self._lose(peer)
        if new.map_version > self._newest:
            self._newest = new.map_version
            told = SlotMap.from_bytes(new.map_blob)
            slots = SlotMap(new.map_version, told.owner, told.backup)
            self._start_ticking()
            self.executor.submit(self._mapping(slots), self._all_lanes())

    def _lose(self, peer: Peer) -> None:
        self._cancel(peer)
        self.out.drop(peer)

    def _cancel(self, peer: Peer) -> None:
        for number, task in list(self.tasks.items()):
            if task.peer is peer:
                task.is_cancelled = True
                if task.order.kind is OrderKind.FILL:
                    del self.tasks[number]

    def _mapping(self, slots: SlotMap) -> Turns[None]:
        if slots.version <= self.map_version:
            return
        self._in_van(lambda: self._switch(slots))
        kept = (slots.backup == self.office.rank) | self.mine | self._promised(are_given=True)
        filled = self.incoming.source == _nodes_of(slots.owner)
        self.incoming.leave(self.incoming.present & ~kept & ~filled)
        return
        yield

    def _switch(self, slots: SlotMap) -> None:
        """Serve what `slots` gives this server from now on. The van's thread; nothing is begun."""
        rank, before = self.office.rank, self.mine
        for number, task in list(self.tasks.items()):
            if task.order.kind is OrderKind.GIVE:
                is_made = not (slots.owner[task.slots] == rank).any()
                if is_made or task.is_cancelled:
                    del self.tasks[number]
        mine: Slots = (slots.owner == rank) & ~self._promised(are_given=True)
        gained, lost = mine & ~before, before & ~mine
        if lost.any():
            self._demote(lost)
        self._route(slots, mine)
        self._promote(slots, mine, gained)
        self._mine, self.map_version = mine, slots.version
        self.desk.gate(self._promised(are_given=False))
        self.tables.look_at_held()

    # -- who is sent what -----------------------------------------------------------------------

    def _route(self, slots: SlotMap, mine: Slots) -> None:
        """Send changes to whom the map calls backups, and to those that are being filled."""
        ranks = set(np.unique(slots.backup[mine & (slots.backup < NUM_SLOTS)]).tolist())
        for rank in ranks:
            if self._peer(int(rank)) is not None:
                self.out.listen()
        for peer in self.out.peers:
            filling = no_slots()
            for task in self.tasks.values():
                if task.peer is peer and task.order.kind is OrderKind.FILL:
                    filling |= task.slots
            backed = mine & (slots.backup == peer.rank)
            if peer.is_full and not backed.any():
                self.out.drop(peer)  # with the next order another log begins
                continue
            counted = (peer.counted & filling & mine) | backed
            sent = (filling & mine) | backed
            self.out.route(peer, sent, counted, left=peer.slots & mine & ~sent)

    # -- changing hands -------------------------------------------------------------------------

    def _promote(self, slots: SlotMap, mine: Slots, gained: Slots) -> None:
        """Own `mine`; of what is `gained` the copies become this server's own."""
        copies, useless = self.incoming.copies, gained & self.incoming.leaving.slots
        if useless.any():  # nobody has copies of these
            run_through(self.incoming.dropping(useless))
        blob = copies.windows.export(gained)
        self.desk.learn(slots)
        if gained.any():
            self.desk.windows.adopt(gained, blob)
        self.engine.own(mine)
        for table in list(self.engine.tables):
            taken = self._still_held(copies.take_held(table, gained))
            if not table.mode.holds:
                table.mode.clock = max(table.mode.clock, self.incoming.clocks.get(table, 0))
            elif taken:
                # Of a push that was cut, this server has counted its own piece.
                rest = [(rank, number, part._replace(is_rest=True)) for rank, number, part in taken]
                run_through(self.engine.keeping(table, [*table.mode.kept(), *rest]))
        copies.forget(gained)
        self.incoming.present &= ~gained
        self.incoming.source[gained] = 0

    def _still_held(self, taken: list[Kept]) -> list[Kept]:
        """Without what workers that were started again push once more."""
        progress = self.engine.progress
        return [kept for kept in taken if not is_made_again(progress, kept[0], kept[2])]

    def _demote(self, slots: Slots) -> None:
        """What this server owned is a copy of another's from now on. The van's thread."""
        copies = self.incoming.copies
        for table in list(self.engine.tables):
            kept, left = parted(table, table.mode.kept(), slots)
            if kept:
                with self.engine.lock:
                    table.mode.keep(left)
                for rank, number, update in kept:
                    copies.hold(table, rank, number, update)
        copies.windows.adopt(slots, self.desk.windows.export(slots))
        self.incoming.present |= slots
        self._mine = self.mine & ~slots
        self.engine.own(self._mine)
        for task in self.tasks.values():
            if task.order.kind is OrderKind.FILL:  # should they come back, the map says who backs
                task.slots = task.slots & ~slots
        for peer in self.out.peers:
            self.out.route(peer, peer.slots & ~slots, peer.counted & ~slots)


def _nodes_of(ranks: np.ndarray[Any, np.dtype[np.uint16]]) -> np.ndarray[Any, np.dtype[np.int64]]:
    return 8 + 2 * ranks.astype(np.int64)
