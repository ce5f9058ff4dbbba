"""Who owns and backs up what while servers come, die and go: whatever happens, in any order.

The servers of the machine hold, for each slot, the number of the last write that they have. Who
owns a slot writes; its backup, and whoever is being filled, get each write along.
"""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule

from kv.placement import NOBODY, NUM_SLOTS
from kv.placement_desk import Order, OrderKind, PlacementDesk, describe


def settled(desk: PlacementDesk) -> PlacementDesk:
    """Let the servers carry out whatever they are told."""
    for _ in range(1000):
        if not desk.orders:
            return desk
        order = next(iter(desk.orders.values()))
        assert desk.done(order.number, order.source, desk.alive[order.source])
        desk.validate()
    raise AssertionError(f"{desk!r} never settles: {desk.orders}")


def desk_of(servers: int, replicas: int = 1) -> PlacementDesk:
    desk = PlacementDesk(servers, replicas)
    desk.start({rank: 100 + rank for rank in range(servers)})
    return settled(desk)


def counts(ranks: np.ndarray, servers: int) -> list[int]:
    return np.bincount(ranks[ranks != NOBODY], minlength=servers).tolist()


def test_without_replicas_nothing_is_ordered() -> None:
    desk = PlacementDesk(3, 0)
    desk.start({0: 1, 1: 1, 2: 1})

    assert not desk.orders
    assert desk.version == 0


@pytest.mark.parametrize("servers", [2, 3, 5, 8])
def test_each_slot_gets_a_backup_elsewhere_in_few_orders(servers: int) -> None:
    desk = PlacementDesk(servers, 1)
    desk.start(dict.fromkeys(range(servers), 1))
    first = len(desk.orders)
    settled(desk)

    assert first <= 2 * servers  # each pair of servers has a log, so pairs should be few
    assert (desk.backup != NOBODY).all()
    assert (desk.backup != desk.owner).all()
    loads = counts(desk.backup, servers)
    assert max(loads) - min(loads) <= 1 + NUM_SLOTS % servers


def test_one_server_has_no_backup_and_waits_for_another() -> None:
    desk = desk_of(1)
    assert (desk.backup == NOBODY).all()

    desk.size = 2
    desk.joined(1, 7)
    settled(desk)

    assert (desk.backup != NOBODY).all()
    assert counts(desk.owner, 2) == [512, 512]


def test_a_dead_servers_slots_go_to_its_backups_at_once() -> None:
    desk = desk_of(3)
    before, version = desk.map(), desk.version

    gone = desk.died(1)

    assert gone.size == 0
    assert desk.version > version
    mine = before.owner == 1
    np.testing.assert_array_equal(desk.owner[mine], before.backup[mine])
    np.testing.assert_array_equal(desk.owner[~mine], before.owner[~mine])


def test_a_replacement_is_filled_becomes_the_backup_and_takes_its_share() -> None:
    desk = desk_of(2)
    desk.died(0)
    assert (desk.owner == 1).all()
    assert (desk.backup == NOBODY).all()

    desk.joined(0, 200)

    assert [(o.kind, o.source, o.target) for o in desk.orders.values()] == [(OrderKind.FILL, 1, 0)]
    settled(desk)
    assert counts(desk.owner, 2) == [512, 512]
    assert counts(desk.backup, 2) == [512, 512]


def test_slots_without_a_copy_are_lost_until_their_server_is_back() -> None:
    desk = desk_of(2, replicas=0)

    gone = desk.died(1)

    assert gone.tolist() == list(range(512, 1024))
    assert desk.lost.sum() == 512
    desk.joined(1, 300)
    assert not desk.lost.any()
    assert counts(desk.owner, 2) == [512, 512]


def test_what_a_death_would_cost_is_known_before() -> None:
    assert desk_of(2).covers(1)
    assert not desk_of(2, replicas=0).covers(1)


@pytest.mark.parametrize("replicas", [0, 1])
@pytest.mark.parametrize(("before", "after"), [(2, 3), (3, 2), (4, 1), (1, 4)])
def test_scaling_shares_the_slots_among_those_there_are_to_be(
    replicas: int, before: int, after: int
) -> None:
    desk = desk_of(before, replicas)
    desk.scale(after)
    for rank in range(before, after):
        desk.joined(rank, 50)
    settled(desk)

    owners = counts(desk.owner, after)
    assert len(owners) == after
    assert max(owners) - min(owners) <= 1
    assert desk.released() == list(range(after, before))
    if replicas and after > 1:
        backups = counts(desk.backup, after)
        assert len(backups) == after
        assert sum(backups) == NUM_SLOTS
    else:
        assert (desk.backup == NOBODY).all()


def test_an_order_done_by_a_former_life_does_not_count() -> None:
    desk = PlacementDesk(2, 1)
    desk.start({0: 1, 1: 1})
    number = next(iter(desk.orders))

    assert not desk.done(number, 0, 99)
    assert not desk.done(number, 1, 1)
    assert not desk.done(number + 99, 0, 1)


def test_who_was_to_give_to_one_that_died_hears_of_a_newer_map() -> None:
    desk = desk_of(2)
    desk.scale(3)
    desk.joined(2, 1)
    while all(order.kind is OrderKind.FILL for order in desk.orders.values()):
        order = next(iter(desk.orders.values()))
        desk.done(order.number, order.source, desk.alive[order.source])
    give = next(o for o in desk.orders.values() if o.kind is OrderKind.GIVE)
    version = desk.version

    desk.died(give.target)

    assert desk.version > version
    assert (desk.owner[give.slots] == give.source).all()


def test_the_state_survives_its_scheduler() -> None:
    desk = desk_of(3)
    desk.died(2)
    other = PlacementDesk(1, 0)

    other.restore(desk.state())

    assert other.state() == desk.state()
    assert other.map() == desk.map()
    settled(other)


def test_slots_are_named_as_ranges() -> None:
    assert describe(np.array([0, 1, 2, 7, 9, 10])) == "0-2, 7, 9-10"
    assert describe(np.arange(1)) == "0"


class ClusterMachine(RuleBasedStateMachine):
    """Servers that carry out orders sooner or later, and a desk that hears of it later still."""

    def __init__(self) -> None:
        super().__init__()
        self.writes = np.zeros(NUM_SLOTS, np.int64)
        self.copies: dict[int, np.ndarray] = {}
        self.lives = 0
        self.begun: dict[int, Order] = {}  # orders that their source works on
        self.gated: set[int] = set()
        self.lost = np.zeros(NUM_SLOTS, np.bool_)
        self.desk = PlacementDesk(3, 1)
        for rank in range(3):
            self._born(rank)
        self.desk.start({rank: rank + 1 for rank in range(3)})

    def _born(self, rank: int) -> int:
        self.lives += 1
        self.copies[rank] = np.full(NUM_SLOTS, -1, np.int64)
        if not self.writes.any():
            self.copies[rank][:] = 0
        return self.lives

    @rule(start=st.integers(0, NUM_SLOTS - 1), count=st.integers(1, NUM_SLOTS))
    def write(self, start: int, count: int) -> None:
        """Who owns a slot, and has not stopped serving it, writes it and its copies."""
        desk = self.desk
        slots = np.arange(start, min(start + count, NUM_SLOTS))
        alive = np.isin(desk.owner[slots], list(desk.alive))
        slots = slots[alive]
        for number in self.gated & set(desk.orders):
            slots = np.setdiff1d(slots, desk.orders[number].slots)
        self.writes[slots] += 1
        for rank, copy in self.copies.items():
            held = slots[(desk.owner[slots] == rank) | (desk.backup[slots] == rank)]
            copy[held] = self.writes[held]
        for number, order in self.begun.items():
            if number in desk.orders and order.kind is OrderKind.FILL:
                filling = np.intersect1d(slots, order.slots)
                self.copies[order.target][filling] = self.writes[filling]

    @precondition(lambda self: self.desk.orders)
    @rule(data=st.data())
    def begin(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(self.desk.orders)))
        order = self.desk.orders[number]
        self.begun[number] = order
        if order.kind is OrderKind.GIVE:
            self.gated.add(number)
        else:
            source = self.copies[order.source][order.slots]
            self.copies[order.target][order.slots] = source

    @precondition(lambda self: set(self.begun) & set(self.desk.orders))
    @rule(data=st.data())
    def end(self, data: st.DataObject) -> None:
        number = data.draw(st.sampled_from(sorted(set(self.begun) & set(self.desk.orders))))
        order = self.begun[number]
        assert self.desk.done(number, order.source, self.desk.alive[order.source])

    @precondition(lambda self: self.desk.alive)
    @rule(data=st.data())
    def die(self, data: st.DataObject) -> None:
        rank = data.draw(st.sampled_from(sorted(self.desk.alive)))
        bare = (self.desk.owner == rank) & (self.desk.backup == NOBODY)
        is_covered = self.desk.covers(rank)
        gone = self.desk.died(rank)
        assert is_covered == (gone.size == 0)
        np.testing.assert_array_equal(gone, np.flatnonzero(bare))
        del self.copies[rank]

    @rule(rank=st.integers(0, 4))
    def join(self, rank: int) -> None:
        was_lost = self.desk.lost & (self.desk.owner == rank)
        self.desk.joined(rank, self._born(rank))
        self.copies[rank][was_lost] = 0  # it begins anew
        self.writes[was_lost] = 0
        if rank in self.desk.alive:
            again = (self.desk.owner == rank) & (self.copies[rank] < 0)
            self.copies[rank][again] = 0
            self.writes[again] = 0

    @rule(servers=st.integers(1, 5))
    def scale(self, servers: int) -> None:
        self.desk.scale(servers)

    @rule()
    def restart_the_scheduler(self) -> None:
        desk = PlacementDesk(1)
        desk.restore(self.desk.state())
        self.desk = desk

    @invariant()
    def owners_and_backups_have_every_write(self) -> None:
        desk = self.desk
        desk.validate()
        for rank in desk.alive:
            for ranks in (desk.owner, desk.backup):
                held = ranks == rank
                np.testing.assert_array_equal(self.copies[rank][held], self.writes[held])

    def teardown(self) -> None:
        """Left alone, the cluster comes to rest as it is wanted."""
        desk = settled(self.desk)
        wanted = desk.wanted()
        if not wanted or desk.lost.any():
            return
        owners = np.bincount(desk.owner, minlength=max(wanted) + 1)
        assert set(np.flatnonzero(owners)) == set(wanted)
        assert owners[wanted].max() - owners[wanted].min() <= 1
        has_backups = desk.replicas and len(wanted) > 1
        assert ((desk.backup != NOBODY) == bool(has_backups)).all()
        assert set(desk.released()) == set(desk.alive) - set(wanted)


ClusterMachine.TestCase.settings = settings(max_examples=60, stateful_step_count=40)
TestClusterMachine = ClusterMachine.TestCase
