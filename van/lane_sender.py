"""The sending half of a connection of the local lane: parcels in, packets out.

Small frames go through the socket, large ones are copied into shared memory, once; when that is
used up they go through the socket in parts, so that a receiver that keeps what it got can make a
sender slow but never stop it. Messages keep their order.

Owned by one thread at a time, except `pack`, `give_back` and `empty`, which any thread may call.
"""

from __future__ import annotations

import math
import os
import socket
import struct
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from van import lane_packets as packets
from van.codec import Frame
from van.lane_packets import INLINE_PLACE, STREAMED_PLACE, PacketKind, Tables
from van.lane_receiver import ConnectionEndedError
from van.outgoing import Outgoing, Parcel
from van.shared_memory import SlabPool
from van.slabs import Place

_NO_SIGNAL = int(socket.MSG_NOSIGNAL)
_SMALL = 16 << 10  # smaller frames are cheaper through the socket


class LaneSender:
    """Writes one connected socket.

    Args:
        sock: connected, of type SOCK_SEQPACKET, not blocking.
        budget: bytes of shared memory.

    Attributes:
        is_torn: work on a packet has begun and not ended. Where nobody is at work that means an
            exception out of a signal handler came in between: a descriptor may have parted from
            its packet, so the connection must end.
    """

    def __init__(self, sock: socket.socket, budget: int) -> None:
        self.waiting = Outgoing()
        self.is_torn = False
        self.pool = SlabPool(budget)
        self._sock = sock
        self._packet: list[Frame] | None = None  # what the socket did not take
        self._descriptors: list[int] = []  # that go with it
        self._parts: deque[memoryview] = deque()  # streamed frames of the message under way
        self._returns: deque[Place] = deque()  # filled where the last view of a region ends

    def greet(self, address: str) -> None:
        """Say, as the first packet, who has connected."""
        self._packet = packets.pack(PacketKind.HELLO, [address.encode()])

    def pack(self, frames: Sequence[Frame], nbytes: int) -> Sequence[Place]:
        """Where each frame of a message goes; large ones are copied into shared memory.

        Args:
            frames: header and arrays.
            nbytes: of all.
        Returns:
            Nothing when all frames fit into the packet. Any thread.
        """
        if nbytes < _SMALL or (
            nbytes + packets.ALIGNMENT * len(frames) <= packets.INLINE
            and all(frame.nbytes < _SMALL for frame in frames[1:])  # type: ignore[union-attr]
        ):
            return ()
        places = [INLINE_PLACE if len(frames[0]) < packets.INLINE // 2 else STREAMED_PLACE]
        room = packets.INLINE // 2
        for frame in frames[1:]:
            assert isinstance(frame, np.ndarray)
            if frame.nbytes < _SMALL and frame.nbytes + packets.ALIGNMENT <= room:
                room -= frame.nbytes + packets.ALIGNMENT
                places.append(INLINE_PLACE)
                continue
            place = self.pool.find(frame) or self.pool.copy_in(frame)
            places.append(STREAMED_PLACE if place is None else packets.slab_place(place))
        return places

    def give_back(self, places: Sequence[Place]) -> None:
        """Free what `pack` took: the message will not be sent here. Any thread."""
        for place in places:
            if place not in (INLINE_PLACE, STREAMED_PLACE):
                self.pool.give_back(packets.slab_of(place))

    def empty(self, shape: tuple[int, ...], dtype: np.dtype[Any]) -> NDArray[Any] | None:
        """A writable array in memory that the other side sees, if there is some. Any thread."""
        nbytes = math.prod(shape) * dtype.itemsize
        raw = self.pool.empty(nbytes) if nbytes >= _SMALL else None
        return None if raw is None else raw.view(dtype).reshape(shape)

    def post(self, parcel: Parcel) -> bool:
        """Send `parcel`, or let it wait; True when it has left whole.

        Raises:
            ConnectionEndedError: the other side has closed.
        """
        if self._packet is not None or self._parts or self.waiting:
            self.waiting.add(parcel)  # `is_blocked_after_pump` is called when it may succeed
            return False
        self.is_torn = True
        packet = self._begin(parcel)
        if self._write(packet):
            self.is_torn = False
            return not self._parts or not self.is_blocked_after_pump()
        self._packet = packet
        self.is_torn = False
        return False

    def is_blocked_after_pump(self) -> bool:
        """Send what the socket takes now; whether something must wait until it takes more.

        Raises:
            ConnectionEndedError: the other side has closed.
        """
        self.is_torn = True
        is_blocked = self._pump()
        self.is_torn = False
        return is_blocked

    def _pump(self) -> bool:
        while True:
            if self._packet is None:
                if self._parts:
                    self._packet = self._next_part()
                elif self.waiting:
                    parcel = self.waiting.first()
                    self.waiting.drop_first()
                    self._packet = self._begin(parcel)
                else:
                    return False
            if not self._write(self._packet):
                return True
            self._packet = None

    @property
    def pending(self) -> int:
        """Messages that have not left whole."""
        return len(self.waiting) + (self._packet is not None or bool(self._parts))

    def _write(self, packet: list[Frame]) -> bool:
        rights: list[tuple[int, int, bytes]] = []
        if self._descriptors:
            raw = struct.pack(f"={len(self._descriptors)}i", *self._descriptors)
            rights = [(socket.SOL_SOCKET, socket.SCM_RIGHTS, raw)]
        try:
            self._sock.sendmsg(packet, rights, _NO_SIGNAL)  # type: ignore[arg-type]
        except BlockingIOError:
            return False
        except OSError as error:
            raise ConnectionEndedError("") from error
        if self._descriptors:
            self._close_descriptors()
        return True

    def _close_descriptors(self) -> None:
        while self._descriptors:  # none is closed twice, even if this is interrupted
            os.close(self._descriptors.pop())

    def _begin(self, parcel: Parcel) -> list[Frame]:
        """The first packet of a message; what does not fit in is left in `_parts`."""
        if parcel.places:
            for place, frame in zip(parcel.places, parcel.frames, strict=True):
                if place == STREAMED_PLACE:
                    raw = memoryview(frame) if type(frame) is bytes else _bytes_of(frame)
                    if raw.nbytes:  # an empty packet would look like the end
                        self._parts.append(raw)
        return packets.pack(PacketKind.MESSAGE, parcel.frames, parcel.places, self._tables())

    def _next_part(self) -> list[Frame]:
        frame = self._parts.popleft()
        if frame.nbytes > packets.LARGEST:
            self._parts.appendleft(frame[packets.LARGEST :])
        return [frame[: packets.LARGEST]]

    def _tables(self) -> Tables:
        if not self._returns and not self.pool.has_news:
            return packets.NO_TABLES
        fresh, dropped = self.pool.news()
        self._descriptors = [fd for _, _, fd in fresh]
        count = min(len(self._returns), packets.MOST_RETURNS)
        returns = [self._returns.popleft() for _ in range(count)]
        return Tables([(number, size) for number, size, _ in fresh], returns, dropped)

    def add_return(self, place: Place) -> None:
        """Give back a region of the other side's with the next packet. Any thread."""
        self._returns.append(place)

    @property
    def returnable(self) -> int:
        """Regions of the other side to be given back."""
        return len(self._returns)

    def send_returns(self) -> None:
        """Give back what nobody reads, if no message is about to take it along. See `pump`."""
        if self._returns and self._packet is None and not self._parts and not self.waiting:
            self.is_torn = True
            self._packet = packets.pack(PacketKind.NOTICE, tables=self._tables())
            self.is_torn = False

    def close(self) -> None:
        """Give up the memory."""
        self.pool.close()
        self._close_descriptors()


def _bytes_of(array: Any) -> memoryview:
    view: memoryview = array.reshape(-1).view(np.uint8).data
    return view
