"""What workers and servers say to each other about tables, above the message header.

    command  arrays, per table            body                  answer
    DEFINE   -                            definition            -
    PULL     keys                         create                values per table
    PUSH     keys, gradients              -                     -
    STEP     -                            clock                 -
    FINISH   -                            -                     -
    ASSIGN   keys, values                 -                     -
    DELETE   keys                         -                     count in body
    SIZE     -                            -                     count in body
    SCAN     -                            start, count          keys, values; next in body

`meta.clocks` names the tables, in the order of the arrays, with the worker's step; an answer has
the tables' clocks there.
"""

from __future__ import annotations

import hashlib
from enum import IntEnum

TABLES_APP = 1 << 32
"""Application id of tables, out of the way of users' own small ones."""


class Command(IntEnum):
    """`meta.cmd` of a request about tables."""

    DEFINE = 1
    PULL = 2
    PUSH = 3
    STEP = 4
    FINISH = 5
    ASSIGN = 6
    DELETE = 7
    SIZE = 8
    SCAN = 9


def table_id(name: str) -> int:
    """How the header names a table: the same on every node, whoever defines what first."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")
