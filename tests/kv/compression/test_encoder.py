"""What a sender keeps: no part of a gradient is sent twice, none is lost unless it is counted."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from kv.compression import packets
from kv.compression.bases import Base
from kv.compression.coding import NAMED, OUTRIGHT, WHOLE, decode
from kv.compression.encoder import Coded, Encoder
from kv.compression.kept import KeptBlocks, KeptRows, capacity_of
from kv.compression.schemes import Chain
from kv.errors import UnknownBaseError
from tests.kv.compression.values import SEEDS, floats

KEYS = 80
ROOM = 1 << 20
CHAINS = [
    "fp16",
    "int8",
    "onebit",
    "topk:0.2",
    "topk:0.2:rows=1",
    "selective:relative=0.9+topk:0.3+bf16",
    "delta+int8",
    "selective:relative=0.9+delta+topk:0.3+fp16",
]
HOW = st.sampled_from([NAMED, OUTRIGHT, WHOLE])


def some_keys(rng: np.random.Generator) -> np.ndarray:
    count = int(rng.integers(0, KEYS // 2))
    return np.sort(rng.choice(KEYS, count, replace=False)).astype(np.uint64)


def gradients(rng: np.random.Generator, keys: np.ndarray, dim: int) -> np.ndarray:
    return floats(keys.size * dim, "plain", int(rng.integers(2**32))).reshape(keys.size, dim)


class Receiver:
    """The other end: adds up what it gets, row by row."""

    def __init__(self, dim: int) -> None:
        self.dim, self.total, self.base = dim, np.zeros((KEYS, dim)), Base(dim, ROOM)

    def take(self, keys: np.ndarray, coded: Coded) -> None:
        names = coded.names(keys)
        if not coded.is_packed:
            self.add(names, coded.array)
            return
        found = decode(coded.array, names.size, self.dim)
        if found.head.flags & packets.DELTA:
            found = found.on(self.base, names)
        found = found.whole()
        self.add(names if found.kept is None else names[found.kept], found.values)

    def add(self, keys: np.ndarray, values: np.ndarray) -> None:
        self.total[keys.astype(np.int64)] += values


def residuals(kept: KeptRows, dim: int) -> np.ndarray:
    keys, values = kept.items()
    found = np.zeros((KEYS, dim))
    found[keys.astype(np.int64)] = values
    return found


def encoder_of(text: str, dim: int, limit: int = ROOM) -> tuple[Encoder, KeptRows]:
    kept = KeptRows("user", dim, limit)
    return Encoder(Chain.parse(text), dim, kept, memory=limit), kept


@settings(max_examples=25)
@pytest.mark.parametrize("text", CHAINS)
@given(st.integers(1, 9), st.sampled_from([1, 3, 8]), SEEDS, HOW)
def test_what_arrives_and_what_is_kept_is_what_was_pushed(
    text: str, pushes: int, dim: int, seed: int, absent: str
) -> None:
    rng = np.random.default_rng(seed)
    encoder, kept = encoder_of(text, dim)
    receiver, pushed = Receiver(dim), np.zeros((KEYS, dim))

    for _ in range(pushes):
        keys = some_keys(rng)
        grads = gradients(rng, keys, dim)
        before = grads.copy()
        coded = encoder.encode(keys, grads, absent)
        np.testing.assert_array_equal(grads, before)
        receiver.take(keys, coded)
        pushed[keys.astype(np.int64)] += grads

    kept.validate()
    np.testing.assert_allclose(receiver.total + residuals(kept, dim), pushed, atol=1e-5)
    assert encoder.counts.messages == pushes


@pytest.mark.parametrize("text", CHAINS)
@given(SEEDS, HOW)
@settings(max_examples=15)
def test_a_push_that_failed_has_left_nothing(text: str, seed: int, absent: str) -> None:
    rng = np.random.default_rng(seed)
    encoder, kept = encoder_of(text, 4)
    keys = some_keys(rng)
    encoder.encode(keys, gradients(rng, keys, 4), absent)
    grads = gradients(rng, keys, 4)

    coded = encoder.encode(keys, grads, absent)
    encoder.encode(keys, np.zeros_like(grads), absent)  # others go on meanwhile
    between = residuals(kept, 4)
    encoder.give_back(keys, grads, coded)

    which, sent = coded.plain()
    whole = np.zeros((keys.size, 4))
    whole[slice(None) if which is None else which] = sent
    expected = between
    expected[keys.astype(np.int64)] += whole - grads
    np.testing.assert_allclose(residuals(kept, 4), expected, atol=1e-5)
    assert encoder.counts.returned == 1


def test_a_failed_push_is_undone_to_the_rounding() -> None:
    encoder, kept = encoder_of("topk:0.3+fp16", 8)
    keys = np.arange(40, dtype=np.uint64)
    encoder.encode(keys, floats(320, "plain", 1).reshape(40, 8))
    before, grads = residuals(kept, 8), floats(320, "plain", 2).reshape(40, 8)

    encoder.give_back(keys, grads, encoder.encode(keys, grads))

    np.testing.assert_allclose(residuals(kept, 8), before, atol=1e-6)


def test_a_residual_waits_for_its_key() -> None:
    encoder, kept = encoder_of("topk:0.5:rows=1", 64)
    ones, two_and_three = np.ones((2, 64), np.float32), np.array([2, 3], np.uint64)
    encoder.encode(
        np.array([1, 2], np.uint64), (ones * [[1], [2]]).astype(np.float32)
    )  # 2 is sent, 1 is kept
    assert residuals(kept, 64)[1].tolist() == [1] * 64

    other = encoder.encode(two_and_three, ones, OUTRIGHT)
    coded = encoder.encode(np.array([1], np.uint64), ones[:1] / 4, OUTRIGHT)

    assert 1 not in other.names(two_and_three)
    which, values = coded.plain()
    assert which is None
    assert values.tolist() == [[1.25] * 64]
    assert not residuals(kept, 64)[1].any()


@pytest.mark.parametrize(("text", "rows"), [("fp16", 1), ("topk:0.99", 80), ("topk:1", 70)])
def test_a_message_that_would_become_larger_goes_as_it_is(text: str, rows: int) -> None:
    encoder, kept = encoder_of(text, 2)
    keys, grads = np.arange(rows, dtype=np.uint64), floats(2 * rows, "plain", 1).reshape(-1, 2)

    coded = encoder.encode(keys, grads)

    assert not coded.is_packed
    np.testing.assert_array_equal(coded.array, grads)
    assert encoder.counts.skipped == 1
    assert encoder.counts.nbytes == encoder.counts.plain_nbytes == 8 * rows
    assert not residuals(kept, 2).any()


def test_a_message_that_goes_as_it_is_takes_what_was_kept_along_unless_it_is_tiny() -> None:
    encoder, kept = encoder_of("selective:relative=0.9", 16)
    keys, grads = np.arange(40, dtype=np.uint64), floats(640, "plain", 1).reshape(40, 16)
    encoder.encode(keys, grads)
    before = residuals(kept, 16)
    (left,) = np.nonzero(before.any(axis=1))

    tiny = encoder.encode(left[:1].astype(np.uint64), np.ones((1, 16), np.float32))
    all_alike = encoder.encode(left.astype(np.uint64), 9 - before[left].astype(np.float32))

    assert not tiny.is_packed
    assert tiny.array.tolist() == [[1] * 16]
    assert not all_alike.is_packed
    np.testing.assert_allclose(all_alike.array, 9, rtol=1e-6)
    assert not residuals(kept, 16).any()


def test_an_empty_message_goes_as_it_is() -> None:
    for text in CHAINS:
        encoder, _ = encoder_of(text, 8)
        coded = encoder.encode(np.empty(0, np.uint64), np.empty((0, 8), np.float32))
        assert coded.array.shape == (0, 8)


def test_gradients_beyond_float32_are_brought_back_into_it() -> None:
    encoder, kept = encoder_of("topk:0.1", 8)
    keys, greatest = np.arange(4, dtype=np.uint64), np.finfo(np.float32).max
    large = np.full((4, 8), greatest, np.float32)

    for _ in range(5):
        _, values = encoder.encode(keys, large).plain()
        assert np.isfinite(values).all()
    assert np.isfinite(residuals(kept, 8)).all()


def test_dense_blocks_keep_residuals_by_number() -> None:
    kept = KeptBlocks(3, 16)
    encoder = Encoder(Chain.parse("topk:0.1"), 16, kept, by_row=True)
    blocks, grads = np.array([0, 2], np.uint64), floats(32, "plain", 3).reshape(2, 16)

    which, values = encoder.encode(blocks, grads).plain()

    assert which is None
    np.testing.assert_array_equal(values + kept.data[[0, 2]], grads)
    assert not kept.data[1].any()


# -- memory that is full ------------------------------------------------------------------------


def test_what_was_touched_longest_ago_goes_first_and_is_counted() -> None:
    room = 40
    limit = next(n for n in range(0, 1 << 20, 64) if capacity_of(32, n) >= room)
    encoder, kept = encoder_of("topk:0.001", 32, limit)
    room = kept.capacity
    old, new = np.arange(room // 2), np.arange(1000, 1000 + room - room // 2)
    for keys in (old, new):
        names = keys.astype(np.uint64)
        encoder.encode(names, np.ones((keys.size, 32), np.float32))
    assert kept.losses.rows == 0

    encoder.encode(np.array([5000, 5001], np.uint64), np.ones((2, 32), np.float32))

    kept.validate()
    left = set(kept.items()[0].tolist())
    assert {*new.tolist(), 5000, 5001} <= left
    gone = set(old.tolist()) - left
    assert len(gone) == kept.losses.rows >= 2
    # One number of each message was sent, and perhaps it is among those that are gone.
    assert 32 * len(gone) - 1 <= kept.losses.magnitude <= 32 * len(gone)


@settings(max_examples=30)
@given(st.integers(0, 60), SEEDS)
def test_memory_stays_within_its_limit_and_nothing_is_lost_unseen(room: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    limit = room * 60
    encoder, kept = encoder_of("topk:0.2:rows=1", 2, limit)
    receiver, pushed = Receiver(2), np.zeros((KEYS, 2))
    for _ in range(6):
        keys = some_keys(rng)
        grads = np.ones((keys.size, 2), np.float32)
        receiver.take(keys, encoder.encode(keys, grads))
        pushed[keys.astype(np.int64)] += grads

        kept.validate()
        assert kept.in_use <= kept.capacity == capacity_of(2, limit)
        assert kept.nbytes <= max(limit, 2000)

    missing = (pushed - receiver.total - residuals(kept, 2)).sum()
    assert missing == pytest.approx(kept.losses.magnitude, abs=1e-4)


# -- differences --------------------------------------------------------------------------------


class Stream:
    """A sender and a receiver of differences, and messages between them."""

    def __init__(self, limit: int = ROOM) -> None:
        self.encoder, self.kept = encoder_of("delta+int8", 4, limit)
        self.receiver, self.pushed = Receiver(4), np.zeros((KEYS, 4))

    def push(self, rng: np.random.Generator) -> Callable[[], None]:
        """Encode a push; what delivers it, and sends it anew where its base is not known."""
        keys = some_keys(rng)
        grads = gradients(rng, keys, 4)
        coded = self.encoder.encode(keys, grads)
        self.pushed[keys.astype(np.int64)] += grads

        def deliver() -> None:
            try:
                self.receiver.take(keys, coded)
            except UnknownBaseError:
                self.encoder.restart(coded)
                which, values = coded.plain()
                self.receiver.add(keys if which is None else keys[which], values)

        return deliver


@settings(max_examples=40)
@given(SEEDS, st.lists(st.integers(0, 3), max_size=20))
def test_differences_survive_any_order_of_messages_and_a_receiver_that_forgets(
    seed: int, events: list[int]
) -> None:
    rng, stream = np.random.default_rng(seed), Stream()
    waiting: list[Callable[[], None]] = []
    for event in events:
        if event == 0 and waiting:
            waiting.pop(int(rng.integers(len(waiting))))()
        elif event == 1:
            stream.receiver.base = Base(4, ROOM)
        else:
            waiting.append(stream.push(rng))
    for deliver in waiting:
        deliver()

    arrived = stream.receiver.total + residuals(stream.kept, 4)
    np.testing.assert_allclose(arrived, stream.pushed, atol=1e-5)


def test_both_ends_hold_the_same_last_updates() -> None:
    rng, stream = np.random.default_rng(3), Stream()
    for _ in range(10):
        stream.push(rng)()

    mine, yours = stream.encoder._bases[0], stream.receiver.base
    keys = np.arange(KEYS, dtype=np.uint64)
    assert (mine.run, mine.place) == (yours.run, yours.place)
    assert stream.encoder.counts.restarted == 0
    np.testing.assert_array_equal(mine.find(keys) >= 0, yours.find(keys) >= 0)
    for key in keys[mine.find(keys) >= 0]:
        one, other = (end.data[end.find(np.array([key]))[0]] for end in (mine, yours))
        np.testing.assert_array_equal(one, other)


def test_updates_that_hardly_change_lose_little_as_differences() -> None:
    keys = np.arange(50, dtype=np.uint64)
    steady = floats(200, "plain", 1).reshape(50, 4)
    errors = {}
    for text in ("int8", "delta+int8"):
        encoder, _ = encoder_of(text, 4)
        for place in range(6):
            grads = steady + np.float32(0.001) * floats(200, "plain", place).reshape(50, 4)
            values = encoder.encode(keys, grads).plain()[1]
        errors[text] = float(np.abs(values - grads).max())

    assert errors["delta+int8"] < errors["int8"] / 20


def test_a_stream_whose_memory_is_full_begins_anew() -> None:
    limit = next(n for n in range(0, 1 << 20, 64) if capacity_of(4, n) >= 45)
    rng, stream = np.random.default_rng(5), Stream(limit)
    stream.kept = KeptRows("user", 4, ROOM)
    stream.encoder.kept = stream.kept
    stream.receiver.base = Base(4, limit)
    for _ in range(30):
        stream.push(rng)()

    assert stream.encoder._bases[0].run > 0
    assert stream.encoder.counts.restarted == 0
    np.testing.assert_allclose(
        stream.receiver.total + residuals(stream.kept, 4), stream.pushed, atol=1e-5
    )


def test_a_base_that_is_not_known_is_named() -> None:
    base = Base(4, ROOM)

    with pytest.raises(UnknownBaseError, match="number 3 of run 7 is not known here"):
        base.expect(7, 3)
