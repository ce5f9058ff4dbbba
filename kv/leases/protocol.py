"""What workers say to the scheduler about training data. Everything may be said twice.

command   body                    answer
OPEN      set                     begun
ASK       data                    piece or none, over
SEE       data, piece, seen       -
FINISH    data, piece             counts
LOOK      -                       begun, read
RESUME    read                    -
"""

from __future__ import annotations

from enum import IntEnum

LEASES_APP = 103
"""Application id of the leases."""


class Command(IntEnum):
    """`meta.cmd` of a request about leases."""

    OPEN = 1
    ASK = 2
    SEE = 3
    FINISH = 4
    LOOK = 5
    RESUME = 6
