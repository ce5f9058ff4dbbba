"""Answers become what the caller gets."""

from __future__ import annotations

import numpy as np
import pytest

from kv.cutting import Cut, Range
from kv.dense import BlockShare
from kv.pulling import DenseRead
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
