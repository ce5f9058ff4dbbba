"""Answers become what the caller gets."""

from __future__ import annotations

import numpy as np
import pytest

from kv.cutting import Cut, Range
from kv.dense import BlockShare
from kv.keylist import KeyList
from kv.pulling import DenseRead, SparseRead
from van.buffers import Buffers

SHAPE, BLOCKS, DIM = (30, 1000), 8, 4096  # the last block is not full


def dense_read(out: np.ndarray | None = None) -> DenseRead:
    numbers = np.arange(BLOCKS)
    share = BlockShare(numbers, numbers.astype(np.uint64), numbers)
    return DenseRead("t", SHAPE, [share], Cut(DIM, None, [0, BLOCKS], False), Buffers(), out)


def answer() -> np.ndarray:
    values = np.arange(BLOCKS * DIM, dtype=np.float32).reshape(BLOCKS, DIM)
    view = values.view()
    view.flags.writeable = False
    return view


@pytest.mark.parametrize("is_ours", [False, True])
@pytest.mark.parametrize("has_out", [False, True])
def test_a_dense_answer_is_kept_only_where_it_may_be(is_ours: bool, has_out: bool) -> None:
    out = np.zeros(SHAPE, np.float32) if has_out else None
    read, values = dense_read(out), answer()

    read.put(0, Range(0, 0, BLOCKS), values, is_ours)
    result = read.result()

    assert np.shares_memory(result, values) == (is_ours and not has_out)
    assert has_out == (result is out)
    assert result.flags.writeable
    assert not values.flags.writeable
    np.testing.assert_array_equal(result.reshape(-1), np.arange(30_000, dtype=np.float32))


@pytest.mark.parametrize("is_ours", [False, True])
@pytest.mark.parametrize("has_out", [False, True])
@pytest.mark.parametrize("pieces", [1, 2])
def test_an_answer_about_keys_is_kept_only_where_it_is_all(
    is_ours: bool, has_out: bool, pieces: int
) -> None:
    keylist = KeyList(np.arange(8, dtype=np.uint64), None)
    out = np.zeros((8, DIM), np.float32) if has_out else None
    read = SparseRead("t", keylist, Cut(DIM, None, [0, 8], True), Buffers(), out)
    values, rows = answer(), 8 // pieces

    for start in range(0, 8, rows):
        read.put(0, Range(0, start, start + rows), values[start : start + rows], is_ours)
    result = read.result()

    assert np.shares_memory(result, values) == (is_ours and not has_out and pieces == 1)
    assert has_out == (result is out)
    assert result.flags.writeable
    np.testing.assert_array_equal(result, values)
