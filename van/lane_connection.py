"""One connection of the local lane: messages and shared memory between two nodes of a host.

Small frames go through the socket, large ones through memory of the sender's that the receiver
reads in place; when that is used up, large frames go through the socket in parts, so that a
receiver that keeps what it got can make a sender slow but never stop it. All messages of a
connection keep their order.

Owned by one thread at a time, except `pack` and `empty`, which any thread may call.
"""

from __future__ import annotations

import math
import mmap
import os
import socket
import struct
from collections import deque
from collections.abc import Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from van import lane_packets as packets
from van.codec import Descriptor, Frame, decode_array, decode_header, reserve
from van.config import VanConfig
from van.errors import CodecError, ProtocolVersionError
from van.lane_packets import INLINE_PLACE, STREAMED_PLACE, PacketKind, Tables
from van.message import Message, Meta
from van.outgoing import Outgoing, Parcel
from van.shared_memory import MOST_SLABS, SlabPool, attach_slab, region
from van.slabs import Place

_DESCRIPTORS = struct.Struct(f"={MOST_SLABS}i")
_ANCILLARY = socket.CMSG_SPACE(_DESCRIPTORS.size)
_MOST_ATTACHED = 1024  # slabs of one peer: growing as they do, no honest one has so many
_NO_SIGNAL = int(socket.MSG_NOSIGNAL)
_CUT_OFF = int(socket.MSG_TRUNC | socket.MSG_CTRUNC)
_SMALL = 16 << 10  # smaller frames are cheaper through the socket


class ConnectionEndedError(Exception):
    """The other side has closed, or broke the rules: the text says which; empty is a plain end."""


class _Reading:
    """A message of which frames are still to come in packets of their own."""

    def __init__(self, header: bytearray | bytes, arrays: list[Any]) -> None:
        self.header, self.arrays = header, arrays
        self.meta: Meta | None = None
        self.descriptors: list[Descriptor] = []
        self.targets: deque[memoryview] = deque()  # what is still to be filled, in order


class LaneConnection:
    """A connected socket, the memory sent from, and the memory of the other side.

    Args:
        sock: connected, of type SOCK_SEQPACKET.
        config: limits.
        address: of the node at the other end; of an accepted one the first packet tells it.
        returning: where this adds itself when it has regions to give back.
    """

    def __init__(
        self,
        sock: socket.socket,
        config: VanConfig,
        address: str,
        returning: set[LaneConnection],
    ) -> None:
        sock.setblocking(False)
        sock.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 4 * packets.LARGEST)
        self.address = address
        self.waiting = Outgoing()
        self.is_ended = False
        self.pool = SlabPool(config.shared_memory)
        self._sock, self._config = sock, config
        self._packet: list[Frame] | None = None  # half sent: what the socket did not take
        self._descriptors: list[int] = []
        self._parts: deque[memoryview] = deque()  # streamed frames of the message under way
        self._attached: dict[int, mmap.mmap] = {}
        self._returns: deque[Place] = deque()  # filled where the last view of a region ends
        self._returning = returning
        self._reading: _Reading | None = None

    def fileno(self) -> int:
        return self._sock.fileno()

    def __repr__(self) -> str:
        return (
            f"<LaneConnection {self.address} waiting={len(self.waiting)} "
            f"shared={self.pool.size >> 20} MiB>"
        )

    # -- sending --------------------------------------------------------------------------

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
            self.waiting.add(parcel)
            return not self.is_blocked_after_pump()
        packet = self._begin(parcel)
        if self._write(packet):
            return not self._parts or not self.is_blocked_after_pump()
        self._packet = packet
        return False

    def is_blocked_after_pump(self) -> bool:
        """Send what the socket takes now; whether something must wait until it takes more.

        Raises:
            ConnectionEndedError: the other side has closed.
        """
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
            for fd in self._descriptors:
                os.close(fd)
            self._descriptors = []
        return True

    def _begin(self, parcel: Parcel) -> list[Frame]:
        """The first packet of a message; what does not fit in is left in `_parts`."""
        if parcel.places:
            for place, frame in zip(parcel.places, parcel.frames, strict=True):
                if place == STREAMED_PLACE and len(frame):
                    raw = memoryview(frame) if type(frame) is bytes else _bytes_of(frame)
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

    def _note_return(self, place: Place) -> None:
        self._returns.append(place)
        self._returning.add(self)

    @property
    def returnable(self) -> int:
        """Regions of the other side to be given back."""
        return len(self._returns)

    def send_returns(self) -> None:
        """Give back what nobody reads, if no message is about to take it along. See `pump`."""
        if self._returns and self._packet is None and not self._parts and not self.waiting:
            self._packet = packets.pack(PacketKind.NOTICE, tables=self._tables())

    # -- receiving ------------------------------------------------------------------------

    def receive(self) -> Message | None:
        """Read one packet, which there must be; a message, if one is complete.

        Raises:
            ConnectionEndedError: the other side has closed or breaks the rules.
            CodecError: a message that is none of ours; the connection goes on.
        """
        if self._reading is not None:
            return self._receive_part(self._reading)
        try:
            data, ancillary, flags, _ = self._sock.recvmsg(packets.LARGEST, _ANCILLARY)
        except BlockingIOError:
            return None
        except OSError as error:
            raise ConnectionEndedError("") from error
        descriptors = _received(ancillary) if ancillary else []
        try:
            if flags & _CUT_OFF:
                raise ConnectionEndedError("a packet that is too large")
            if not data:
                raise ConnectionEndedError("")
            packet = packets.unpack(data)
            if descriptors or packet.tables is not packets.NO_TABLES:
                self._take_tables(packet.tables, descriptors)
        except CodecError as error:
            raise ConnectionEndedError(str(error)) from None
        finally:
            for fd in descriptors:
                os.close(fd)
        if packet.kind is PacketKind.MESSAGE:
            return self._read(packet, memoryview(data))
        if packet.kind is PacketKind.HELLO:
            self._take_hello(packet, data)
        return None

    def _take_hello(self, packet: packets.Packet, data: bytes) -> None:
        if not self.address:
            raw = data[packet.body : packet.body + min(packet.header_size, 1024)]
            self.address = raw.decode("utf-8", "replace")

    def _take_tables(self, tables: Tables, descriptors: list[int]) -> None:
        if len(tables.slabs) != len(descriptors):
            raise CodecError(f"{len(descriptors)} descriptors for {len(tables.slabs)} slabs")
        for (number, size), fd in zip(tables.slabs, descriptors, strict=True):
            if number in self._attached or len(self._attached) == _MOST_ATTACHED:
                raise CodecError("a slab a second time, or one too many")
            self._attached[number] = attach_slab(fd, size)
        for place in tables.returns:
            if not self.pool.give_back(place):
                raise CodecError("a region given back that was not sent")
        for number in tables.drops:
            self._attached.pop(number, None)

    def _read(self, packet: packets.Packet, data: memoryview) -> Message | None:
        """The message of a packet, or, when frames of it follow, None for now."""
        places, body = packet.places, packet.body
        if not places:
            header, body = packets.inline(data, body, packet.header_size)
            meta, descriptors = decode_header(header, self._config)
            arrays = []
            for descriptor in descriptors:
                frame, body = packets.inline(data, body, descriptor[2])
                arrays.append(decode_array(frame, descriptor))
            return Message(meta, arrays)
        if packet.header_size > self._config.max_header:
            raise ConnectionEndedError("a header over [van] max_header")
        if places[0] == INLINE_PLACE:
            try:
                header, body = packets.inline(data, body, packet.header_size)
                return self._read_arrays(header, places[1:], data, body)
            except CodecError as error:
                # What would follow cannot be told from the next message.
                raise ConnectionEndedError(str(error)) from None
        if places[0] != STREAMED_PLACE or len(places) > self._config.max_frames + 1:
            raise ConnectionEndedError("a header that is nowhere")
        streamed = bytearray(packet.header_size)
        reading = self._reading = _Reading(streamed, [places[1:], data, body])
        reading.targets.append(memoryview(streamed))
        return None

    def _read_arrays(
        self, header: Any, places: Sequence[Place], data: memoryview, body: int
    ) -> Message | None:
        try:
            meta, descriptors = decode_header(header, self._config)
        except ProtocolVersionError:
            if STREAMED_PLACE in places:
                raise ConnectionEndedError("another version") from None
            raise
        if len(descriptors) != len(places):
            raise CodecError(f"{len(places)} arrays where the header says {len(descriptors)}")
        arrays: list[Any] = []
        targets: deque[memoryview] = deque()
        for place, descriptor in zip(places, descriptors, strict=True):
            if place == INLINE_PLACE:
                frame, body = packets.inline(data, body, descriptor[2])
                arrays.append(decode_array(frame, descriptor))
            elif place == STREAMED_PLACE:
                raw = reserve(descriptor[2])
                arrays.append(raw)
                targets.append(raw.data)
            else:
                arrays.append(decode_array(self._shared(place, descriptor[2]), descriptor))
        targets = deque(target for target in targets if target.nbytes)
        if not targets:
            return _message(meta, arrays, descriptors)
        reading = self._reading = _Reading(b"", arrays)
        reading.meta, reading.descriptors, reading.targets = meta, descriptors, targets
        return None

    def _shared(self, place: Place, nbytes: int) -> Any:
        where = packets.slab_of(place)
        memory = self._attached.get(where.slab)
        if memory is None or where.offset + nbytes > len(memory):
            raise CodecError("a region that lies in no shared memory")
        if not nbytes:
            self._note_return(where)
            return b""
        return region(memory, where, nbytes, self._note_return).view(np.ndarray)

    def _receive_part(self, reading: _Reading) -> Message | None:
        target = reading.targets[0]
        try:
            count, ancillary, flags, _ = self._sock.recvmsg_into([target], _ANCILLARY)
        except BlockingIOError:
            return None
        except OSError as error:
            raise ConnectionEndedError("") from error
        for fd in _received(ancillary):
            os.close(fd)
        if not count or flags & socket.MSG_TRUNC or ancillary:
            raise ConnectionEndedError("a part that is too large" if count else "")
        if count < target.nbytes:
            reading.targets[0] = target[count:]
            return None
        reading.targets.popleft()
        if reading.targets:
            return None
        self._reading = None
        if reading.meta is not None:
            return _message(reading.meta, reading.arrays, reading.descriptors)
        places, data, body = reading.arrays
        try:
            return self._read_arrays(bytes(reading.header), places, data, body)
        except CodecError as error:
            raise ConnectionEndedError(str(error)) from None

    def close(self) -> None:
        """End the connection; arrays that were received stay valid."""
        self.is_ended = True
        self._sock.close()
        self._attached.clear()
        self.pool.close()
        for fd in self._descriptors:
            os.close(fd)
        self._descriptors = []


def _bytes_of(array: Any) -> memoryview:
    view: memoryview = array.reshape(-1).view(np.uint8).data
    return view


def _received(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    found: list[int] = []
    for level, kind, raw in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found += struct.unpack(f"={len(raw) // 4}i", raw[: len(raw) // 4 * 4])
    return found


def _message(meta: Meta, arrays: list[Any], descriptors: list[Descriptor]) -> Message:
    whole: list[NDArray[Any]] = []
    for array, descriptor in zip(arrays, descriptors, strict=True):
        is_raw = array.dtype == np.uint8 and array.flags.writeable
        whole.append(decode_array(array.data, descriptor) if is_raw else array)
    return Message(meta, whole)
