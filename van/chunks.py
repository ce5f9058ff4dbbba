"""Large messages in pieces, so that an urgent one can pass between two of them.

A piece is a message of its own: `chunk` = (its number, how many there are), `timestamp` = which
message of the sender it belongs to, and arrays of bytes. The first array of piece 0 is the header
of the whole message; all others, in order, are the bytes of its arrays one after another.

Pure: frames in, frames out; messages in, a message out. Pieces of one connection come in order, as
ZeroMQ sends them; what has a gap is refused.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from van.buffers import Buffers
from van.codec import Descriptor, Frame, decode_header, encode
from van.config import VanConfig
from van.errors import CodecError
from van.message import UNASSIGNED, Message, Meta

_SET_OVERHEAD, _HEADER_FACTOR = 1024, 8  # bytes that an open set takes beside its arrays, roughly
_OPEN_SETS = 64  # incomplete messages of one connection; more are no work of ours


def cut(meta: Meta, frames: Sequence[Frame], serial: int, config: VanConfig) -> list[list[Frame]]:
    """The frames of the pieces that carry the message `meta` with `frames`.

    Args:
        meta: of the message.
        frames: of the message, as `encode` returns them.
        serial: a number that no other message under way from this node has.
        config: `chunk` is how many bytes of arrays one piece carries.
    """
    slices: list[list[NDArray[np.uint8]]] = [[]]
    room = config.chunk
    for frame in frames[1:]:
        raw = np.asarray(frame).reshape(-1).view(np.uint8)
        start = 0
        while start < raw.size:
            if room == 0 or len(slices[-1]) == config.max_frames - 1:  # the header is one too
                slices.append([])
                room = config.chunk
            part = raw[start : start + room]
            slices[-1].append(part)
            start += part.size
            room -= part.size
    header = np.frombuffer(frames[0], np.uint8)
    pieces = []
    for number, parts in enumerate(slices):
        piece = Meta(
            sender=meta.sender,
            recipient=meta.recipient,
            incarnation=meta.incarnation,
            recipient_incarnation=meta.recipient_incarnation,
            timestamp=serial,
            priority=meta.priority,
            chunk=(number, len(slices)),
        )
        arrays: list[NDArray[Any]] = [*parts] if number else [header, *parts]
        pieces.append(encode(Message(piece, arrays), config))
    return pieces


class _Set:
    """The pieces of one message that have come.

    Memory for an array is taken when its first byte is there, and is touched only as bytes come:
    a peer cannot make this node hold more than it has sent, and what the pool keeps in any case.
    """

    def __init__(self, first: Message, config: VanConfig, buffers: Buffers) -> None:
        if not first.arrays:
            raise CodecError("a first piece without the header of its message")
        header = np.ascontiguousarray(first.arrays[0]).view(np.uint8).tobytes()
        self.meta, self._descriptors = decode_header(header, config)
        if self.meta.chunk[1] != 1:
            raise CodecError("a piece of a piece")
        self.owner = (first.meta.sender, first.meta.incarnation)
        self.count = first.meta.chunk[1]
        self.next = 0
        self.held = _SET_OVERHEAD + _HEADER_FACTOR * len(header)  # bytes
        self._buffers = buffers
        self._arrays: list[NDArray[np.uint8]] = []
        self._filled = 0  # bytes of the last of `_arrays`

    def add(self, parts: Sequence[NDArray[Any]]) -> None:
        """Take the bytes of the next piece."""
        for part in parts:
            raw = part.reshape(-1).view(np.uint8)
            while raw.size:
                target = self._target()
                taken = raw[: target.size - self._filled]
                target[self._filled : self._filled + taken.size] = taken
                self._filled += taken.size
                self.held += taken.size
                raw = raw[taken.size :]
        self.next += 1

    def _target(self) -> NDArray[np.uint8]:
        """The array that the next byte belongs to."""
        while not self._arrays or self._filled == self._arrays[-1].size:
            self._open()
        return self._arrays[-1]

    def _open(self) -> None:
        if len(self._arrays) == len(self._descriptors):
            raise CodecError("pieces with more bytes than their message has")
        nbytes = self._descriptors[len(self._arrays)][2]
        try:
            self._arrays.append(self._buffers.empty((nbytes,), np.uint8))
        except MemoryError:
            raise CodecError(f"no memory for an array of {nbytes} bytes") from None
        self._filled = 0

    def message(self) -> Message:
        """The whole message, when all pieces are there."""
        while len(self._arrays) < len(self._descriptors):
            if self._arrays and self._filled < self._arrays[-1].size:
                break
            self._open()  # arrays without bytes
        if len(self._arrays) < len(self._descriptors) or (
            self._arrays and self._filled < self._arrays[-1].size
        ):
            raise CodecError("pieces with fewer bytes than their message has")
        arrays = [_whole(a, d) for a, d in zip(self._arrays, self._descriptors, strict=True)]
        return Message(self.meta, arrays, is_ours=True)


def _whole(raw: NDArray[np.uint8], descriptor: Descriptor) -> NDArray[Any]:
    dtype, shape, _ = descriptor
    array = raw.view(dtype).reshape(shape)
    array.flags.writeable = False
    return array


class Reassembler:
    """Messages of the pieces that come over many connections.

    Args:
        config: limits; incomplete messages may hold twice `max_frame` together. Beyond that, the
            one that has waited longest is forgotten.
    """

    def __init__(self, config: VanConfig) -> None:
        self._config = config
        self._buffers = Buffers()
        self._most_held = 2 * config.max_frame
        self._sets: dict[bytes, dict[int, _Set]] = {}
        self._held = 0

    @property
    def held(self) -> int:
        """Bytes of incomplete messages."""
        return self._held

    def add(self, connection: bytes, piece: Message) -> Message | None:
        """The message that `piece` completes, if it does.

        Raises:
            CodecError: not a piece, or not the one that comes next.
        """
        number, count = piece.meta.chunk
        if not 0 <= number < count:
            raise CodecError(f"piece {number} of {count}")
        serial = piece.meta.timestamp
        if number == 0:
            self._begin(connection, serial, piece)
        sets = self._sets.get(connection, {})
        whole = sets.get(serial)
        if whole is None or whole.next != number or whole.count != count:
            self._forget(connection, serial)
            raise CodecError(f"piece {number} of {count} does not follow what came before")
        before = whole.held
        try:
            whole.add(piece.arrays[1:] if number == 0 else piece.arrays)
            if whole.next == count:
                message = whole.message()
                self._forget(connection, serial, before)
                return message
        except CodecError:
            self._forget(connection, serial, before)
            raise
        self._held += whole.held - before
        self._limit(connection, serial)
        return None

    def _begin(self, connection: bytes, serial: int, piece: Message) -> None:
        started = _Set(piece, self._config, self._buffers)
        for other, sets in list(self._sets.items()) if started.owner[0] != UNASSIGNED else ():
            # The same node on a new connection, or in a new life: the rest will not come.
            for key, one in list(sets.items()):
                if one.owner[0] == started.owner[0] and (
                    other != connection or one.owner != started.owner
                ):
                    self._forget(other, key)
        sets = self._sets.setdefault(connection, {})
        if serial in sets or len(sets) >= _OPEN_SETS:
            raise CodecError("a message begins a second time, or one too many is open")
        sets[serial] = started
        self._held += started.held

    def _forget(self, connection: bytes, serial: int, held: int | None = None) -> None:
        sets = self._sets.get(connection)
        gone = None if sets is None else sets.pop(serial, None)
        if gone is not None:
            self._held -= gone.held if held is None else held
        if sets is not None and not sets:
            del self._sets[connection]

    def _limit(self, connection: bytes, serial: int) -> None:
        """Forget the stalest when all together hold too much."""
        sets = self._sets[connection]
        sets[serial] = sets.pop(serial)  # the last that moved is the last in order
        self._sets[connection] = self._sets.pop(connection)
        while self._held > self._most_held:
            stalest = next(iter(self._sets))
            self._forget(stalest, next(iter(self._sets[stalest])))

    def validate(self) -> None:
        """Check what must always hold."""
        sets = [one for group in self._sets.values() for one in group.values()]
        assert self._held == sum(one.held for one in sets)
        assert all(self._sets.values())
        assert all(0 < one.next < one.count for one in sets)
