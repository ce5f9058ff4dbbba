"""The loops that neither NumPy nor Arrow has: splitting lines, interning texts, list look-ups.

Each takes and fills arrays of its caller and allocates nothing; the arguments are untyped on
purpose, the docstrings give dtype and shape. All release the interpreter lock.
"""

# mypy: disallow-untyped-defs=False, disallow-untyped-calls=False
# mypy: disallow-untyped-decorators=False, disallow-incomplete-defs=False

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numba
import numpy as np

NEWLINE, RETURN, BLANK, TAB = 10, 13, 32, 9


def kernel(function: Callable[..., Any]) -> Any:
    """Compile for use without the interpreter lock; kept on disk between runs."""
    return numba.njit(nogil=True, cache=True, error_model="numpy")(function)


@kernel
def split_lines(text, delimiter, comment, blank_lines, strip, slots, starts, ends, lines, bad):
    """Find the wanted columns of each line of `text`, which ends with a newline.

    text: uint8 (n,).  delimiter, comment: a character, comment -1 for none.  blank_lines, strip:
    bool.  slots: int32 (columns,), where a column goes in `starts`, -1 where it is not wanted.
    starts, ends: int32 (rows, slots), filled with byte positions.  lines: int32 (rows,), number of
    the line, from 0.  bad: int32 (rows, 2), filled with number and columns of malformed lines.
    Returns the numbers of lines, of samples and of malformed lines.
    """
    number = samples = wrong = 0
    position = 0
    size = text.size
    columns = slots.size
    while position < size:
        start = position
        while text[position] != NEWLINE:
            position += 1
        stop = position
        position += 1
        number += 1
        if stop > start and text[stop - 1] == RETURN:
            stop -= 1
        if (stop == start and blank_lines) or (stop > start and text[start] == comment):
            continue
        column = 0
        left = start
        for at in range(start, stop + 1):
            if at == stop or text[at] == delimiter:
                if column < columns and slots[column] >= 0:
                    a, b = left, at
                    if strip:
                        while a < b and (text[a] == BLANK or text[a] == TAB):
                            a += 1
                        while a < b and (text[b - 1] == BLANK or text[b - 1] == TAB):
                            b -= 1
                    starts[samples, slots[column]] = a
                    ends[samples, slots[column]] = b
                column += 1
                left = at + 1
        if column == columns:
            lines[samples] = number - 1
            samples += 1
        else:
            bad[wrong, 0] = number - 1
            bad[wrong, 1] = column
            wrong += 1
    return number, samples, wrong


@kernel
def gather_bytes(text, starts, ends, offsets, out):
    """Copy the slices [starts[i], ends[i]) of `text` one after another into `out`.

    text, out: uint8.  starts, ends: int32 (n,).  offsets: int32 (n + 1,), where each slice begins
    in `out`.
    """
    for i in range(starts.size):
        to = offsets[i]
        for at in range(starts[i], ends[i]):
            out[to] = text[at]
            to += 1


@kernel
def hash_texts(data, offsets, hashes):
    """A 64-bit hash of each text.  data: uint8; offsets: int32 (n + 1,); hashes: uint64 (n,).

    FNV-1a over the bytes and a final mix (Stafford's variant 13 of splitmix64); it only spreads
    texts over a table in memory and never leaves the process.
    """
    for i in range(hashes.size):
        h = np.uint64(0xCBF29CE484222325)
        for at in range(offsets[i], offsets[i + 1]):
            h = (h ^ np.uint64(data[at])) * np.uint64(0x100000001B3)
        h = (h ^ (h >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        h = (h ^ (h >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        hashes[i] = h ^ (h >> np.uint64(31))


@kernel
def intern_texts(data, offsets, hashes, add, table, known, known_offsets, known_hashes, size, ids):
    """Number texts by a table of known ones, new texts getting the next number.

    data: uint8, offsets: int32 (n + 1,), hashes: uint64 (n,): the texts.  add: whether new
    texts are entered; if not they get -1.  table: int64 (a power of two,), a number or -1 in each
    slot, with room for all.  known: uint8, known_offsets: int64, known_hashes: uint64: the texts in
    the table, with room for all.  size: how many those are.  ids: int64 (n,), filled.
    Returns the new size.
    """
    mask = np.uint64(table.size - 1)
    for i in range(hashes.size):
        h = hashes[i]
        slot = h & mask
        start = offsets[i]
        length = offsets[i + 1] - start
        while True:
            at = table[slot]
            if at < 0:
                if add:
                    at = size
                    table[slot] = at
                    to = known_offsets[at]
                    for j in range(length):
                        known[to + j] = data[start + j]
                    known_offsets[at + 1] = to + length
                    known_hashes[at] = h
                    size += 1
                break
            if known_hashes[at] == h:
                begin = known_offsets[at]
                if known_offsets[at + 1] - begin == length:
                    same = True
                    for j in range(length):
                        if known[begin + j] != data[start + j]:
                            same = False
                            break
                    if same:
                        break
            slot = (slot + np.uint64(1)) & mask
        ids[i] = at
    return size


@kernel
def enter_numbers(hashes, size, table):
    """Fill an empty `table` (int64, -1) with the numbers 0 to size - 1 by their hashes (uint64)."""
    mask = np.uint64(table.size - 1)
    for i in range(size):
        slot = hashes[i] & mask
        while table[slot] >= 0:
            slot = (slot + np.uint64(1)) & mask
        table[slot] = i


@kernel
def list_hits(wanted, rows, offsets, items, hits):
    """Whether a list holds a value.

    wanted: int32 (n,), an item's number or -1.  rows: int32 (n,), which list to search.  offsets:
    int32 (lists + 1,), items: int32: the lists.  hits: bool (n,), filled.
    """
    for i in range(wanted.size):
        hits[i] = False
        if wanted[i] >= 0:
            row = rows[i]
            for at in range(offsets[row], offsets[row + 1]):
                if items[at] == wanted[i]:
                    hits[i] = True
                    break
