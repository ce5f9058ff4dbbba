"""The hash index against a dict."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv.kernels import hash as kernels
from kv.kernels.jit import frozen
from kv.placement import NUM_SLOTS, mix64, slot_of
from kv.store.index import LEAST, Index

LAST = 2**64 - 1
few_keys = st.one_of(st.integers(0, 40), st.integers(LAST - 40, LAST))
key_sets = st.sets(few_keys, max_size=60)


def as_array(keys: set[int]) -> np.ndarray:
    return frozen(np.array(sorted(keys), np.uint64))


def add(index: Index, keys: np.ndarray, first: int) -> int:
    """Give the keys without a row the rows first, first + 1, …; returns how many."""
    rows, absent = index.find(keys)
    index.make_room(absent)
    index.add(keys, rows, np.arange(first, first + absent))
    return absent


@given(st.lists(st.tuples(st.booleans(), key_sets), max_size=12), st.integers(0, 3))
def test_the_index_agrees_with_a_dict(work: list[tuple[bool, set[int]]], seed: int) -> None:
    index, model, next_row = Index(seed=seed), dict[int, int](), 0
    for is_insert, chosen in work:
        keys = as_array(chosen)
        if is_insert:
            fresh = [key for key in keys.tolist() if key not in model]
            model.update((key, next_row + i) for i, key in enumerate(fresh))
            next_row += add(index, keys, next_row)
        else:
            removed = index.remove(keys)
            assert removed.tolist() == [model.pop(key, -1) for key in keys.tolist()]
        index.validate()

    everything = as_array(set(range(45)) | set(range(LAST - 44, LAST + 1)))
    rows, absent = index.find(everything)
    assert rows.tolist() == [model.get(key, -1) for key in everything.tolist()]
    assert absent == len(everything) - len(model) == len(everything) - len(index)


def test_a_deleted_run_that_wraps_round_the_end_keeps_its_keys() -> None:
    seed = np.uint64(3)
    candidates = np.arange(200_000, dtype=np.uint64)
    homes = mix64(candidates ^ seed) & np.uint64(LEAST - 1)
    crowd = candidates[homes == LEAST - 2][:12]  # one run over the table's end
    index = Index(seed=3)
    add(index, frozen(crowd), 0)

    for gone in range(12):
        index.remove(frozen(crowd[gone : gone + 1]))
        index.validate()
        rows, absent = index.find(frozen(crowd))
        assert absent == gone + 1
        assert rows.tolist() == [-1] * (gone + 1) + list(range(gone + 1, 12))


def test_the_index_grows_and_keeps_every_key() -> None:
    rng = np.random.default_rng(0)
    keys = np.unique(rng.integers(0, LAST, 50_000, dtype=np.uint64, endpoint=True))
    rng.shuffle(keys)
    index = Index()

    for start in range(0, keys.size, 777):
        add(index, frozen(keys[start : start + 777]), start)
    index.validate()

    rows, absent = index.find(frozen(keys))
    assert absent == 0
    np.testing.assert_array_equal(rows, np.arange(keys.size))


def test_keys_of_one_slot_do_not_crowd_the_index() -> None:
    keys = np.arange(4_000_000, dtype=np.uint64)
    keys = keys[slot_of(keys) == NUM_SLOTS - 1]
    index = Index(capacity=keys.size)
    add(index, frozen(keys), 0)

    taken = index.entries.reshape(-1, 2)[:, 1] != 0
    ends = np.flatnonzero(~np.append(taken, False))
    longest = int(np.diff(np.concatenate([[-1], ends])).max()) - 1
    assert longest < 100, "a run of entries means that homes follow the slot's bits"


@pytest.mark.parametrize("key", [0, 1, LAST])
def test_compiled_and_plain_look_up_agree(key: int) -> None:
    keys = frozen(np.array([key, 12345], np.uint64))
    index = Index(seed=9)
    add(index, keys[:1], 4)
    plain = np.empty(2, np.int64)

    with np.errstate(over="ignore"):
        absent = kernels.lookup.py_func(index.entries, index.seed, keys, plain)

    rows, expected = index.find(keys)
    assert (absent, plain.tolist()) == (expected, rows.tolist()) == (1, [4, -1])


@given(st.integers(0, LAST))
def test_mix64_is_the_same_everywhere(key: int) -> None:
    array = np.array([key], np.uint64)

    with np.errstate(over="ignore"):
        plain = int(kernels.mix64.py_func(np.uint64(key)))

    assert kernels.mix64(np.uint64(key)) == plain == int(mix64(array)[0])
