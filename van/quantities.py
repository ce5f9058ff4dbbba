"""Sizes, times, bandwidths and shares as people write them: `64KB`, `100ms`, `10Gbit`, `5%`.

To a program `NBytes` is an int and the others are floats, in bytes, seconds, bits a second, and
parts of 1. The annotation tells whoever reads a settings file which units its text may carry.
"""

from __future__ import annotations

import math
import re
from dataclasses import dataclass
from decimal import Decimal
from typing import Annotated


@dataclass(frozen=True)
class Unit:
    """A kind of quantity: its base unit and the larger and smaller ones it may be written in."""

    name: str
    base: str
    scales: tuple[tuple[str, Decimal], ...]  # by falling size, the base unit among them
    is_whole: bool
    example: str

    @property
    def accepted(self) -> str:
        return ", ".join(symbol for symbol, _ in self.scales if symbol)


BYTES = Unit(
    "size",
    "B",
    (
        ("TiB", Decimal(1 << 40)),
        ("TB", Decimal(10**12)),
        ("GiB", Decimal(1 << 30)),
        ("GB", Decimal(10**9)),
        ("MiB", Decimal(1 << 20)),
        ("MB", Decimal(10**6)),
        ("KiB", Decimal(1 << 10)),
        ("KB", Decimal(1000)),
        ("B", Decimal(1)),
    ),
    is_whole=True,
    example="64KB or 1MiB",
)
SECONDS = Unit(
    "time",
    "s",
    (
        ("d", Decimal(86400)),
        ("h", Decimal(3600)),
        ("min", Decimal(60)),
        ("s", Decimal(1)),
        ("ms", Decimal("1e-3")),
        ("us", Decimal("1e-6")),
    ),
    is_whole=False,
    example="2s or 100ms",
)
BITS = Unit(
    "bandwidth",
    "bit",
    (
        ("Gbit", Decimal(10**9)),
        ("Mbit", Decimal(10**6)),
        ("Kbit", Decimal(1000)),
        ("bit", Decimal(1)),
    ),
    is_whole=False,
    example="10Gbit or 100Mbit",
)
SHARES = Unit(
    "share",
    "",
    (("", Decimal(1)), ("%", Decimal("0.01"))),
    is_whole=False,
    example="5% or 0.05",
)

LONGEST = 20 * 86400  # seconds: sockets and poll have 31 bits for milliseconds
_SHOWN = 100  # characters of a wrong text
_SMALLEST_PERCENT = 1e-6

NBytes = Annotated[int, BYTES]
Seconds = Annotated[float, SECONDS]
Bandwidth = Annotated[float, BITS]
Share = Annotated[float, SHARES]

# Few digits on purpose: "1e999999999" would otherwise be a whole number to compute for ever.
_QUANTITY = re.compile(r"([0-9]{1,30}(?:\.[0-9]{1,30})?(?:[eE][+-]?[0-9]{1,3})?)\s*([A-Za-z%]*)")


def parse_quantity(text: str, unit: Unit) -> float | int:
    """The number of seconds or bytes that `text` says; without a unit it is in the base unit.

    >>> parse_quantity("100ms", SECONDS), parse_quantity("64KB", BYTES)
    (0.1, 64000)

    Raises:
        ValueError: no number, an unknown unit, a negative value, or a part of a byte.
    """
    match = _QUANTITY.fullmatch(text.strip())
    if match is None:
        raise ValueError(f"expected a {unit.name} such as {unit.example}, got {text[:_SHOWN]!r}")
    number, symbol = Decimal(match[1]), match[2] or unit.base
    for name, scale in unit.scales:
        if name.lower() == symbol.lower():
            value = number * scale
            break
    else:
        raise ValueError(
            f"unknown unit {symbol!r} in {text!r}; a {unit.name} takes {unit.accepted}"
        )
    if not unit.is_whole:
        if not math.isfinite(float(value)):
            raise ValueError(f"{text!r} is no finite {unit.name}")
        if unit is SECONDS and value > LONGEST:
            raise ValueError(f"{text[:_SHOWN]!r} is too long: 20 days (20d) at most")
        return float(value)
    if value >= 1 << 63:
        raise ValueError(f"{text!r} is more than any {unit.name} can be")
    if value != value.to_integral_value():
        raise ValueError(f"{text!r} is not a whole number of bytes")
    return int(value)


def format_quantity(value: float, unit: Unit) -> str:
    """The text of `value` in the largest unit that gives a whole number; reads back equal.

    >>> format_quantity(0.1, SECONDS), format_quantity(65536, BYTES), format_quantity(90.5, SECONDS)
    ('100ms', '64KiB', '90500ms')
    >>> format_quantity(0.001, SHARES)
    '0.1%'
    """
    exact = Decimal(repr(value)) if isinstance(value, float) else Decimal(value)
    for symbol, scale in unit.scales:
        count = exact / scale
        if value and count == count.to_integral_value() and 1 <= count < 100_000:
            text = f"{int(count)}{symbol}"
            if parse_quantity(text, unit) == value:
                return text
    # Of the smallest shares the bare number is easier to read, and short enough to read back.
    if unit is SHARES and value >= _SMALLEST_PERCENT:
        text = f"{(100 * exact).normalize():f}%"
        if parse_quantity(text, unit) == value:
            return text
    return f"{value!r}{unit.base}"
