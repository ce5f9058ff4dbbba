"""What a record says of a request: whose it is, what it wants, and a fingerprint of the rest.

A request is known by its worker's rank and its timestamp there, which counts the worker's requests
about tables; each piece of a large one has a timestamp of its own. The fingerprint covers all that
may change values or answers: steps and clocks, keys, gradients. What only timing decides (which
pushes had no answer when a step ended, whether a push that was too stale is on its last try) is
left out.
"""

from __future__ import annotations

import struct
import zlib
from collections.abc import Sequence
from typing import NamedTuple

import numpy as np

from kv.table_protocol import Command
from van.message import Message

ENTRY = np.dtype(
    [
        ("timestamp", "<u4"),
        ("digest", "<u4"),
        ("rank", "<u2"),
        ("tables", "<u2"),
        ("command", "u1"),
    ]
)
"""An entry in a record: 13 bytes, without gaps."""

MOST_RANKS = 1 << 16
MOST_TIMESTAMPS = 1 << 32
_FORM = struct.Struct("<IIHHB")
_BY_TIMING = frozenset({"after", "again", "named", "coded"})  # keys of a request's body
_VERBS = {Command.STEP: "end of a step", Command.DEFINE: "definition", Command.SET_LR: "set_lr"}


class Entry(NamedTuple):
    """A request as a record has it; `tables` is the number of its list of tables there."""

    timestamp: int
    digest: int
    rank: int
    tables: int
    command: int

    def pack(self) -> bytes:
        """As in a record."""
        return _FORM.pack(*self)


def digest_of(message: Message) -> int:
    """The fingerprint of a request whose key lists are in their places: 32 bits."""
    meta = message.meta
    said = meta.body
    if isinstance(said, dict):
        said = [item for item in said.items() if item[0] not in _BY_TIMING] or None
    digest = zlib.crc32(repr((meta.clocks, said)).encode())
    for array in message.arrays:
        digest = zlib.crc32(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data, digest)
    return digest


def describe(command: int, tables: Sequence[str], rank: int, timestamp: int) -> str:
    """A request, for people.

    >>> describe(Command.PUSH, ["user", "w"], 1, 17)
    'push of worker 1 (its request 17) about user, w'
    >>> describe(Command.STEP, [], 0, 3)
    'end of a step of worker 0 (its request 3)'
    """
    try:
        verb = _VERBS.get(Command(command)) or Command(command).name.lower()
    except ValueError:
        verb = f"command {command}"
    about = f" about {', '.join(tables)}" if tables else ""
    return f"{verb} of worker {rank} (its request {timestamp}){about}"
