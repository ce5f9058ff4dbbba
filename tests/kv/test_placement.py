"""Slots, slot maps, and requests split by server."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from hypothesis.extra.numpy import arrays

from kv.errors import KVError
from kv.kernels.jit import frozen
from kv.kernels.slots import group_by_owner, slots_of
from kv.placement import NOBODY, NUM_SLOTS, SlotMap, mix64, slot_of
from kv.routing import split

LAST = 2**64 - 1
key_arrays = arrays(np.uint64, st.integers(0, 100), elements=st.integers(0, LAST))
owners = arrays(np.uint16, NUM_SLOTS, elements=st.integers(0, 9))


@given(key_arrays)
def test_the_kernel_and_numpy_agree_on_slots(keys: np.ndarray) -> None:
    slots = np.empty(keys.size, np.uint16)

    slots_of(frozen(keys), slots)

    np.testing.assert_array_equal(slots, slot_of(keys))
    assert (slots < NUM_SLOTS).all()


def test_known_slots_never_change() -> None:
    keys = np.array([0, 1, 2, 3, 2**63, LAST], np.uint64)

    assert slot_of(keys).tolist() == [0, 346, 879, 121, 151, 723]


def test_mix64_is_the_published_finaliser() -> None:
    golden = np.array([0x9E3779B97F4A7C15], np.uint64)

    assert int(mix64(golden)[0]) == 0xE220A8397B1DCDAF  # splitmix64's first output from seed 0


@pytest.mark.parametrize("servers", [1, 2, 3, 7, 8, 16, 1000, NUM_SLOTS])
def test_slots_are_shared_evenly_among_any_number_of_servers(servers: int) -> None:
    counts = np.bincount(SlotMap.even(servers).owner)

    assert counts.size == servers
    assert counts.max() - counts.min() <= 1


@pytest.mark.parametrize("servers", [2, 4, 16])
def test_consecutive_small_ids_spread_over_servers(servers: int) -> None:
    owner = SlotMap.even(servers).owner_of(np.arange(16_000, dtype=np.uint64))

    counts = np.bincount(owner, minlength=servers)
    assert counts.min() > 0.85 * 16_000 / servers


@given(key_arrays, owners)
def test_each_key_goes_to_its_owner_once_and_in_order(keys: np.ndarray, owner: np.ndarray) -> None:
    slots = SlotMap(0, owner)

    order, counts = split(slots, keys, 10)

    expected = slots.owner_of(keys)
    assert sorted(order.tolist()) == list(range(keys.size))
    np.testing.assert_array_equal(counts, np.bincount(expected, minlength=10))
    np.testing.assert_array_equal(order, np.argsort(expected, kind="stable"))


@given(key_arrays, owners)
def test_plain_and_compiled_grouping_agree(keys: np.ndarray, owner: np.ndarray) -> None:
    order, counts = split(SlotMap(0, owner), keys, 10)
    plain_order, plain_counts = np.empty_like(order), np.empty_like(counts)

    with np.errstate(over="ignore"):
        group_by_owner.py_func(
            keys,
            owner,
            np.empty(keys.size, np.uint16),
            plain_counts,
            np.empty(10, int),
            plain_order,
        )

    np.testing.assert_array_equal(plain_order, order)
    np.testing.assert_array_equal(plain_counts, counts)


def test_one_server_gets_all_keys_in_their_order() -> None:
    order, counts = split(SlotMap.even(1), np.array([5, 0, LAST], np.uint64))

    assert (order.tolist(), counts.tolist()) == ([0, 1, 2], [3])


def test_a_map_for_more_servers_than_asked_for_is_refused() -> None:
    with pytest.raises(KVError, match="asked for 2"):
        split(SlotMap.even(3), np.zeros(1, np.uint64), 2)


@given(owners, owners, st.integers(0, 2**63))
def test_a_slot_map_survives_travelling(
    owner: np.ndarray, backup: np.ndarray, version: int
) -> None:
    slots = SlotMap(version, owner, np.where(backup == owner, NOBODY, backup))

    arrived = SlotMap.from_bytes(slots.to_bytes())

    assert arrived == slots
    assert hash(arrived) == hash(slots)
    assert arrived.num_servers == int(owner.max()) + 1


@pytest.mark.parametrize("blob", [b"", b"SLOT", SlotMap.even(2).to_bytes()[:-1], bytes(2064)])
def test_other_bytes_are_no_slot_map(blob: bytes) -> None:
    with pytest.raises(KVError, match="slot map"):
        SlotMap.from_bytes(blob)


@pytest.mark.parametrize("servers", [0, NUM_SLOTS + 1])
def test_servers_without_a_slot_are_refused(servers: int) -> None:
    with pytest.raises(KVError, match="1 to 1024 servers"):
        SlotMap.even(servers)


def test_owners_cannot_be_changed_behind_a_maps_back() -> None:
    owner = np.zeros(NUM_SLOTS, np.uint16)
    slots = SlotMap(0, owner)

    owner[:] = 9

    assert slots.num_servers == 1
    with pytest.raises(ValueError, match="read-only"):
        slots.owner[0] = 1


def test_definitions_and_placement_load_no_numba() -> None:
    modules = "kv.placement, kv.optimizers, kv.initializers, kv.spec"
    code = f"import sys, {modules}; print('numba' in sys.modules)"

    result = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=True
    )

    assert result.stdout.strip() == "False"
