"""Sizes and times with units."""

from __future__ import annotations

import pytest
from hypothesis import example, given
from hypothesis import strategies as st

from van.quantities import (
    BITS,
    BYTES,
    LONGEST,
    SECONDS,
    SHARES,
    Unit,
    format_quantity,
    parse_quantity,
)


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [
        ("0", 0),
        ("17", 17),
        ("17B", 17),
        ("64KB", 64_000),
        ("64KiB", 65_536),
        ("64 kib", 65_536),
        ("1MiB", 1 << 20),
        ("1.5MiB", 3 << 19),
        ("2GB", 2 * 10**9),
        ("1e3", 1000),
    ],
)
def test_a_size_is_read_in_bytes(text: str, nbytes: int) -> None:
    size = parse_quantity(text, BYTES)

    assert size == nbytes
    assert isinstance(size, int)


@pytest.mark.parametrize(
    ("text", "seconds"),
    [("0", 0.0), ("2", 2.0), ("2s", 2.0), ("100ms", 0.1), ("250us", 0.00025), ("5min", 300.0)],
)
def test_a_time_is_read_in_seconds(text: str, seconds: float) -> None:
    time = parse_quantity(text, SECONDS)

    assert time == seconds
    assert isinstance(time, float)


@pytest.mark.parametrize(
    ("text", "unit", "value"),
    [
        ("10Gbit", BITS, 1e10),
        ("2.5 mbit", BITS, 2.5e6),
        ("0", BITS, 0.0),
        ("5%", SHARES, 0.05),
        ("0.05", SHARES, 0.05),
        ("250 %", SHARES, 2.5),
    ],
)
def test_bandwidths_and_shares_are_read(text: str, unit: Unit, value: float) -> None:
    assert parse_quantity(text, unit) == value


@pytest.mark.parametrize(("text", "unit"), [("5%", SECONDS), ("10GB", BITS), ("5s", SHARES)])
def test_a_unit_of_something_else_is_refused(text: str, unit: Unit) -> None:
    with pytest.raises(ValueError, match=f"a {unit.name} takes"):
        parse_quantity(text, unit)


@pytest.mark.parametrize(
    "text", ["", "s", "-1s", "nan", "inf", "1e400", "1 2", "0x10", "1,5s", "5 weeks", "5KB", "٣s"]
)
def test_what_is_no_time_is_refused(text: str) -> None:
    with pytest.raises(ValueError, match=r"time|unit"):
        parse_quantity(text, SECONDS)


def test_a_part_of_a_byte_is_refused() -> None:
    with pytest.raises(ValueError, match="not a whole number of bytes"):
        parse_quantity("0.3KiB", BYTES)


@given(st.integers(0, 1 << 62))
def test_every_size_reads_back(nbytes: int) -> None:
    assert parse_quantity(format_quantity(nbytes, BYTES), BYTES) == nbytes


@given(st.floats(0, LONGEST, allow_subnormal=False))
def test_every_time_reads_back_to_the_bit(seconds: float) -> None:
    assert parse_quantity(format_quantity(seconds, SECONDS), SECONDS) == seconds


@example(1.175494351e-38, SHARES)
@given(st.floats(0, 1e15, allow_subnormal=False), st.sampled_from([BITS, SHARES]))
def test_every_bandwidth_and_share_reads_back_to_the_bit(value: float, unit: Unit) -> None:
    assert parse_quantity(format_quantity(value, unit), unit) == value
