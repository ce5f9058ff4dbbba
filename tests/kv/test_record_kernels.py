"""Records, tiers and sighting counters, each kernel against NumPy or a dict."""

from __future__ import annotations

import collections
import math

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv.kernels import bloom, records, tiers
from kv.kernels.jit import frozen
from kv.kernels.records import HALF, SECONDS, USE, VERSION
from kv.store.numbers import Numbers

SIZE = 30
some = {"n": st.integers(0, SIZE), "seed": st.integers(0, 99)}


def random_records(seed: int, width: int = 3) -> tuple[np.random.Generator, np.ndarray]:
    """SIZE records, a third of them free, seen in the seconds 0 to 99."""
    rng = np.random.default_rng(seed)
    made = rng.integers(0, 2**63, (SIZE, width), np.uint64)
    made[:, VERSION] = rng.integers(0, 3, SIZE)
    shows = rng.integers(0, 2000, SIZE, np.uint64)
    made[:, USE] = shows << HALF | rng.integers(0, 100, SIZE, np.uint64)
    return rng, made


def shows_of(made: np.ndarray) -> np.ndarray:
    return made[:, USE] >> HALF


@given(**some, rate=st.sampled_from([0.0, 0.01, 2.0]), version=st.sampled_from([0, 9]))
def test_rows_that_are_seen_remember_it(n: int, seed: int, rate: float, version: int) -> None:
    rng, made = random_records(seed)
    rows = rng.permutation(SIZE)[:n]
    expected = made.copy()
    for row in rows.tolist():
        shows, seen = int(made[row, USE] >> HALF), int(made[row, USE] & SECONDS)
        shows = int(shows * math.exp(-rate * max(60 - seen, 0))) + 256
        expected[row, USE] = shows << 32 | 60
        expected[row, VERSION] = version or made[row, VERSION]

    records.see(made, rows, version, 256, 60, rate)

    np.testing.assert_array_equal(made, expected)


def test_shows_stay_at_their_greatest() -> None:
    made = np.array([[1, 1, (2**32 - 10) << 32 | 5]], np.uint64)
    row = np.zeros(1, np.int64)

    records.see(made, row, 0, 256, 7, 0.0)
    assert made[0, USE] == np.uint64(2**32 - 1) << HALF | np.uint64(7)

    records.add_shows(made, row, frozen(np.array([3e38], np.float32)))
    assert made[0, USE] == np.uint64(2**32 - 1) << HALF | np.uint64(7)


@given(**some)
def test_given_shows_are_added_in_256ths(n: int, seed: int) -> None:
    rng, made = random_records(seed)
    rows = rng.permutation(SIZE)[:n]
    given_shows = rng.uniform(0, 5, n).astype(np.float32)
    expected = shows_of(made)
    expected[rows] += (given_shows.astype(np.float64) * 256).astype(np.uint64)
    seen = made[:, USE] & SECONDS

    records.add_shows(made, rows, frozen(given_shows))

    np.testing.assert_array_equal(shows_of(made), expected)
    np.testing.assert_array_equal(made[:, USE] & SECONDS, seen)


@given(**some)
def test_fresh_records_have_a_version_and_were_seen_now(n: int, seed: int) -> None:
    rng, made = random_records(seed)
    rows = rng.permutation(SIZE)[:n]
    expected = made.copy()
    expected[rows, 1:] = 5, 77

    records.begin(made, rows, 5, 77)

    np.testing.assert_array_equal(made, expected)


@given(
    **some,
    width=st.sampled_from([3, 7]),
    rate=st.sampled_from([0.0, 0.03]),
    least=st.sampled_from([2.0, math.inf]),
)
def test_rows_expire_that_are_old_and_little_shown(
    n: int, seed: int, width: int, rate: float, least: float
) -> None:
    _, made = random_records(seed, width)
    seen = (made[:, USE] & SECONDS).astype(np.int64)
    score = shows_of(made) / 256 * np.exp(-rate * np.maximum(80 - seen, 0))
    goes = (made[:, VERSION] != 0) & (seen < 50) & (score < least)
    found = np.empty(SIZE, np.int64)

    count = records.expired(made, n // 2, n, 50, rate, 80, least, found)

    np.testing.assert_array_equal(found[:count], n // 2 + np.flatnonzero(goes[n // 2 : n]))


@given(**some, stride=st.integers(1, 70))
def test_rows_come_back_from_disk_as_they_went(n: int, seed: int, stride: int) -> None:
    rng, made = random_records(seed)
    data = rng.integers(0, 2**32, (SIZE, stride), np.uint32)
    disk = np.zeros((SIZE, (6 + stride + 1) // 2 * 2), np.uint32)
    rows, slots, new = (rng.permutation(SIZE)[:n] for _ in range(3))
    old_data, old_records = data[rows], made[rows]

    tiers.spill(data, made.view(np.uint32), rows, disk, slots)
    np.testing.assert_array_equal(disk.view(np.uint64)[slots, :3], old_records)
    tiers.fetch(data, made.view(np.uint32), new, disk, slots)

    np.testing.assert_array_equal(data[new], old_data)
    np.testing.assert_array_equal(made[new], old_records)
    assert not disk.view(np.uint64)[slots, 1].any(), "records on disk are free"


@given(st.lists(st.integers(-3, SIZE - 1), max_size=9))
def test_only_rows_in_memory_are_marked(rows: list[int]) -> None:
    marks = np.ones(SIZE, np.uint8)

    tiers.mark(marks, np.array(rows, np.int64), tiers.USED)

    expected = np.isin(np.arange(SIZE), rows)
    np.testing.assert_array_equal(marks, np.where(expected, tiers.USED, tiers.IDLE))


def clock_in_python(
    marks: list[int], versions: list[int], top: int, hand: int, wanted: int
) -> list[int]:
    """The rows that CLOCK lets go."""
    found: list[int] = []
    for step in range(3 * top):
        place = (hand + step) % top
        if len(found) == wanted:
            break
        if marks[place] == tiers.USED:
            marks[place] = tiers.IDLE
        elif marks[place] == tiers.IDLE and versions[place]:
            marks[place] = tiers.PINNED
            found.append(place)
    return found


@given(**some, top=st.integers(0, SIZE), hand=st.integers(0, SIZE))
def test_the_clock_spares_pinned_rows_and_once_those_used(
    n: int, seed: int, top: int, hand: int
) -> None:
    rng, made = random_records(seed)
    marks = rng.integers(1, 4, SIZE).astype(np.uint8)
    plain = marks.tolist()
    start = hand if hand < top else 0
    expected = clock_in_python(plain, made[:, VERSION].tolist(), top, start, n)
    victims = np.empty(n, np.int64)

    found, stop = tiers.choose(marks, made, top, hand, victims)

    assert victims[:found].tolist() == expected
    assert marks.tolist() == plain
    assert stop <= max(top, hand)


@given(st.lists(st.sets(st.integers(0, 50)), max_size=20), st.sampled_from([64, 4096]))
def test_sightings_are_never_counted_too_low(batches: list[set[int]], size: int) -> None:
    counters, seen = np.zeros(size, np.uint8), collections.Counter[int]()
    for batch in batches:
        seen.update(batch)
        counts = np.empty(len(batch), np.uint8)
        bloom.sight(counters, np.uint64(3), frozen(np.array(sorted(batch), np.uint64)), counts)
        known = np.array([seen[key] for key in sorted(batch)])
        assert (counts >= known).all()
        if size == 4096:
            np.testing.assert_array_equal(counts, known)


def test_few_of_the_expected_keys_are_counted_too_high() -> None:
    counters = np.zeros(8 * 100_000, np.uint8)
    keys = np.arange(100_000, dtype=np.uint64)
    counts = np.empty(keys.size, np.uint8)

    bloom.sight(counters, np.uint64(1), frozen(keys), counts)

    assert (counts > 1).mean() < 0.03


def test_counters_stay_at_255_and_are_halved() -> None:
    counters, counts = np.zeros(64, np.uint8), np.empty(1, np.uint8)
    key = frozen(np.zeros(1, np.uint64))
    for _ in range(300):
        bloom.sight(counters, np.uint64(0), key, counts)
    assert counts[0] == 255

    bloom.halve(counters)
    bloom.sight(counters, np.uint64(0), key, counts)

    assert counts[0] == 128


def test_numbers_are_given_out_in_order_and_again() -> None:
    numbers = Numbers()
    assert numbers.take(0).size == 0
    assert numbers.take(5).tolist() == [0, 1, 2, 3, 4]
    numbers.give_back(np.array([1, 3]))
    numbers.give_back(np.array([4]))
    assert numbers.take(2).tolist() == [4, 3]
    assert sorted(numbers.take(3).tolist()) == [1, 5, 6]
    assert (numbers.top, numbers.in_use) == (7, 7)

    numbers.give_back(np.array([6, 2, 5]))
    numbers.cut(5)

    assert (numbers.top, numbers.free().tolist()) == (5, [2])
    numbers.validate()
    with pytest.raises(AssertionError, match="in use are cut off"):
        numbers.cut(4)
