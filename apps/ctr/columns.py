"""Arrow columns of features into a block."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from apps.ctr import kernels
from apps.ctr.batch import Block, starts_of
from apps.ctr.errors import DataError
from kv.kernels.jit import frozen

T = TypeVar("T")

MOST_VALUES = np.iinfo(np.uint16).max


def block_of(
    file: str | Path,
    rows: int,
    dense: Sequence[tuple[str, Any]],
    sparse: Sequence[tuple[str, Any]],
    *,
    line: int,
    finite: bool = True,
) -> Block:
    """A block from named Arrow arrays of `rows` values.

    Args:
        dense: float arrays; null reads 0.
        sparse: arrays of uint64, or of lists of uint64; null and 0 are unknown.
        line: of the file, from 1, that the first row is.
        finite: whether dense values must be.
    Raises:
        DataError: a dense value is not finite, a sparse one negative, a column of another type, or
            one feature has over 65 535 values in one row.
    """
    matrix = np.empty((rows, len(dense)), np.float32)
    for column, (name, values) in enumerate(dense):
        matrix[:, column] = _read(_floats, values, file, name)
        if finite and not np.isfinite(matrix[:, column]).all():
            row = int(np.flatnonzero(~np.isfinite(matrix[:, column]))[0])
            problem = f"feature {name} is {matrix[row, column]}; dense values must be finite"
            raise DataError(file, problem, line=line + row)
    lengths = np.zeros((rows, len(sparse)), np.uint16)
    flat = [_read(_flat_values, values, file, name) for name, values in sparse]
    for feature, ((name, _), (values, offsets)) in enumerate(zip(sparse, flat, strict=True)):
        longest = kernels.count_known(values, offsets, lengths, feature)
        if longest > MOST_VALUES:
            problem = f"feature {name} has {longest} values in one row; the most is {MOST_VALUES}"
            raise DataError(file, problem)
    starts = starts_of(lengths.sum(axis=1, dtype=np.int64))
    keys = np.empty(starts[-1], np.uint64)
    cursor = starts[:-1].copy()
    for values, offsets in flat:
        kernels.fill_known(values, offsets, cursor, keys)
    return Block(matrix, keys, lengths, starts)


def check_labels(labels: NDArray[np.float32], file: str | Path, line: int) -> None:
    """Refuse labels other than 0 and 1.

    Args:
        line: of the first label, from 1.
    Raises:
        DataError: naming the first that is neither.
    """
    wrong = np.flatnonzero((labels != 0) & (labels != 1))
    if len(wrong):
        problem = f"label {labels[wrong[0]]:g} is neither 0 nor 1"
        raise DataError(file, problem, line=line + int(wrong[0]))


def _read(convert: Callable[[Any], T], values: Any, file: str | Path, name: str) -> T:
    try:
        return convert(values)
    except pa.ArrowException as error:
        kind = f"feature {name}, which the file holds as {values.type}"
        raise DataError(file, f"{kind}: {' '.join(str(error).split())}") from error


def _floats(values: Any) -> NDArray[np.float32]:
    found: NDArray[np.float32] = _without_nulls(values, pa.float32()).to_numpy()
    return found


def _flat_values(values: Any) -> tuple[NDArray[np.uint64], NDArray[np.int32]]:
    """Values uint64 (m,) and offsets int32 (n + 1,) of a plain or list array, both read-only."""
    if pa.types.is_list(values.type) or pa.types.is_large_list(values.type):
        if values.null_count:
            values = pc.if_else(values.is_valid(), values, pa.scalar([], values.type))
        offsets = values.offsets.to_numpy().astype(np.int32, copy=False)
        return _keys(values.values), frozen(offsets)
    return _keys(values), frozen(np.arange(len(values) + 1, dtype=np.int32))


def _keys(values: Any) -> NDArray[np.uint64]:
    found: NDArray[np.uint64] = _without_nulls(values, pa.uint64()).to_numpy()
    return frozen(found)


def _without_nulls(values: Any, kind: Any) -> Any:
    """`values` as an array of `kind`, 0 for null; an ArrowException if they are no such numbers."""
    if values.type != kind:
        values = pc.cast(values, kind)
    return pc.fill_null(values, pa.scalar(0, kind)) if values.null_count else values
