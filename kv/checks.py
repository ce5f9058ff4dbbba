"""What an engine asks of the arrays it is given, before anything changes."""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from kv.errors import KeyListError, NonFiniteError, UnsortedKeysError
from kv.kernels.jit import frozen
from kv.kernels.merge import first_not_finite, first_unsorted
from kv.keylist import as_values
from kv.spec import TableSpec

_UINT64 = np.dtype(np.uint64)  # comparing with a type is slow
Keys = NDArray[np.uint64]
Values = NDArray[np.float32]


def checked_keys(keys: Keys, spec: TableSpec) -> Keys:
    """`keys`, read-only.

    Raises:
        KeyListError: not uint64 of shape (n,).
        UnsortedKeysError: they repeat or go down.
    """
    if keys.dtype != _UINT64 or keys.ndim != 1:
        problem = f"keys must be uint64 of shape (n,), not {keys.dtype} of shape {keys.shape}"
        raise KeyListError(spec.name, problem)
    keys = frozen(keys)
    place = first_unsorted(keys)
    if place < keys.size:
        raise UnsortedKeysError(place, int(keys[place - 1]), int(keys[place]))
    return keys


def checked_values(
    values: Values,
    keys: Keys,
    spec: TableSpec,
    what: str,
    outcome: str = "this request changes nothing here",
) -> Values:
    """`values`, float32 of shape (keys.size, dim), read-only; `what` names them in errors.

    Args:
        keys: of the rows; of a dense table the numbers of its blocks.
    Raises:
        ValueShapeError: another shape, or no real numbers.
        NonFiniteError: NaN or infinity among them; one pass over them, without a branch.
    """
    values = as_values(values, (keys.size, spec.dim), spec.name, what)
    place = first_not_finite(values.reshape(-1).view(np.uint32))
    if place < values.size:
        key, number = int(keys[place // spec.dim]), float(values.reshape(-1)[place])
        is_sparse = spec.kind == "sparse"
        raise NonFiniteError(
            spec.name,
            what.removesuffix("s"),
            number,
            key=key if is_sparse else None,
            place="" if is_sparse else _index(spec, key, place),
            outcome=outcome,
        )
    return values


def refuse_non_finite(
    table: str, values: Values, keys: Keys | None = None, what: str = "gradient", outcome: str = ""
) -> None:
    """Raise NonFiniteError if a number is none.

    Args:
        values: float32, shape (n, dim) with the `keys` of its rows, or a dense table's array.
    """
    values = np.ascontiguousarray(values)
    place = int(first_not_finite(frozen(values.reshape(-1).view(np.uint32))))
    if place == values.size:
        return
    number, index = float(values.reshape(-1)[place]), np.unravel_index(place, values.shape)
    if keys is not None:
        raise NonFiniteError(table, what, number, key=int(keys[index[0]]), outcome=outcome)
    listed = str([int(i) for i in index])
    raise NonFiniteError(table, what, number, place=listed, outcome=outcome)


def _index(spec: TableSpec, key: int, place: int) -> str:
    """Where in a dense array the float `place` of its blocks, in the block number `key`, lies."""
    flat = key * spec.dim + place % spec.dim
    inside = flat < math.prod(spec.shape)
    return str([int(i) for i in np.unravel_index(flat, spec.shape)]) if inside else "its padding"
