"""Who shall own which slot, and who shall back it up: decided when servers come, go and fail.

A plain object: events in, a slot map and orders to servers out. There are two orders:

    FILL slots, source -> target   the owner sends their rows to `target`, and from then on each
                                   change as well, until it reports that `target` has all of it
    GIVE slots, source -> target   the owner stops serving them, finishes what is under way, and
                                   reports when its backup `target` has all of it

Only a published map changes who serves: a FILL that is done makes `target` the backup, a GIVE that
is done makes it the owner, and the former owner, which has the same rows, the backup. So a move is
a fill and a give, and a failure is a give without the former owner's help. Orders are numbered and
may be told again; one whose source or target died is forgotten, and what is missing is ordered
anew.

Wanted, in this order: every slot has a backup (with replicas = 1); nothing lies on servers that are
to leave; owners, then backups, are evenly shared.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

import numpy as np
from numpy.typing import NDArray

from kv.placement import NOBODY, NUM_SLOTS, SlotMap

Ranks = NDArray[np.uint16]
Slots = NDArray[np.int64]


class OrderKind(IntEnum):
    """What a server is told to do."""

    FILL = 1
    GIVE = 2


@dataclass(frozen=True, eq=False)
class Order:
    """An order to the server `source`.

    Args:
        number: no other order has it.
        slots: int64, increasing.
    """

    number: int
    kind: OrderKind
    source: int
    target: int
    slots: Slots

    def pack(self) -> list[Any]:
        """As msgpack types."""
        slots = self.slots.astype("<u2").tobytes()
        return [self.number, int(self.kind), self.source, self.target, slots]

    @staticmethod
    def unpack(packed: Any) -> Order:
        """The inverse of `pack`; raises ValueError or TypeError on anything else."""
        number, kind, source, target, slots = packed
        found = np.frombuffer(slots, "<u2").astype(np.int64)
        if found.size == 0 or found.max() >= NUM_SLOTS or (np.diff(found) <= 0).any():
            raise ValueError(f"order {number} names no increasing list of slots")
        return Order(int(number), OrderKind(kind), int(source), int(target), found)

    def __repr__(self) -> str:
        where = f"{self.source}->{self.target}"
        return f"<{self.kind.name} {self.number} {where} slots={self.slots.size}>"


class PlacementDesk:
    """The book of slots.

    Args:
        servers: how many there are at first, ranks 0, 1, …
        replicas: copies of each slot besides its owner's, 0 or 1.

    Attributes:
        version: of the map; grows with each change of it.
        owner, backup: uint16 (1024,), as in `SlotMap`.
        alive: rank -> incarnation.
        size: servers that there are to be; those of that rank and above are to leave.
        orders: by number, those that are under way.
        lost: bool (1024,): the owner died and nobody had a copy.
    """

    def __init__(self, servers: int, replicas: int = 0) -> None:
        self.replicas, self.size = replicas, servers
        first = SlotMap.even(servers)
        self.version = 0
        self.owner, self.backup = first.owner.copy(), first.backup.copy()
        self.alive: dict[int, int] = {}
        self.orders: dict[int, Order] = {}
        self.lost = np.zeros(NUM_SLOTS, np.bool_)
        self._next = 1

    def __repr__(self) -> str:
        return (
            f"<PlacementDesk {self.map()!r} alive={sorted(self.alive)} orders={len(self.orders)}>"
        )

    def map(self) -> SlotMap:
        """The map as it is now."""
        return SlotMap(self.version, self.owner, self.backup)

    @property
    def is_settled(self) -> bool:
        """Whether nothing is to be moved or filled, and nothing is lost."""
        return not self.orders and not self.lost.any()

    # -- what happens -----------------------------------------------------------------------

    def start(self, servers: Mapping[int, int]) -> None:
        """All servers of the job have come: rank -> incarnation."""
        self.alive.update(servers)
        self._plan()

    def joined(self, rank: int, incarnation: int) -> None:
        """A server has come, empty; its former life, if it had one, is over."""
        if self.alive.get(rank) == incarnation:
            return
        if rank in self.alive:
            self.died(rank)
        self.alive[rank] = incarnation
        self.lost[self.owner == rank] = False  # it serves them, from a checkpoint or anew
        self._plan()

    def died(self, rank: int) -> Slots:
        """A server is dead. Its slots go to their backups; returns those that have none."""
        if self.alive.pop(rank, None) is None:
            return np.empty(0, np.int64)
        self.orders = {
            number: order
            for number, order in self.orders.items()
            if rank not in (order.source, order.target)
        }
        mine = self.owner == rank
        covered = mine & (self.backup != NOBODY)
        self.owner[covered] = self.backup[covered]
        self.backup[covered | (self.backup == rank)] = NOBODY
        gone = mine & ~covered
        self.lost |= gone
        self.version += 1  # also where no slot changed hands: who was to give to it serves on
        self._plan()
        return np.flatnonzero(gone)

    def covers(self, rank: int) -> bool:
        """Whether nothing would be lost, or was, by the death of that server."""
        without = (self.owner == rank) & (self.backup == NOBODY)
        return not bool(without.any())

    def scale(self, servers: int) -> None:
        """There are to be that many servers: ranks 0 to servers - 1."""
        self.size = servers
        self._plan()

    def done(self, number: int, rank: int, incarnation: int) -> bool:
        """The server that was given the order reports that it is done; whether that is news."""
        order = self.orders.get(number)
        if order is None or order.source != rank or self.alive.get(rank) != incarnation:
            return False
        del self.orders[number]
        if order.kind is OrderKind.FILL:
            self.backup[order.slots] = order.target
        else:
            self.owner[order.slots] = order.target
            self.backup[order.slots] = order.source if self.replicas else NOBODY
        self.version += 1
        self._plan()
        return True

    # -- what follows -----------------------------------------------------------------------

    def wanted(self) -> list[int]:
        """The servers that are to have slots."""
        return sorted(rank for rank in self.alive if rank < self.size)

    def released(self) -> list[int]:
        """Living servers that are to leave and have nothing any more."""
        holds = {*np.unique(self.owner).tolist(), *np.unique(self.backup).tolist()}
        for order in self.orders.values():
            holds |= {order.source, order.target}
        return sorted(rank for rank in self.alive if rank >= self.size and rank not in holds)

    def _plan(self) -> None:
        """Order what is missing, one wish after the other: the next when nothing is under way."""
        wanted = self.wanted()
        if not wanted:
            return
        if self.replicas and len(wanted) > 1:
            self._order_backups(wanted)
        if not self.orders:
            self._order_owners(wanted)
        if not self.orders and self.replicas and len(wanted) > 1:
            self._spread_backups(wanted)
        if not self.orders:
            self._drop_backups(wanted)

    def _drop_backups(self, wanted: list[int]) -> None:
        """Forget copies that were filled for a move that is made, or lie where nobody shall be."""
        is_over = self.backup != NOBODY
        if self.replicas:
            is_over &= ~np.isin(self.backup, np.array(wanted, np.uint16))
        if is_over.any():
            self.backup[is_over] = NOBODY
            self.version += 1

    def _free(self) -> NDArray[np.bool_]:
        """Slots of living owners that no order is about."""
        free = np.isin(self.owner, np.fromiter(self.alive, np.uint16, len(self.alive)))
        for order in self.orders.values():
            free[order.slots] = False
        return free

    def _order_backups(self, wanted: list[int]) -> None:
        """A backup for each slot that has none."""
        bare = self._free() & (self.backup == NOBODY)
        for source in sorted(self.alive):
            self._fill(source, np.flatnonzero(bare & (self.owner == source)), wanted)

    def _spread_backups(self, wanted: list[int]) -> None:
        """Other backups for what lies on servers that leave, or on those with more than others."""
        loads = self._backup_loads(wanted)
        most = -(-NUM_SLOTS // len(wanted))
        movable = self._free()
        for rank in sorted(self.alive):
            mine = np.flatnonzero(movable & (self.backup == rank))
            surplus = mine.size if rank not in wanted else loads[rank] - most
            for source in sorted(self.alive):
                if surplus > 0:
                    some = mine[self.owner[mine] == source][:surplus]
                    others = [r for r in wanted if r != rank]
                    surplus -= self._fill(source, some, others, only_to_light=rank in wanted)

    def _fill(
        self, source: int, slots: Slots, targets: list[int], only_to_light: bool = False
    ) -> int:
        """Order that `slots` of `source` be filled into `targets` that have few; how many are.

        Runs of slots go to one target as far as its share allows: each pair of servers has a log.
        """
        loads = self._backup_loads(targets)
        others = [rank for rank in targets if rank != source]
        share = -(-NUM_SLOTS // max(1, len(self.wanted())))
        others.sort(key=lambda rank: (loads[rank], (rank - source) % NUM_SLOTS))
        ordered = 0
        for place, target in enumerate(others):
            rest = slots.size - ordered
            is_last = place == len(others) - 1 and not only_to_light
            count = rest if is_last else max(0, min(rest, share - loads[target]))
            self._order(OrderKind.FILL, source, target, slots[ordered : ordered + count])
            ordered += count
        return ordered

    def _backup_loads(self, ranks: Iterable[int]) -> dict[int, int]:
        """Slots that each backs up, those included that are being filled."""
        loads = {rank: int(np.count_nonzero(self.backup == rank)) for rank in ranks}
        for order in self.orders.values():
            if order.kind is OrderKind.FILL and order.target in loads:
                loads[order.target] += order.slots.size
        return loads

    def _order_owners(self, wanted: list[int]) -> None:
        """Move slots from servers with more than their share, or that leave, to those with less."""
        free = self._free()
        counts = {rank: int(np.count_nonzero(self.owner == rank)) for rank in self.alive}
        lots = self._lots(wanted, counts)
        surplus = {rank: counts[rank] - lots.get(rank, 0) for rank in self.alive}
        for target in wanted:
            for source in sorted(self.alive):
                count = min(surplus[source], -surplus[target])
                if count > 0:
                    moved = self._move(source, target, count, free)
                    surplus[source] -= moved
                    surplus[target] += moved

    @staticmethod
    def _lots(wanted: list[int], counts: Mapping[int, int]) -> dict[int, int]:
        """How many slots each is to own: those with most now keep the odd ones."""
        base, odd = divmod(NUM_SLOTS, len(wanted))
        by_count = sorted(wanted, key=lambda rank: (-counts[rank], rank))
        return {rank: base + (place < odd) for place, rank in enumerate(by_count)}

    def _move(self, source: int, target: int, count: int, free: NDArray[np.bool_]) -> int:
        """Order the next thing that brings `count` slots nearer to `target`; how many."""
        mine = np.flatnonzero(free & (self.owner == source))
        is_ready = self.backup[mine] == target
        ready, other = mine[is_ready][:count], mine[~is_ready]
        other = other[: count - ready.size]
        self._order(OrderKind.GIVE, source, target, ready)
        self._order(OrderKind.FILL, source, target, other)
        free[ready] = free[other] = False
        return int(ready.size + other.size)

    def _order(self, kind: OrderKind, source: int, target: int, slots: Slots) -> None:
        if slots.size:
            self.orders[self._next] = Order(self._next, kind, source, target, np.sort(slots))
            self._next += 1

    # -- what outlives the scheduler --------------------------------------------------------

    def state(self) -> dict[str, Any]:
        """All of it, as msgpack types."""
        return {
            "size": self.size,
            "replicas": self.replicas,
            "map": self.map().to_bytes(),
            "lost": np.packbits(self.lost).tobytes(),
            "alive": [list(item) for item in self.alive.items()],
            "orders": [order.pack() for order in self.orders.values()],
            "next": self._next,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Be as `state` says: orders under way are told again."""
        slots = SlotMap.from_bytes(state["map"])
        self.size, self.replicas = int(state["size"]), int(state["replicas"])
        self.version = slots.version
        self.owner, self.backup = slots.owner.copy(), slots.backup.copy()
        self.lost = np.unpackbits(np.frombuffer(state["lost"], np.uint8)).astype(np.bool_)
        self.alive = {int(rank): int(incarnation) for rank, incarnation in state["alive"]}
        orders = map(Order.unpack, state["orders"])
        self.orders = {order.number: order for order in orders}
        self._next = int(state["next"])

    def validate(self) -> None:
        """Assert what must always hold."""
        alive = np.fromiter(self.alive, np.uint16, len(self.alive))
        assert (np.isin(self.owner, alive) | self.lost | (self.version == 0)).all(), "dead owners"
        has_backup = self.backup != NOBODY
        assert not (has_backup & (self.backup == self.owner)).any(), "one's own backup"
        assert np.isin(self.backup[has_backup], alive).all(), "dead backups"
        busy = np.zeros(NUM_SLOTS, np.int64)
        for order in self.orders.values():
            busy[order.slots] += 1
            assert (self.owner[order.slots] == order.source).all(), f"{order!r} to no owner"
            assert {order.source, order.target} <= set(self.alive), f"{order!r} with the dead"
            if order.kind is OrderKind.GIVE:
                assert (self.backup[order.slots] == order.target).all(), f"{order!r} unfilled"
        assert busy.max() <= 1, "two orders about one slot"


def describe(slots: Slots) -> str:
    """Slots as ranges, for people.

    >>> describe(np.array([0, 1, 2, 7, 9, 10]))
    '0-2, 7, 9-10'
    """
    runs = np.split(slots, np.flatnonzero(np.diff(slots) != 1) + 1)
    return ", ".join(f"{r[0]}-{r[-1]}" if r.size > 1 else f"{r[0]}" for r in runs if r.size)
