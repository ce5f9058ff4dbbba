"""What servers and the scheduler say to each other about slots and copies.

    app           command        from -> to            body               arrays
    replication   RECORD         owner -> backup       `records.Record`   as the record has
    replication   ACKNOWLEDGED   backup -> owner       n                  -
    placement     ORDER          scheduler -> owner    `Order.pack`       -
    placement     DONE           owner -> scheduler    order              -
    placement     LEAVE          scheduler -> server   -                  -

Nobody answers: what is lost is said again, records by their log, orders by the scheduler.
"""

from __future__ import annotations

from enum import IntEnum

REPLICATION_APP = 101
PLACEMENT_APP = 102


class Said(IntEnum):
    """`meta.cmd` of these messages."""

    RECORD = 1
    ACKNOWLEDGED = 2
    ORDER = 3
    DONE = 4
    LEAVE = 5
