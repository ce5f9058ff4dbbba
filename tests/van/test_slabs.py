"""Regions of shared memory: never two in one place, none lost."""

from __future__ import annotations

import gc

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st

from van.shared_memory import SlabPool
from van.slabs import Place, Slab, Slabs

MIB = 1 << 20


@settings(max_examples=100, deadline=None, derandomize=True)
@given(st.lists(st.integers(0, 900) | st.none(), max_size=60), st.randoms(use_true_random=False))
def test_regions_of_a_slab_never_overlap(steps, chance) -> None:
    slab, taken = Slab(4096), {}
    for nbytes in steps:
        if nbytes is None and taken:
            gone = chance.choice(sorted(taken))
            del taken[gone]
            slab.give_back(gone)
        elif nbytes is not None:
            chosen = slab.take(nbytes)
            if chosen is not None:
                assert chosen % 64 == 0
                assert all(
                    chosen + nbytes <= other or other + size <= chosen
                    for other, size in taken.items()
                )
                taken[chosen] = nbytes
        slab.validate()


def test_a_slab_that_is_empty_again_has_room_for_all() -> None:
    slab = Slab(1024)
    places = [slab.take(100) for _ in range(8)]

    for place in places[::2] + places[1::2]:
        slab.give_back(place)

    slab.validate()
    assert slab.take(1024) == 0


def test_slabs_keep_to_their_budget_and_drop_what_nobody_uses() -> None:
    slabs = Slabs(budget=8 * MIB, least=MIB)
    assert slabs.growth(100) == MIB
    slabs.add(MIB)
    place = slabs.take(MIB)
    assert slabs.growth(8 * MIB) == 0  # the first is in use
    assert slabs.dropped == []

    slabs.give_back(place)

    assert slabs.growth(8 * MIB) == 8 * MIB
    assert slabs.dropped == [0]
    slabs.validate()


def test_a_region_with_two_users_is_free_after_the_second() -> None:
    slabs = Slabs(budget=MIB)
    slabs.add(slabs.growth(100))
    place = slabs.take(100)
    slabs.use(place)

    assert slabs.give_back(place)
    assert slabs.taken == 1
    assert slabs.give_back(place)
    assert slabs.taken == 0
    assert not slabs.give_back(place)
    assert not slabs.give_back(Place(7, 0))


def test_an_array_of_the_pool_is_found_until_its_last_view_is_gone() -> None:
    pool = SlabPool(8 * MIB)
    raw = pool.empty(100_000)
    array = raw.view(np.float32).reshape(-1, 5)
    del raw

    place = pool.find(array)
    part = pool.find(array[1:])
    pool.give_back(place)

    assert place is not None
    assert part is None  # it does not begin the region
    assert pool.taken == 1
    del array
    gc.collect()
    assert pool.taken == 0
    pool.close()


def test_a_pool_without_budget_gives_nothing() -> None:
    pool = SlabPool(0)

    assert pool.empty(100) is None
    assert pool.copy_in(np.ones(3)) is None
