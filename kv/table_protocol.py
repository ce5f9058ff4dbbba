"""What workers and servers say to each other about tables, above the message header.

    command    arrays, per table          body                  answer
    DEFINE     -                          definition            -
    PULL       keys                       create                values per table
    PUSH       keys, gradients            weight, rest, again   -
    PUSH_PULL  keys, gradients            weight, rest, again   values per table
    STEP       -                          clock, after,         round in body
                                          position
    FINISH     -                          rests                 -
    BEGIN      -                          clock, position       completed, position in body
    ASSIGN     keys, values               -                     -
    DELETE     keys                       -                     count in body
    SIZE       -                          -                     count in body
    SCAN       -                          start, count          keys, values; next in body
    SET_LR     -                          lr                    -
    STATS      -                          -                     what `Engine.stats` says, in body
    META       keys                       -                     keys that have rows, versions,
                                                                shows, seconds seen
    CHANGED    -                          start, count, since,  keys, values; next, until in body
                                          until
    UNSENT     -                          count                 -
    JOIN       -                          step, position,       -
                                          rests, tables
    LEAVE      -                          -                     -
    REFRESH    keys, what is known        create, rank          values of changed rows per table,
               of their rows                                    then a bit for each row; known in
                                                                body

REFRESH is a PULL by whom has some of the rows already (`kv.refreshing`).

PUSH_PULL is a PUSH and then a PULL of the same keys, which may be held back as any other.

JOIN and LEAVE are said to dispatchers only: a worker goes through that one from now on, with its
steps done, its position, whether nobody waits for it, and the definitions of its tables; or it does
so no more, which is answered when servers have all that the dispatcher had of it.

UNSENT tells of pushes that a worker did not send because their gradients were no numbers.

`meta.clocks` names the tables, in the order of the arrays, with the worker's step; an answer has
the tables' clocks there, each with the server's rank and the version of its rows. In a push each
table's pair is the server's rank and the clock that came with the last pull from there, if any. A
push that is refused because that is too old is refused for now if `again` in its body says that
the worker will try again; the refusal has the clocks of now.

A worker that has tables of mode semi_sync says its `position`, the next round that it will end a
step in, and is answered the latest `round` that is open in one of them. A dispatcher says in
`steps` a list of [rank, clock, position], which is -1 of one that says none.

A worker whose process was started again asks by a BEGIN with a clock of nil how many steps of it
each server knows, and says by another with which it begins; of a dispatcher's worker that says
the `rank` and the `life`, its incarnation.

A dense table has no keys here: its values, either way, are its blocks on that server in increasing
number (`kv.dense`).

A large request may be cut into several, with timestamps of their own and disjoint keys. `rest` in
the body of a push says how many of its first tables are carried on from another, and so no further
step.

A piece that was cut anew about a dense table has `blocks` in its body, and the numbers of the
blocks, uint64 and increasing, where a sparse table has keys.

`after` in the body of a STEP names, as [timestamp, piece], the pushes to this server that had no
answer when it was made: they belong before it, though it may overtake them.

A key list may come in other forms (`kv.keylists`). `meta.key_list`, if it is not 0, is the
signature of all key lists of the request: with the keys present the server remembers them under it;
with `named` in the body they are absent, and those remembered are meant. `coded` in the body lists
the numbers of arrays that are keys as differences, in bytes. `packed` lists those that are values
in fewer bytes (`kv.compression`), counted when all keys are there; of an answer, too.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
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
    SET_LR = 10
    STATS = 11
    PUSH_PULL = 12
    META = 13
    CHANGED = 14
    BEGIN = 15
    UNSENT = 16
    REFRESH = 17
    JOIN = 18
    LEAVE = 19


WITH_VALUES = (Command.PUSH, Command.PUSH_PULL, Command.ASSIGN, Command.REFRESH)
"""Commands whose arrays are keys and something of each row; those of the others are keys alone."""


WITH_KEYS = frozenset(map(int, (*WITH_VALUES, Command.PULL, Command.DELETE, Command.META)))
"""Commands about keys."""


_LOOKS = (Command.SIZE, Command.SCAN, Command.STATS, Command.META, Command.CHANGED)
READS = frozenset(map(int, (Command.PULL, Command.REFRESH, *_LOOKS)))
"""Commands that change nothing, and so are simply done again when they are repeated.

A pull may make rows; that a second one finds them is no change to anybody.
"""


STEPS = frozenset(map(int, (Command.STEP, Command.FINISH, Command.BEGIN)))
"""Commands about a worker's steps, which may close rounds of all tables."""


PUSHES = (Command.PUSH, Command.PUSH_PULL)
"""Commands that count as a push of the worker's step."""


def table_id(name: str) -> int:
    """How the header names a table: the same on every node, whoever defines what first."""
    return int.from_bytes(hashlib.blake2b(name.encode(), digest_size=8).digest(), "little")


def key_places(is_dense: Sequence[bool], has_values: bool) -> list[int]:
    """Which arrays of a complete request are keys, given which of its tables are dense.

    >>> key_places([False, True, False], has_values=True)  # keys, values, blocks, keys, values
    [0, 3]
    >>> key_places([False, True, False], has_values=False)
    [0, 1]
    """
    places, position = [], 0
    for dense in is_dense:
        if not dense:
            places.append(position)
            position += 1
        position += has_values
    return places
