"""Texts as float32 numbers, a whole column at a time."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray


def parse_float32(texts: pa.StringArray) -> tuple[NDArray[np.float32], NDArray[np.bool_]]:
    """Numbers of decimal texts, and which texts are finite numbers that float32 can hold.

    The text is rounded to float32 once, not by way of float64. Blanks around a number and a plus
    sign are allowed, as C's `strtof` allows them.

    Returns:
        float32 (n,), 0 where the text is no number; bool (n,).
    """
    try:
        numbers = pc.cast(texts, pa.float32()).to_numpy(zero_copy_only=False)
    except pa.ArrowInvalid:
        numbers = np.array([_parse(text) for text in texts.to_pylist()], dtype=np.float32)
    fine = np.isfinite(numbers)
    return np.where(fine, numbers, np.float32(0)), fine


def _parse(text: str) -> float:
    bare = text.strip().removeprefix("+")
    try:
        return float(pa.scalar(bare).cast(pa.float32()).as_py())
    except pa.ArrowInvalid:
        return float("nan")


def number(text: str) -> float | None:
    """The finite float32 that `text` denotes, or None.

    >>> number("0.1"), number("one"), number("1e99")
    (0.10000000149011612, None, None)
    """
    values, fine = parse_float32(pa.array([text], pa.string()))
    return float(values[0]) if fine[0] else None


def six_decimals(numbers: NDArray[np.float32]) -> pa.StringArray:
    """The numbers as text with six decimals, as C's `%f` prints them."""
    return pa.array([f"{value:.6f}" for value in numbers.tolist()], pa.string())
