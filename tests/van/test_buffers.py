"""Memory that is used again once nobody holds it."""

from __future__ import annotations

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from van.buffers import MOST, SMALLEST, Buffers

FLOATS = SMALLEST // 4


def address(array: np.ndarray) -> int:
    return array.__array_interface__["data"][0]


def test_memory_that_nobody_holds_is_used_again() -> None:
    buffers = Buffers()
    first = buffers.empty((FLOATS // 2, 4), np.float32)
    place = address(first)

    del first
    again = buffers.empty((2 * FLOATS - 100,), np.float32)

    assert address(again) == place


def test_memory_in_use_is_left_alone_whatever_view_of_it_is_held() -> None:
    buffers = Buffers()
    first = buffers.empty((FLOATS, 4), np.float32)
    held = [first[5:], memoryview(first), first.reshape(-1)[7:].view(np.uint32)]
    place = address(first)

    del first
    while held:
        assert address(buffers.empty((FLOATS, 4), np.float32)) != place
        held.pop()

    assert address(buffers.empty((FLOATS, 4), np.float32)) == place


def test_small_arrays_are_numpys_own() -> None:
    buffers = Buffers()

    assert buffers.empty((10,), np.float32).base is None
    assert buffers.empty((0, 4), np.uint64).shape == (0, 4)
    assert buffers.nbytes == 0


@given(st.lists(st.tuples(st.integers(1, 9), st.integers(0, 5)), max_size=40))
def test_live_arrays_never_share_memory_and_the_pool_stays_bounded(
    steps: list[tuple[int, int]],
) -> None:
    buffers = Buffers(limit=12 * SMALLEST)
    live: dict[int, np.ndarray] = {}
    for number, (size, slot) in enumerate(steps):
        array = buffers.empty((size * FLOATS,), np.float32)
        array[:] = number
        live[slot] = array
        del array

        assert buffers.nbytes <= 12 * SMALLEST
        for kept in live.values():
            assert (kept == kept[0]).all()
    assert len({float(kept[0]) for kept in live.values()}) == len(live)


def test_arrays_that_stay_in_use_are_not_kept_without_end() -> None:
    buffers = Buffers()

    held = [buffers.empty((FLOATS,), np.float32) for _ in range(3 * MOST)]

    assert buffers.nbytes == MOST * held[0].nbytes
    assert len({address(array) for array in held}) == 3 * MOST
