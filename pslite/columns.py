"""Rows of text as a table for a terminal."""

from __future__ import annotations

import math
from collections.abc import Sequence


def columns(rows: Sequence[Sequence[str]], *, left: int = 1) -> str:
    """`rows`, the first of them the headings, in columns two spaces apart.

    Args:
        left: how many columns, from the first, are set to the left; numbers stand to the right.

    >>> print(columns([["table", "rows"], ["user", "7"]]))
    table  rows
    user      7
    """
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    lines = []
    for row in rows:
        cells = [
            text.ljust(width) if place < left else text.rjust(width)
            for place, (text, width) in enumerate(zip(row, widths, strict=True))
        ]
        lines.append("  ".join(cells).rstrip())
    return "\n".join(lines)


def counted(number: float) -> str:
    """A count that people can read: 950, 12 345, 1.23 M.

    >>> counted(950), counted(12345), counted(1234567)
    ('950', '12 345', '1.23 M')
    """
    if number < 1_000_000:
        return f"{number:,.0f}".replace(",", " ")
    power = min(4, int(math.log10(number)) // 3)
    return f"{number / 1000**power:.3g} {'MGT'[power - 2]}"


def sized(nbytes: float) -> str:
    """Bytes that people can read.

    >>> sized(512), sized(3 << 20)
    ('512 B', '3.0 MiB')
    """
    if nbytes < 1024:
        return f"{nbytes:.0f} B"
    power = min(4, int(math.log2(nbytes)) // 10)
    return f"{nbytes / 1024**power:.1f} {'KMGT'[power - 1]}iB"
