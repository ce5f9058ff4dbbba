"""What the operators make of a chunk's columns.

Every operator works on distinct texts (or distinct combinations of them) and then only numbers the
rows; the results stay in that form until they are written.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from feature_extract.chunk import Encoded, encode_integers, renumber
from feature_extract.columns import Columns
from feature_extract.definition import Definition, Part, break_array
from feature_extract.kernels import list_hits
from feature_extract.numbers import parse_float32, six_decimals


class Dense(NamedTuple):
    """A dense feature: row i has number `values[codes[i]]`.

    `texts` is what stands in the text files; None for `log` and `sqrt`, whose numbers are printed
    with six decimals.
    """

    codes: NDArray[np.int32]
    values: NDArray[np.float32]
    texts: pa.StringArray | None

    def as_texts(self) -> Encoded:
        """The feature as it stands in the text files, without its prefix."""
        if self.texts is not None:
            return Encoded(self.codes, self.texts)
        return Encoded(self.codes, six_decimals(self.values))


class Cells(NamedTuple):
    """A sparse feature: row i has the values of cell `rows[i]`.

    Args:
        rows: int32 (n,); cells are numbered in order of first occurrence.
        offsets: int32 (cells + 1,); cell c has the values `codes[offsets[c]:offsets[c + 1]]`.
        codes: int32, positions in `texts`.
        texts: the values without their prefix, in order of first occurrence.
    """

    rows: NDArray[np.int32]
    offsets: NDArray[np.int32]
    codes: NDArray[np.int32]
    texts: pa.StringArray


def sparse(definition: Definition, columns: Columns) -> Cells:
    """A sparse feature of the chunk.

    Raises:
        SampleError: a value is no number, or contains a separator.
    """
    if definition.operator == "group":
        return _group(definition.fields[0], columns)
    codes, texts = value(definition, columns)
    every = np.arange(len(texts) + 1, dtype=np.int32)
    return Cells(codes, every, every[:-1], texts)


def dense(definition: Definition, columns: Columns, *, as_numbers: bool) -> Dense:
    """A dense feature of the chunk.

    Args:
        as_numbers: whether the numbers of `direct` are wanted; its texts are not looked at
            otherwise, as the text files carry them unchanged.
    Raises:
        SampleError: a value is no number, or outside what `log` or `sqrt` are defined for.
    """
    if definition.operator in ("log", "sqrt"):
        codes, values = _root_or_log(definition, columns)
        return Dense(codes, values, None)
    codes, texts = value(definition, columns)
    if definition.operator != "direct":
        return Dense(codes, parse_float32(texts)[0], texts)
    values = np.zeros(len(texts), dtype=np.float32)
    if as_numbers:
        values = _plain_numbers(definition.fields[0], columns, absent=0.0)
    return Dense(codes, values, texts)


def label(definition: Definition, columns: Columns, *, as_numbers: bool, required: bool) -> Dense:
    """The label; like a dense feature, but a sample may not lack it, and it is 0 or 1.

    Args:
        required: whether each sample must have a label of 0 or 1; otherwise any number will do,
            and a missing one becomes NaN. Texts of compatibility mode are not looked at.
    Raises:
        SampleError: a label is no number, or missing or neither 0 nor 1 where it is required.
    """
    is_checked = required and (as_numbers or not columns.compat)
    if definition.operator != "direct" or not (as_numbers or is_checked):
        found = dense(definition, columns, as_numbers=as_numbers)
    else:
        codes, texts = columns.values(definition.fields[0])
        absent = None if required else float("nan")
        numbers = _plain_numbers(definition.fields[0], columns, absent=absent)
        found = Dense(codes, numbers, texts)
    if is_checked:
        _check_label(found, columns)
    return found


def _check_label(found: Dense, columns: Columns) -> None:
    wrong = (found.values != 0) & (found.values != 1)
    if wrong.any():
        code = int(np.argmax(wrong))
        text = found.as_texts().texts[code].as_py()
        problem = f"label {text!r} is neither 0 nor 1; see positive and negative of [input]"
        raise columns.error_at(found.codes, code, problem)


def value(definition: Definition, columns: Columns) -> Encoded:
    """The one value a sample has by an operator that gives one; without prefix.

    Raises:
        SampleError: a value is no number, or contains a separator.
    """
    operator, fields = definition.operator, definition.fields
    if operator == "direct":
        return columns.values(fields[0])
    if operator == "bucket":
        return _bucket(Part(fields[0], "bucket", definition.breaks), columns)
    if operator == "combine":
        return _combine(definition.parts, columns)
    if operator == "hit":
        return _hit(fields[0], fields[1], columns)
    codes, numbers = _root_or_log(definition, columns)
    return renumber(codes, six_decimals(numbers))


def _plain_numbers(field: str, columns: Columns, *, absent: float | None) -> NDArray[np.float32]:
    """Numbers of the field's values; `absent` for empty ones and `NULL`, an error if it is None."""
    codes, texts = columns.values(field)
    missing = pc.is_in(texts, value_set=pa.array(["", "NULL"]))
    values, fine = parse_float32(texts if absent is None else pc.if_else(missing, "0", texts))
    if not fine.all():
        code = int(np.argmin(fine))
        text = texts[code].as_py()
        raise columns.error_at(codes, code, f"field {field}: {text!r} is not a number to train on")
    if absent is None:
        return values
    return np.where(missing.to_numpy(zero_copy_only=False), np.float32(absent), values)


def _root_or_log(
    definition: Definition, columns: Columns
) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
    """ln(x + 1) or √(x + 1) in float64 of a float32 x, rounded to float32; 0 where unknown."""
    field, operator = definition.fields[0], definition.operator
    codes, values, known = columns.numbers(field)
    lowest = columns.conf.input.clip_min
    wide = values.astype(np.float64)
    if lowest is not None:
        wide = np.maximum(wide, np.float64(np.float32(lowest)))
    outside = known & (wide <= -1 if operator == "log" else wide < -1)
    if outside.any():
        code = int(np.argmax(outside))
        limit = "above -1" if operator == "log" else "-1 or more"
        raise columns.error_at(
            codes,
            code,
            f"field {field}: {operator} needs a number {limit}, not {values[code]:g}; read it "
            f"with 'bucket', or let [input] clip_min lift such numbers",
        )
    result = (np.log if operator == "log" else np.sqrt)(wide + 1)
    return codes, np.where(known, result, 0).astype(np.float32)


def _group(field: str, columns: Columns) -> Cells:
    rows, offsets, codes, texts = columns.clean_lists(field)
    return Cells(rows, offsets, codes, texts)


def _bucket(part: Part, columns: Columns) -> Encoded:
    """Index of the first break that is not below the number, as text; -1 where unknown."""
    codes, values, known = columns.numbers(part.field)
    places = np.searchsorted(break_array(part.breaks), values, side="left")
    numbers = np.where(known, places, -1)
    return renumber(codes, pa.array([str(number) for number in numbers.tolist()], pa.string()))


def _combine(parts: tuple[Part, ...], columns: Columns) -> Encoded:
    """The parts' values joined by `#`."""
    columns_of_parts = [
        columns.part(part, _bucket) if part.breaks else columns.values(part.field) for part in parts
    ]
    codes, texts = columns_of_parts[0]
    picks = [np.arange(len(texts), dtype=np.int64)]
    for other_codes, other_texts in columns_of_parts[1:]:
        keys = codes.astype(np.int64) * len(other_texts) + other_codes
        codes, distinct = encode_integers(keys)
        left, right = np.divmod(distinct, max(len(other_texts), 1))
        picks = [*(pick[left] for pick in picks), right]
    chosen = [
        column.texts.take(pa.array(pick))
        for column, pick in zip(columns_of_parts, picks, strict=True)
    ]
    return Encoded(codes, pc.binary_join_element_wise(*chosen, "#"))


def _hit(field: str, list_field: str, columns: Columns) -> Encoded:
    """1 where the field's text is among the list's items, else 0; an empty list has none."""
    codes, texts = columns.texts(field)
    rows, offsets, items, item_texts = columns.lists(list_field)
    found = pc.index_in(texts, value_set=item_texts).fill_null(-1)
    wanted = found.to_numpy(zero_copy_only=False).astype(np.int32)[codes]
    hits = np.empty(len(codes), dtype=np.bool_)
    list_hits(wanted, rows, offsets, items, hits)
    empty = pc.equal(columns.texts(list_field).texts, "").to_numpy(zero_copy_only=False)
    hits &= ~empty[rows]
    new_codes, distinct = encode_integers(hits.astype(np.int64))
    return Encoded(new_codes, pa.array([str(hit) for hit in distinct.tolist()], pa.string()))
