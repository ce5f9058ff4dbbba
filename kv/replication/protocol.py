"""What servers and the scheduler say to each other about slots and copies.

    app           command        from -> to            body               arrays
    replication   RECORD         owner -> backup       `records.Record`   as the record has
    replication   ACKNOWLEDGED   backup -> owner       log, n, full       -
    placement     ORDER          scheduler -> owner    `Order.pack`       -
    placement     DONE           owner -> scheduler    order              -
    placement     OVER           scheduler -> owner    order, map         -
    placement     LEAVE          scheduler -> server   -                  -
    placement     FULL           owner -> scheduler    rank, life, why    -

`log` tells a log from former ones between the same lives; `full` is why the record after `n` finds
no room, else nil. `map` is the version of a map that has heard of the order's end: said to who
reports an order that is none any more.
Nobody answers: what is lost is said again, records by their log, orders by the scheduler, that a
fill is done by its owner, until it hears that the order is over.
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
    FULL = 6
    OVER = 7
