"""From a feature value to its number: a dictionary of the training values, or a hash.

Both answer `look_up(prefix, texts)` for the values of one prefix; 0 means 'unknown'.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from pathlib import Path
from typing import Protocol, TypeVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import xxhash
from numpy.typing import NDArray

from feature_extract.errors import DictionaryError
from feature_extract.pairs import read_pairs, write_pairs
from feature_extract.schema import IndexKind
from feature_extract.vocabulary import Counter, Vocabulary

DICTIONARY = "dictionary.tsv"  # its name in an output directory
T = TypeVar("T", np.int64, np.uint64)
NO_PREFIX = ""  # of the empty text that compatibility mode counts for an absent section


class Index(Protocol):
    """Numbers of feature values; `identity` is the same for those that number alike."""

    kind: IndexKind
    size: int | None
    identity: str | None

    def look_up(self, prefix: str, texts: pa.StringArray) -> NDArray[np.uint64]:
        """Numbers of the values `PREFIX#TEXT`, uint64 (n,); 0 where unknown."""


class HashIndex:
    """XXH3-64 with seed 0 of the UTF-8 text `PREFIX#VALUE`; a hash of 0 becomes 1."""

    kind: IndexKind = "hash"
    size: int | None = None
    identity: str | None = "hash:xxh3-64:0"

    def look_up(self, prefix: str, texts: pa.StringArray) -> NDArray[np.uint64]:
        """See `Index`; no value is unknown."""
        head = f"{prefix}#".encode()
        digest = xxhash.xxh3_64_intdigest
        hashes = [digest(head + text) or 1 for text in texts.cast(pa.binary()).to_pylist()]
        return np.array(hashes, dtype=np.uint64)


class Dictionary:
    """Numbers from 1 by falling count of the training values, ties by falling text.

    Its identity is the digest of its file, known once it has been written or read.
    """

    kind: IndexKind = "dictionary"

    def __init__(
        self,
        parts: Mapping[str, tuple[Vocabulary, NDArray[np.uint64]]],
        identity: str | None = None,
    ) -> None:
        self.identity = identity
        # a 0 behind the indices is what the number -1 of an unknown text reads
        self._parts = {
            prefix: (vocabulary, np.append(indices, np.uint64(0)))
            for prefix, (vocabulary, indices) in parts.items()
        }
        self.size: int | None = max(
            (int(indices.max()) for _, indices in self._parts.values()), default=0
        )

    def look_up(self, prefix: str, texts: pa.StringArray) -> NDArray[np.uint64]:
        """See `Index`."""
        if prefix not in self._parts:
            return np.zeros(len(texts), dtype=np.uint64)
        vocabulary, indices = self._parts[prefix]
        return indices[vocabulary.find(texts)]

    def write(self, path: Path) -> None:
        """Write the lines `VALUE⇥INDEX` by rising index."""
        texts, indices = [], []
        for prefix, (vocabulary, numbers) in self._parts.items():
            numbers = numbers[:-1]
            kept = numbers > 0
            texts.append(full_texts(prefix, vocabulary.texts().filter(pa.array(kept))))
            indices.append(numbers[kept])
        every = _joined(indices, np.uint64)
        write_pairs(path, _one(texts), every, np.argsort(every))
        self.identity = _identity(path)

    @classmethod
    def count(cls, counters: Mapping[str, Counter], min_freq: int) -> Dictionary:
        """The dictionary of all values counted more than `min_freq` times."""
        masks = {prefix: counter.counts > min_freq for prefix, counter in counters.items()}
        texts = [
            full_texts(prefix, counter.vocabulary.texts().filter(pa.array(masks[prefix])))
            for prefix, counter in counters.items()
        ]
        counts = [counter.counts[masks[prefix]] for prefix, counter in counters.items()]
        table = pa.table({"count": _joined(counts, np.int64), "text": _one(texts)})
        keys = [("count", "descending"), ("text", "descending")]
        order = pc.sort_indices(table, sort_keys=keys).to_numpy()
        ranks = np.empty(len(order), dtype=np.uint64)
        ranks[order] = np.arange(1, len(order) + 1, dtype=np.uint64)
        parts, start = {}, 0
        for prefix, counter in counters.items():
            numbers = np.zeros(len(counter.counts), dtype=np.uint64)
            end = start + int(np.count_nonzero(masks[prefix]))
            numbers[masks[prefix]] = ranks[start:end]
            parts[prefix] = (counter.vocabulary, numbers)
            start = end
        return cls(parts)

    @classmethod
    def read(cls, path: Path) -> Dictionary:
        """Read what `write` wrote.

        Raises:
            DictionaryError: it cannot be read, a line is malformed, or a value stands twice.
        """
        vocabularies: dict[str, Vocabulary] = {}
        indices: dict[str, list[NDArray[np.uint64]]] = {}
        for texts, numbers in read_pairs(path):
            lost = pc.and_(pc.not_equal(texts, ""), pc.invert(pc.match_substring(texts, "#")))
            if pc.any(lost).as_py():
                wrong = texts.filter(lost)[0].as_py()
                raise DictionaryError(str(path), f"{wrong!r} is no PREFIX#VALUE")
            prefixes = pc.replace_substring_regex(texts, r"(?s)#.*", "").dictionary_encode()
            values = pc.replace_substring_regex(texts, r"^[^#]*#?", "")
            codes = prefixes.indices.to_numpy()
            for code, prefix in enumerate(prefixes.dictionary.to_pylist()):
                rows = np.flatnonzero(codes == code)
                vocabulary = vocabularies.setdefault(prefix, Vocabulary())
                before = vocabulary.size
                vocabulary.add(values.take(pa.array(rows)))
                if vocabulary.size < before + len(rows):
                    raise DictionaryError(str(path), f"a value of {prefix!r} stands there twice")
                indices.setdefault(prefix, []).append(numbers[rows])
        return cls(
            {
                prefix: (vocabulary, _joined(indices[prefix], np.uint64))
                for prefix, vocabulary in vocabularies.items()
            },
            _identity(path),
        )


def _identity(path: Path) -> str:
    """`dictionary:` and BLAKE2b-128 of the file, in hexadecimal."""
    try:
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, lambda: hashlib.blake2b(digest_size=16))
    except OSError as error:
        raise DictionaryError(str(path), f"cannot be read: {error.strerror}") from error
    return f"dictionary:{digest.hexdigest()}"


def write_counts(path: Path, counters: Mapping[str, Counter]) -> None:
    """Write the lines `VALUE⇥COUNT` of all values in order of first occurrence."""
    texts = [full_texts(prefix, part.vocabulary.texts()) for prefix, part in counters.items()]
    rows = _joined([part.rows for part in counters.values()], np.int64)
    places = _joined([part.places for part in counters.values()], np.int64)
    counts = _joined([part.counts for part in counters.values()], np.int64)
    write_pairs(path, _one(texts), counts, np.lexsort((places, rows)))


def full_texts(prefix: str, texts: pa.Array) -> pa.Array:
    """The values `PREFIX#TEXT`; the empty value of an absent section has no prefix."""
    if prefix == NO_PREFIX:
        return texts
    head, nothing = pa.scalar(prefix + "#", texts.type), pa.scalar("", texts.type)
    return pc.binary_join_element_wise(head, texts, nothing)


def _one(arrays: list[pa.Array]) -> pa.LargeStringArray:
    return pa.concat_arrays([pa.array([], pa.large_string()), *arrays])


def _joined(arrays: list[NDArray[T]], dtype: type[T]) -> NDArray[T]:
    return np.concatenate([np.zeros(0, dtype), *arrays])
