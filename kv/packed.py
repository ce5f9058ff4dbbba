"""How a message says which of its arrays are packets, and those of an answer unpacked.

`packed` in a body lists the numbers of arrays that are packets (`kv.compression.packets`), counted
when all key lists of the request are in their places.
"""

from __future__ import annotations

from collections.abc import Sequence

from kv.compression.coding import decode
from kv.errors import KVError, PacketError
from van.message import Message

PACKED = "packed"


def numbers_of(given: object) -> set[int]:
    """The numbers that a body has under PACKED.

    Raises:
        KVError: they are none.
    """
    if not isinstance(given, list | tuple) or any(type(n) is not int or n < 0 for n in given):
        raise KVError(f"packets are named by the numbers of their arrays, not by {given!r}")
    return set(given)


def unpack_values(message: Message, shapes: Sequence[tuple[int, int]]) -> None:
    """Bring the packets of an answer to the arrays that they stand for.

    Args:
        shapes: rows and floats in a row of each array.
    Raises:
        PacketError: a packet is none of that shape.
    """
    arrays, numbers = list(message.arrays), numbers_of(message.meta.body.get(PACKED))
    for number in numbers:
        if number >= min(len(arrays), len(shapes)):
            raise PacketError(f"no array {number} in an answer of {len(arrays)}")
        found = decode(arrays[number], *shapes[number])
        if found.kept is not None:
            raise PacketError("all rows that were pulled")
        arrays[number] = found.values
    message.is_ours = message.is_ours or len(numbers) == len(arrays)
    message.arrays = arrays
