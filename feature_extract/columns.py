"""The columns of one chunk as operators read them, each prepared once.

A field is numbered by its distinct texts first; everything that follows (missing values, numbers,
lists, checks for delimiters) is then done once a distinct text instead of once a sample.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from feature_extract.chunk import Chunk, Encoded, encode, integers, matches, renumber
from feature_extract.conf import FeatureConf
from feature_extract.definition import Part
from feature_extract.derived import derive
from feature_extract.errors import SampleError
from feature_extract.numbers import parse_float32

SEPARATORS = r"[,|#\t\r\n]"  # what a value may not contain; line ends would break the text files


class Numbers(NamedTuple):
    """A number column: row i has `values[codes[i]]`, and none where not `known[codes[i]]`."""

    codes: NDArray[np.int32]
    values: NDArray[np.float32]
    known: NDArray[np.bool_]


class Lists(NamedTuple):
    """A multi-valued column: row i has the items `codes[offsets[r]:offsets[r + 1]]`, r = rows[i].

    Args:
        rows: int32 (n,), which of the distinct lists a row has.
        offsets: int32 (lists + 1,).
        codes: int32 (items,), positions in `texts`.
        texts: distinct, in order of first occurrence.
    """

    rows: NDArray[np.int32]
    offsets: NDArray[np.int32]
    codes: NDArray[np.int32]
    texts: pa.StringArray


class Columns:
    """Prepared columns of `chunk`; asking twice for one costs nothing.

    Args:
        chunk: the samples.
        conf: says which texts stand for nothing and what to do with delimiters inside values.
        compat: `NULL` in a number column is an error instead of a missing number.
    """

    def __init__(self, chunk: Chunk, conf: FeatureConf, compat: bool) -> None:
        self.chunk, self.conf, self.compat = chunk, conf, compat
        self._texts: dict[str, Encoded] = {}
        self._values: dict[str, Encoded] = {}
        self._parts: dict[Part, Encoded] = {}
        self._numbers: dict[str, Numbers] = {}
        self._lists: dict[str, Lists] = {}

    def error(self, row: int, problem: str) -> SampleError:
        """The error about a row of the chunk."""
        return SampleError(self.chunk.file, int(self.chunk.lines[row]), problem)

    def error_at(self, codes: NDArray[np.int32], code: int, problem: str) -> SampleError:
        """The error about the first row that has `code`."""
        return self.error(int(np.argmax(codes == code)), problem)

    def texts(self, field: str) -> Encoded:
        """The field's texts as they stand in the file, missing ones empty."""
        if field not in self._texts:
            source = self.conf.derived.get(field)
            self._texts[field] = self._derived(field, source) if source else self._read(field)
        return self._texts[field]

    def values(self, field: str) -> Encoded:
        """The field's texts, free of separators.

        Raises:
            SampleError: one contains a separator and the ini does not say `escape = true`.
        """
        if field not in self._values:
            codes, texts = self.texts(field)
            clean = self._clean(texts, field, lambda code: int(np.argmax(codes == code)))
            self._values[field] = renumber(codes, clean)
        return self._values[field]

    def part(self, part: Part, compute: Callable[[Part, Columns], Encoded]) -> Encoded:
        """What `compute` makes of a part of `combine`; computed once."""
        if part not in self._parts:
            self._parts[part] = compute(part, self)
        return self._parts[part]

    def numbers(self, field: str) -> Numbers:
        """The field as float32; empty is unknown, and `NULL` too outside compatibility mode.

        Raises:
            SampleError: a text is no number.
        """
        if field not in self._numbers:
            codes, texts = self.texts(field)
            absent = pc.equal(texts, "").to_numpy(zero_copy_only=False)
            if not self.compat:
                absent = absent | pc.equal(texts, "NULL").to_numpy(zero_copy_only=False)
            values, fine = parse_float32(pc.if_else(pa.array(absent), "0", texts))
            if not fine.all():
                code = int(np.argmin(fine))
                text = texts[code].as_py()
                raise self.error_at(codes, code, f"field {field}: {text!r} is not a number")
            self._numbers[field] = Numbers(codes, values, ~absent)
        return self._numbers[field]

    def lists(self, field: str) -> Lists:
        """The field's texts cut at the list delimiter; of an empty text comes one empty item."""
        if field not in self._lists:
            codes, texts = self.texts(field)
            lists = pc.split_pattern(texts, self.conf.input.list_delimiter)
            items = encode(lists.flatten())
            self._lists[field] = Lists(codes, integers(lists.offsets), items.codes, items.texts)
        return self._lists[field]

    def clean_lists(self, field: str) -> Lists:
        """The lists of the field, each item free of separators.

        Raises:
            SampleError: an item contains a separator and the ini does not say `escape = true`.
        """
        lists = self.lists(field)

        def first_row(code: int) -> int:
            position = int(np.argmax(lists.codes == code))
            cell = int(np.searchsorted(lists.offsets, position, side="right")) - 1
            return int(np.argmax(lists.rows == cell))

        items = renumber(lists.codes, self._clean(lists.texts, field, first_row))
        return Lists(lists.rows, lists.offsets, items.codes, items.texts)

    def _clean(
        self, texts: pa.StringArray, field: str, first_row: Callable[[int], int]
    ) -> pa.StringArray:
        """`texts` with each separator made `_`, or an error about the first text that has one."""
        wrong = matches(texts, SEPARATORS)
        if not len(wrong):
            return texts
        if self.conf.escape:
            return pc.replace_substring_regex(texts, SEPARATORS, "_")
        code = int(wrong[0])
        raise self.error(
            first_row(code),
            f"field {field}: {texts[code].as_py()!r} contains one of , | # tab, which separate "
            f"features; clean the data, read a list with 'group', or write [id] escape = true",
        )

    def _read(self, field: str) -> Encoded:
        codes, texts = encode(self.chunk.columns[field])
        try:
            texts.validate(full=True)
        except pa.ArrowInvalid:
            raise self._not_utf8(field, codes, texts) from None
        spec = self.conf.input
        known = texts
        if spec.unknown:
            missing = pc.is_in(texts, value_set=pa.array(spec.unknown, pa.string()))
            known = pc.if_else(missing, "", texts)
        if spec.positive and field in self.conf.label.fields:
            known = self._labels(known, codes)
        return renumber(codes, known)

    def _not_utf8(self, field: str, codes: NDArray[np.int32], texts: pa.StringArray) -> SampleError:
        for code, text in enumerate(texts.cast(pa.binary()).to_pylist()):
            try:
                text.decode("utf-8")
            except UnicodeDecodeError:
                return self.error_at(codes, code, f"field {field}: {text!r} is not UTF-8")
        raise AssertionError("Arrow calls a text invalid that Python can decode")

    def _labels(self, texts: pa.StringArray, codes: NDArray[np.int32]) -> pa.StringArray:
        """The label's texts as 1 and 0, as `[input] positive` and `negative` say."""
        spec, named = self.conf.input, []
        for code, text in enumerate(texts.to_pylist()):
            if not text:
                named.append("")
            elif text in spec.positive:
                named.append("1")
            elif text in spec.negative or not spec.negative:
                named.append("0")
            else:
                raise self.error_at(
                    codes,
                    code,
                    f"label {text!r} is neither positive ({', '.join(spec.positive)}) nor negative "
                    f"({', '.join(spec.negative)})",
                )
        return pa.array(named, pa.string())

    def _derived(self, field: str, source: str) -> Encoded:
        codes, texts = self.texts(source)
        named = []
        for code, text in enumerate(texts.to_pylist()):
            value = derive(field, text)
            if value is None:
                raise self.error_at(codes, code, f"field {source}: {text!r} is not YYMMDDHH")
            named.append(value)
        return renumber(codes, pa.array(named, pa.string()))
