"""What users pass as keys and values."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv.errors import KeyListError, ValueShapeError
from kv.keylist import as_keys, as_values, prepare

LAST = 2**64 - 1
key_lists = st.lists(st.one_of(st.integers(0, 6), st.integers(LAST - 2, LAST)), max_size=30)


@given(key_lists, st.integers(1, 4))
def test_any_list_gives_what_a_loop_over_it_gives(keys: list[int], dim: int) -> None:
    rng = np.random.default_rng(len(keys))
    grads = rng.standard_normal((len(keys), dim)).astype(np.float32)

    merged = prepare(keys, "t")

    sums: dict[int, np.ndarray] = {}
    last: dict[int, np.ndarray] = {}
    for key, grad in zip(keys, grads, strict=True):
        sums[key] = sums[key] + grad if key in sums else grad
        last[key] = grad
    unique = sorted(sums)
    assert merged.unique.tolist() == unique
    assert merged.size == len(keys)
    if keys:
        expected = np.array([sums[key] for key in unique])
        assert merged.merge_grads(grads).tobytes() == expected.tobytes()
        kept = np.array([last[key] for key in unique])
        np.testing.assert_array_equal(merged.last_of_each(grads), kept)
        rows = np.arange(len(unique) * dim, dtype=np.float32).reshape(-1, dim)
        places = [unique.index(key) for key in keys]
        np.testing.assert_array_equal(merged.expand(rows), rows[places])


@pytest.mark.parametrize(
    "keys",
    [
        [3, 0, LAST],
        (3, 0, LAST),
        [np.uint64(3), 0, LAST],
        np.array([3, 0, LAST], np.uint64),
        np.array([3, 0, LAST], ">u8"),
        np.array([3, 9, 0, 9, LAST, 9], np.uint64)[::2],
        np.array([3, 0, LAST], object),
    ],
    ids=lambda keys: f"{type(keys).__name__}-{getattr(keys, 'dtype', '')}",
)
def test_keys_of_the_whole_range_are_read_in_any_form(keys: object) -> None:
    read = as_keys(keys, "t")

    assert read.dtype == np.uint64
    assert read.tolist() == [3, 0, LAST]
    assert read.flags.c_contiguous
    assert not read.flags.writeable


@pytest.mark.parametrize("kind", ["i1", "u1", "i2", "u4", "i4", "i8", ">i8", "u8"])
def test_every_integer_type_is_read(kind: str) -> None:
    assert as_keys(np.array([7, 100, 0], kind), "t").tolist() == [7, 100, 0]


@pytest.mark.parametrize("nothing", [[], (), np.empty(0), np.empty(0, np.int64)])
def test_no_keys_at_all_are_fine(nothing: object) -> None:
    merged = prepare(nothing, "t")

    assert merged.unique.dtype == np.uint64
    assert merged.size == 0
    assert merged.expand(np.empty((0, 4), np.float32)).shape == (0, 4)


def test_torch_tensors_are_read() -> None:
    torch = pytest.importorskip("torch")

    assert as_keys(torch.tensor([5, 2]), "t").tolist() == [5, 2]
    assert as_values(torch.ones(2, 3), (2, 3), "t").tolist() == [[1, 1, 1], [1, 1, 1]]


@pytest.mark.parametrize(
    ("keys", "position", "text"),
    [
        (np.array([1, -2, -3]), 1, "key -2 at position 1 is negative"),
        ([4, -1], 1, "key -1 at position 1"),
        ([0, LAST, -1], 2, "key -1 at position 2 is not an integer from 0 to 2^64 - 1"),
        ([0, 2**64], 1, f"key {2**64} at position 1"),
        ([0, 1.5], 1, "key 1.5 at position 1"),
        (np.array([1.0, 2.0]), 0, "key 1.0 at position 0"),
        (np.array([True]), 0, "key True at position 0"),
        (["a"], 0, "key 'a' at position 0"),
        ([None], 0, "key None at position 0"),
        ([[1, 2]], -1, "not an array of shape (1, 2)"),
        ([[1], [1, 2]], -1, "cannot be read as one list"),
        (5, -1, "not an array of shape ()"),
    ],
    ids=str,
)
def test_other_keys_are_refused_by_position(keys: object, position: int, text: str) -> None:
    with pytest.raises(KeyListError) as caught:
        prepare(keys, "user")

    assert text in str(caught.value)
    assert "table user" in str(caught.value)
    assert caught.value.position == position


@pytest.mark.parametrize(
    ("values", "text"),
    [
        (np.ones((2, 3)), "gradients have shape (2, 3), not (3, 2)"),
        (np.ones(6), "gradients have shape (6,), not (3, 2)"),
        (np.ones((3, 2), complex), "must be real numbers, not complex128"),
        ([["a", "b"]] * 3, "must be real numbers"),
        ([[1, 2], [3], [4, 5]], "cannot be read as one array"),
    ],
)
def test_values_of_another_form_are_refused(values: object, text: str) -> None:
    with pytest.raises(ValueShapeError) as caught:
        as_values(values, (3, 2), "user")

    assert text in str(caught.value)
    assert "table user" in str(caught.value)


@pytest.mark.parametrize("kind", ["f2", "f4", ">f4", "f8", "i8", "u1"])
def test_real_numbers_of_any_type_become_float32(kind: str) -> None:
    read = as_values(np.array([[1, 2], [3, 4]], kind).T, (2, 2), "t")

    assert read.dtype == np.float32
    assert read.dtype.isnative
    assert read.flags.c_contiguous
    assert read.tolist() == [[1, 3], [2, 4]]
