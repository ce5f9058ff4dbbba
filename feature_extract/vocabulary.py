"""The distinct values of one prefix: numbered as they come, found again, counted.

They lie in one byte array with a hash table beside it, so that some tens of millions of them fit
into memory: 32 to 48 bytes and the text each, against some 150 and the text in a Python dict.
"""

from __future__ import annotations

from typing import Any, TypeVar

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feature_extract.kernels import enter_numbers, hash_texts, intern_texts

T = TypeVar("T", bound=Any)
NEVER = np.iinfo(np.int64).max  # later than any sample


class Vocabulary:
    """Numbers texts 0, 1, 2, ... as they first come; finds them again."""

    def __init__(self) -> None:
        self.size = 0
        self._data = np.empty(1 << 10, dtype=np.uint8)
        self._offsets = np.zeros((1 << 6) + 1, dtype=np.int64)
        self._hashes = np.empty(1 << 6, dtype=np.uint64)
        self._table = np.full(1 << 8, -1, dtype=np.int64)

    def add(self, texts: pa.StringArray) -> NDArray[np.int64]:
        """Numbers of the texts, int64 (n,); new texts are entered."""
        data, offsets, hashes = _parts(texts)
        self._reserve(len(hashes), len(data))
        return self._intern(data, offsets, hashes, True)

    def find(self, texts: pa.StringArray) -> NDArray[np.int64]:
        """Numbers of the texts, int64 (n,); -1 where a text is unknown."""
        return self._intern(*_parts(texts), False)

    def texts(self) -> pa.LargeStringArray:
        """All texts in the order of their numbers; a copy."""
        offsets = self._offsets[: self.size + 1].copy()
        data = self._data[: offsets[-1]].copy()
        return pa.LargeStringArray.from_buffers(
            self.size, pa.py_buffer(offsets), pa.py_buffer(data)
        )

    def _intern(
        self,
        data: NDArray[np.uint8],
        offsets: NDArray[np.int32],
        hashes: NDArray[np.uint64],
        add: bool,
    ) -> NDArray[np.int64]:
        ids = np.empty(len(hashes), dtype=np.int64)
        self.size = intern_texts(
            data,
            offsets,
            hashes,
            add,
            self._table,
            self._data,
            self._offsets,
            self._hashes,
            self.size,
            ids,
        )
        return ids

    def _reserve(self, count: int, nbytes: int) -> None:
        """Make room for that many further texts and bytes."""
        count += self.size
        nbytes += int(self._offsets[self.size])
        self._data = _grown(self._data, nbytes)
        self._offsets = _grown(self._offsets, count + 1)
        self._hashes = _grown(self._hashes, count)
        if 2 * count > len(self._table):
            self._table = np.full(1 << (2 * count).bit_length(), -1, dtype=np.int64)
            enter_numbers(self._hashes, self.size, self._table)


class Counter:
    """Counts the values of one prefix and remembers where each came first."""

    def __init__(self) -> None:
        self.vocabulary = Vocabulary()
        self._counts = np.zeros(0, dtype=np.int64)
        self._rows = np.zeros(0, dtype=np.int64)
        self._places = np.zeros(0, dtype=np.int64)

    @property
    def counts(self) -> NDArray[np.int64]:
        """How often each value came, by its number in the vocabulary; a view."""
        return self._counts[: self.vocabulary.size]

    @property
    def rows(self) -> NDArray[np.int64]:
        """The sample in which each value came first; a view."""
        return self._rows[: self.vocabulary.size]

    @property
    def places(self) -> NDArray[np.int64]:
        """The place of each value in the sample in which it came first; a view."""
        return self._places[: self.vocabulary.size]

    def add(
        self,
        texts: pa.StringArray,
        counts: NDArray[np.int64],
        rows: NDArray[np.int64],
        places: NDArray[np.int64],
    ) -> None:
        """Count distinct texts, with their first sample and their place in it; int64 (n,) each."""
        before = self.vocabulary.size
        ids = self.vocabulary.add(texts)
        size = self.vocabulary.size
        self._counts = _grown(self._counts, size)
        self._rows = _grown(self._rows, size)
        self._places = _grown(self._places, size)
        self._counts[before:size] = 0
        self._rows[before:size] = NEVER
        self._counts[ids] += counts
        known = self._rows[ids]
        earlier = (rows < known) | ((rows == known) & (places < self._places[ids]))
        self._rows[ids[earlier]] = rows[earlier]
        self._places[ids[earlier]] = places[earlier]


def _grown(array: NDArray[T], size: int) -> NDArray[T]:
    """The array, or a copy twice as long if it has fewer than `size` elements."""
    if size <= len(array):
        return array
    larger = np.empty(max(size, 2 * len(array)), dtype=array.dtype)
    larger[: len(array)] = array
    return larger


def _parts(
    texts: pa.StringArray,
) -> tuple[NDArray[np.uint8], NDArray[np.int32], NDArray[np.uint64]]:
    """Bytes, offsets (n + 1,) and hashes (n,) of an Arrow text array; the first two are views."""
    _, offset_buffer, data_buffer = texts.buffers()
    if len(texts):
        offsets = np.frombuffer(offset_buffer, dtype=np.int32)
        offsets = offsets[texts.offset : texts.offset + len(texts) + 1]
    else:
        offsets = np.zeros(1, dtype=np.int32)
    data = np.frombuffer(data_buffer or b"", dtype=np.uint8)
    # Arrow's buffers are read-only or not as it happens, which Numba takes for two types
    data.flags.writeable = offsets.flags.writeable = False
    hashes = np.empty(len(texts), dtype=np.uint64)
    hash_texts(data, offsets, hashes)
    return data, offsets, hashes
