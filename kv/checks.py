"""What an engine asks of the arrays it is given, before anything changes."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from kv.errors import KeyListError, NonFiniteError, UnsortedKeysError
from kv.kernels.jit import frozen
from kv.kernels.merge import first_not_finite, first_unsorted
from kv.keylist import as_values
from kv.spec import TableSpec

Keys = NDArray[np.uint64]
Values = NDArray[np.float32]


def checked_keys(keys: Keys, spec: TableSpec) -> Keys:
    """`keys`, read-only.

    Raises:
        KeyListError: not uint64 of shape (n,).
        UnsortedKeysError: they repeat or go down.
    """
    if keys.dtype != np.uint64 or keys.ndim != 1:
        problem = f"keys must be uint64 of shape (n,), not {keys.dtype} of shape {keys.shape}"
        raise KeyListError(spec.name, problem)
    keys = frozen(keys)
    place = first_unsorted(keys)
    if place < keys.size:
        raise UnsortedKeysError(place, int(keys[place - 1]), int(keys[place]))
    return keys


def checked_values(values: Values, keys: Keys, spec: TableSpec, what: str) -> Values:
    """`values`, float32 of shape (keys.size, dim), read-only; `what` names them in errors.

    Raises:
        ValueShapeError: another shape, or no real numbers.
        NonFiniteError: NaN or infinity among them; one pass over them, without a branch.
    """
    values = as_values(values, (keys.size, spec.dim), spec.name, what)
    place = first_not_finite(values.reshape(-1).view(np.uint32))
    if place < values.size:
        key, number = int(keys[place // spec.dim]), values.reshape(-1)[place]
        raise NonFiniteError(spec.name, f"{what} of key {key} contain {number}; nothing is changed")
    return values
