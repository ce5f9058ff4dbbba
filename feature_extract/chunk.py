"""A piece of a sample file: some columns of some tens of thousands of samples, as texts."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray


@dataclass(frozen=True)
class Limits:
    """How much of a file is held at a time."""

    rows: int = 65_536  # samples a chunk
    nbytes: int = 32 << 20  # bytes of text a chunk


@dataclass(frozen=True)
class Chunk:
    """Consecutive samples of one file.

    Args:
        file: its name, for messages.
        columns: one text array (without nulls) a column, all of the same length.
        lines: int64 (n,), the line of each sample in the file, from 1.
        nbytes: how many bytes of the file it took, for progress.
    """

    file: str
    columns: dict[str, pa.StringArray]
    lines: NDArray[np.int64]
    nbytes: int

    def __len__(self) -> int:
        return len(self.lines)


class Encoded(NamedTuple):
    """A column as numbers of its distinct texts.

    Args:
        codes: int32 (n,), for each row the position of its text in `texts`.
        texts: distinct, in order of first occurrence, each occurring.
    """

    codes: NDArray[np.int32]
    texts: pa.StringArray


def encode(texts: pa.StringArray) -> Encoded:
    """Number the distinct texts of a column in order of first occurrence."""
    column = texts.dictionary_encode()
    return Encoded(integers(column.indices), column.dictionary)


def encode_integers(keys: NDArray[np.int64]) -> tuple[NDArray[np.int32], NDArray[np.int64]]:
    """Codes and distinct keys in order of first occurrence, as `encode` for numbers."""
    column = pa.array(keys).dictionary_encode()
    return integers(column.indices), column.dictionary.to_numpy()


def renumber(codes: NDArray[np.int32], texts: pa.StringArray) -> Encoded:
    """The column whose row i has text `texts[codes[i]]`, where `texts` may repeat.

    Every text must occur and first occurrences must rise, as they do in an encoded column.
    """
    inner = encode(texts)
    if len(inner.texts) == len(texts):
        return Encoded(codes, texts)
    return Encoded(inner.codes[codes], inner.texts)


def integers(array: pa.Array) -> NDArray[np.int32]:
    """An int32 Arrow array without nulls as NumPy array, without a copy."""
    return array.to_numpy(zero_copy_only=True)  # type: ignore[no-any-return]  # pyarrow is untyped


def matches(texts: pa.StringArray, pattern: str) -> NDArray[np.int64]:
    """Positions of the texts in which the regular expression is found."""
    found = pc.match_substring_regex(texts, pattern).to_numpy(zero_copy_only=False)
    return np.flatnonzero(found)
