"""Key lists that two sides remember: always the right keys, whatever either side has dropped."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, rule

from kv.errors import KeyListError, KVError, UnknownKeyListError
from kv.keylist import prepare
from kv.keylists.coding import encode
from kv.keylists.kept import LIST_OVERHEAD, KeptLists
from kv.keylists.merged import MergedLists
from kv.keylists.sent import SentLists
from kv.keylists.signature import part_of, signature_of
from kv.table_protocol import key_places
from van.message import Message, Meta

SERVER = 8


def ints(*values: int) -> np.ndarray:
    return np.array(values, np.uint64)


def request(signature: int, arrays: list, body: object = None, incarnation: int = 1) -> Message:
    return Message(Meta(sender=9, incarnation=incarnation, key_list=signature, body=body), arrays)


class TwoSides(RuleBasedStateMachine):
    """A worker that asks with lists by signature, and a server that forgets and is restarted.

    The worker's bound may be above the server's, so that it names what the server has dropped.
    """

    @initialize(worker=st.integers(0, 9), server=st.integers(0, 9), seed=st.integers(0, 2**64 - 1))
    def start(self, worker: int, server: int, seed: int) -> None:
        self.seed = seed
        self.sent = SentLists(worker * (LIST_OVERHEAD + 80))
        self.limit = server * (LIST_OVERHEAD + 80)
        self.kept = KeptLists(self.limit)
        self.server_life = self.worker_life = 1
        self.unknown = 0

    @rule(number=st.integers(0, 14), has_values=st.booleans(), tables=st.integers(1, 3))
    def ask(self, number: int, has_values: bool, tables: int) -> None:
        lists = [ints(*range(number, 2 * number + table)) for table in range(tables)]
        signature = signature_of(enumerate(lists), self.seed)
        values = np.arange(number, dtype=np.float32)
        whole: list[np.ndarray] = []
        for keys in lists:
            whole += [keys, values] if has_values else [keys]
        named = self.sent.knows(SERVER, self.server_life, signature)
        if not named:
            self.sent.sent(SERVER, self.server_life, signature, sum(k.nbytes for k in lists))
        message = self.message(signature, whole, has_values, named)
        try:
            self.kept.complete(message, [False] * tables, has_values)
        except UnknownKeyListError:
            assert named
            self.unknown += 1
            self.sent.lost(SERVER, signature)
            message = self.message(signature, whole, has_values, named=False)
            self.kept.complete(message, [False] * tables, has_values)
        self.kept.complete(message, [False] * tables, has_values)  # tried again, as held pulls are
        assert [a.tobytes() for a in message.arrays] == [a.tobytes() for a in whole]

    def message(self, signature: int, whole: list, has_values: bool, named: bool) -> Message:
        arrays = whole[1::2] if has_values else []
        body = {"named": True, "create": True} if named else {"create": True}
        return request(signature, arrays if named else list(whole), body, self.worker_life)

    @rule()
    def restart_the_server(self) -> None:
        self.server_life += 1
        self.kept = KeptLists(self.limit)

    @rule()
    def restart_the_server_unnoticed(self) -> None:
        self.kept = KeptLists(self.limit)

    @rule()
    def restart_the_worker(self) -> None:
        self.worker_life += 1

    @invariant()
    def both_sides_keep_their_bounds(self) -> None:
        if hasattr(self, "kept"):
            self.sent.validate()
            self.kept.validate()


TwoSides.TestCase.settings = settings(
    max_examples=60, stateful_step_count=30, deadline=None, derandomize=True
)
test_two_sides = TwoSides.TestCase


def test_repeated_lists_are_known_until_others_crowd_them_out() -> None:
    sent = SentLists(8 * (LIST_OVERHEAD + 100))  # seven fit

    for signature in range(1, 8):
        sent.sent(SERVER, 1, signature, 100)
    assert sent.knows(SERVER, 1, 1)
    sent.sent(SERVER, 1, 8, 100)

    assert [sent.knows(SERVER, 1, signature) for signature in (1, 2, 3, 8)] == [
        True,
        False,
        True,
        True,
    ]
    assert not sent.knows(SERVER, 2, 1)
    assert not sent.knows(10, 1, 1)


def test_a_life_of_a_sender_knows_its_own_lists_only() -> None:
    kept = KeptLists(1 << 20)
    kept.complete(request(5, [ints(1, 2)]), [False], False)
    other = request(5, [], {"named": True})
    other.meta.sender = 11

    for message in (other, request(5, [], {"named": True}, incarnation=2)):
        with pytest.raises(UnknownKeyListError, match="no key list 5"):
            kept.complete(message, [False], False)


def test_the_lists_of_a_sender_that_has_gone_are_dropped() -> None:
    kept = KeptLists(1 << 20)
    kept.complete(request(5, [ints(1, 2)]), [False], False)
    assert kept.nbytes(9) == LIST_OVERHEAD + 16

    kept.forget(9)

    assert kept.nbytes(9) == 0


def test_dense_tables_between_sparse_ones_have_no_keys() -> None:
    kept = KeptLists(1 << 20)
    dense = [True, False, True, False]
    blocks, values = np.ones((2, 4), np.float32), np.ones((1, 2), np.float32)
    a, b = ints(1), ints(2)
    kept.complete(request(5, [a, b]), dense, has_values=False)
    push = request(5, [blocks, values, blocks, values], {"named": True})

    kept.complete(push, dense, has_values=True)

    assert key_places(dense, has_values=True) == [1, 4]
    assert [x.tobytes() for x in push.arrays] == [
        x.tobytes() for x in (blocks, a, values, blocks, b, values)
    ]


def test_coded_lists_are_decoded_and_may_be_remembered() -> None:
    kept, keys = KeptLists(1 << 20), np.arange(100, dtype=np.uint64)
    message = request(5, [encode(keys)], {"coded": [0], "create": True})
    kept.complete(message, [False], False)
    named = request(5, [], {"named": True})
    kept.complete(named, [False], False)

    np.testing.assert_array_equal(message.arrays[0], keys)
    np.testing.assert_array_equal(named.arrays[0], keys)
    assert message.meta.body == {"create": True}


@pytest.mark.parametrize(
    ("arrays", "body"),
    [
        ([], {"coded": [0]}),
        ([np.zeros(30, np.uint8)], {"coded": [1]}),
        ([np.zeros(30, np.uint8)], {"coded": [0]}),
        ([np.zeros(30, np.uint8)], {"coded": [True]}),
        ([np.zeros(30, np.uint8)], {"coded": 0}),
        ([np.zeros(30, np.uint8)], {"coded": ["0"]}),
    ],
)
def test_bodies_that_make_no_sense_are_refused(arrays: list, body: dict) -> None:
    with pytest.raises(KVError):
        KeptLists(1 << 20).complete(request(5, arrays, body), [False], False)


def test_a_named_request_about_more_tables_than_its_lists_is_refused() -> None:
    kept = KeptLists(1 << 20)
    kept.complete(request(5, [ints(1, 2)]), [False], False)

    with pytest.raises(KVError, match="2 sparse tables names key lists of 1"):
        kept.complete(request(5, [], {"named": True}), [False, False], False)


@pytest.mark.parametrize("body", [None, {}, 5, [1]])
def test_other_bodies_are_left_alone(body: object) -> None:
    message = request(0, [ints(3)], body)

    KeptLists(1 << 20).complete(message, [False], False)

    assert message.arrays[0].tolist() == [3]


def test_signatures_tell_tables_lists_and_pieces_apart() -> None:
    a, b = ints(1, 2), ints(3)
    found = [
        signature_of(lists, seed)
        for seed in (1, 2)
        for lists in ([(7, a)], [(8, a)], [(7, b)], [(7, a), (8, b)], [(8, b), (7, a)], [])
    ]
    found += [
        part_of(found[0], ranges)
        for ranges in (
            [(0, 0, 9)],
            [(0, 9, 18)],
            [(0, 0, 10)],
            [(1, 0, 9)],
            [(0, 0, 9), (1, 0, 9)],
            [(1, 0, 9), (0, 0, 9)],
        )
    ]

    assert len(set(found)) == len(found)
    assert all(0 < signature < 2**64 for signature in found)


# -- lists that were merged before ----------------------------------------------------------


@given(
    lists=st.lists(st.tuples(st.integers(0, 4), st.integers(0, 3)), max_size=12),
    limit=st.sampled_from([0, 20_000, 1 << 20]),
)
def test_a_list_merged_before_gives_the_same(lists: list[tuple[int, int]], limit: int) -> None:
    remembered = MergedLists(limit)
    for seed, kind in lists:
        keys = np.random.default_rng(seed).integers(0, 900, 600 + seed).astype(np.uint64)
        keys = [keys, keys[::-1], np.sort(keys), np.unique(keys)][kind]

        found, wanted = remembered.prepare(keys, "t"), prepare(keys, "t")

        remembered.validate()
        assert found.unique.tobytes() == wanted.unique.tobytes()
        assert (found.inverse is None) == (wanted.inverse is None)
        if found.inverse is not None:
            np.testing.assert_array_equal(found.inverse, wanted.inverse)


def test_a_list_is_merged_once_also_when_the_caller_writes_into_it() -> None:
    remembered = MergedLists()
    keys = np.arange(1000, dtype=np.uint64)[::-1].copy()

    first = remembered.prepare(keys, "t")
    again = remembered.prepare(keys.copy(), "t")
    keys[0] = 5
    other = remembered.prepare(keys, "t")

    assert again is first
    assert first.unique.size == 1000
    assert other.unique.size == 999
    with pytest.raises(KeyListError, match="table t"):
        remembered.prepare([-1], "t")
