"""Kernels that read text, against what Python's own functions say."""

from __future__ import annotations

import re

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from sample.kernels.lines import CONTROL, NOT_ASCII, WRONG_COUNT, parse_integers, split_lines

lines_of_bytes = st.lists(
    st.binary(max_size=12).map(lambda b: b.replace(b"\n", b"")) | st.sampled_from(
        [b"", b" ", b"1,2,3", b" 1,,3\r", b"a,b", b"\x001,2,3", b"1,2,3\x00\r",
         b"\xc3\xa9,1,2", b"1,\t,2"]
    ),
    max_size=8,
)  # fmt: skip


@given(lines=lines_of_bytes, is_ended=st.booleans())
def test_fields_are_those_of_split(lines, is_ended):
    data = b"\n".join(lines) + (b"\n" if is_ended else b"")
    size = data.count(b"\n") + 1
    starts, ends = np.zeros((2, size, 4), np.int32)
    numbers, faults = np.zeros(size, np.int64), np.zeros(size, np.uint8)

    rows, seen = split_lines(np.frombuffer(data, np.uint8), 3, starts, ends, numbers, faults, 10)

    blank = b" \t\n\v\f\r"
    stripped = [(10 + i, line.strip(blank)) for i, line in enumerate(data.split(b"\n"))]
    expected = [(number, line) for number, line in stripped if line]
    assert seen == len(data.split(b"\n")) - data.endswith(b"\n") - (data == b"")
    assert numbers[:rows].tolist() == [number for number, _ in expected]
    for row, (_, line) in enumerate(expected):
        fields = line.split(b",")
        assert data[starts[row, 3] : ends[row, 3]] == line
        assert bool(faults[row] & WRONG_COUNT) == (len(fields) != 3)
        assert bool(faults[row] & CONTROL) == any(byte < 32 or byte == 127 for byte in line)
        assert bool(faults[row] & NOT_ASCII) == any(byte > 127 for byte in line)
        if len(fields) == 3:
            assert [data[starts[row, i] : ends[row, i]] for i in range(3)] == fields


texts = st.text("0123456789-+ .x", max_size=18) | st.integers(-(10**16), 10**16).map(str)


@given(texts=st.lists(texts, max_size=10))
def test_numbers_are_those_of_int(texts):
    block = np.frombuffer("".join(texts).encode(), np.uint8)
    ends = np.cumsum([len(text) for text in texts], dtype=np.int32).reshape(-1)
    starts = np.concatenate([[0], ends])[:-1].astype(np.int32)
    values, faults = np.zeros(len(texts), np.int64), np.zeros(len(texts), np.uint8)

    parse_integers(block, starts, ends, values, faults)

    for text, value, fault in zip(texts, values, faults, strict=True):
        assert bool(fault) == (re.fullmatch(r"-?[0-9]{1,15}", text) is None)
        if not fault:
            assert value == int(text)
