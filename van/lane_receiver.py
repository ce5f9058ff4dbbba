"""The receiving half of a connection of the local lane: packets in, messages out.

A frame is inline in the packet of its message, or follows in packets of its own, or lies in shared
memory of the other side's, which is mapped read-only and read in place. A region is given back
when the last view of it is gone. Nothing that is read is trusted: slabs must be sealed and
allocated, regions must lie in them.
"""

from __future__ import annotations

import mmap
import os
import socket
import struct
from collections import deque
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from van import lane_packets as packets
from van.codec import Descriptor, decode_array, decode_packed, reserve
from van.config import VanConfig
from van.errors import CodecError, ProtocolVersionError
from van.headers import HeaderReader
from van.lane_packets import INLINE_PLACE, STREAMED_PLACE, PacketKind, Tables
from van.message import Message, Meta
from van.shared_memory import MOST_SLABS, attach_slab, region
from van.slabs import Place

_ANCILLARY = socket.CMSG_SPACE(MOST_SLABS * struct.calcsize("i"))
_CLOSE_ON_EXEC = int(socket.MSG_CMSG_CLOEXEC)
_CUT_DATA, _CUT_RIGHTS = int(socket.MSG_TRUNC), int(socket.MSG_CTRUNC)  # flags of `socket` are slow
_LONGEST_ADDRESS = 1024
_MOST_ATTACHED = 1024  # slabs of one peer: growing as they do, no honest one has so many


class ConnectionEndedError(Exception):
    """The other side has closed, or broke the rules: the text says which; empty is a plain end."""


class _Reading:
    """A message of which frames are still to come in packets of their own."""

    def __init__(self, header: bytearray | bytes, arrays: list[Any]) -> None:
        self.header, self.arrays = header, arrays
        self.meta: Meta | None = None
        self.descriptors: Sequence[Descriptor] = ()
        self.targets: deque[memoryview] = deque()  # what is still to be filled, in order


class LaneReceiver:
    """Reads one connected socket.

    Args:
        sock: connected, of type SOCK_SEQPACKET, not blocking.
        config: limits.
        on_hello: called with the address of the node that has connected.
        on_unused: called, by any thread, with a region of the other side's that nobody reads.
        take_back: called with a region of ours that the other side gives back; False when it had
            none such.
    """

    def __init__(
        self,
        sock: socket.socket,
        config: VanConfig,
        on_hello: Callable[[str], None],
        on_unused: Callable[[Place], None],
        take_back: Callable[[Place], bool],
    ) -> None:
        self._sock, self._config = sock, config
        self._on_hello, self._on_unused, self._take_back = on_hello, on_unused, take_back
        self._read_header = HeaderReader(config).read
        self._attached: dict[int, mmap.mmap] = {}
        self._reading: _Reading | None = None

    def receive(self) -> Message | None:
        """Read one packet, which there must be; a message, if one is complete.

        Raises:
            ConnectionEndedError: the other side has closed or breaks the rules.
            CodecError: a message that is none of ours; the connection goes on.
        """
        if self._reading is not None:
            return self._receive_part(self._reading)
        try:
            data, ancillary, flags, _ = self._sock.recvmsg(
                packets.LARGEST, _ANCILLARY, _CLOSE_ON_EXEC
            )
        except BlockingIOError:
            return None
        except OSError as error:
            raise ConnectionEndedError("") from error
        descriptors = _received(ancillary) if ancillary else []
        try:
            if flags & _CUT_DATA:
                raise ConnectionEndedError("a packet that is too large")
            if flags & _CUT_RIGHTS:
                raise ConnectionEndedError(
                    "its shared memory needs more descriptors than this process may still open; "
                    "see ulimit -n"
                )
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
            if packet.places:
                return self._read(packet, memoryview(data))
            return decode_packed(data, packet.body, packet.header_size, self._read_header)[0]
        if packet.kind is PacketKind.HELLO:
            self._take_hello(packet, data)
        return None

    def _take_hello(self, packet: packets.Packet, data: bytes) -> None:
        raw = data[packet.body : packet.body + min(packet.header_size, _LONGEST_ADDRESS)]
        self._on_hello(raw.decode("utf-8", "replace"))

    def _take_tables(self, tables: Tables, descriptors: list[int]) -> None:
        if len(tables.slabs) != len(descriptors):
            raise CodecError(f"{len(descriptors)} descriptors for {len(tables.slabs)} slabs")
        for (number, size), fd in zip(tables.slabs, descriptors, strict=True):
            if number in self._attached or len(self._attached) == _MOST_ATTACHED:
                raise CodecError("a slab a second time, or one too many")
            self._attached[number] = attach_slab(fd, size)
        for place in tables.returns:
            if not self._take_back(Place(*place)):
                raise CodecError("a region given back that was not sent")
        for number in tables.drops:
            self._attached.pop(number, None)

    def _read(self, packet: packets.Packet, data: memoryview) -> Message | None:
        """The message of a packet whose frames are not all in it, or None while some follow."""
        places, body = packet.places, packet.body
        if packet.header_size > self._config.max_header:
            raise ConnectionEndedError("a header over [van] max_header")
        if places[0] == INLINE_PLACE:
            try:
                header, body = packets.inline(data, body, packet.header_size)
                return self._read_arrays(bytes(header), places[1:], data, body)
            except ProtocolVersionError:
                raise
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
        self, header: bytes, places: Sequence[tuple[int, int]], data: memoryview, body: int
    ) -> Message | None:
        try:
            meta, descriptors = self._read_header(header)
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
        if not targets:
            return Message(meta, arrays)
        targets = deque(target for target in targets if target.nbytes)
        if not targets:
            return _message(meta, arrays, descriptors)
        reading = self._reading = _Reading(b"", arrays)
        reading.meta, reading.descriptors, reading.targets = meta, descriptors, targets
        return None

    def _shared(self, place: tuple[int, int], nbytes: int) -> Any:
        where = packets.slab_of(place)
        memory = self._attached.get(where.slab)
        if memory is None or where.offset + nbytes > len(memory):
            raise CodecError("a region that lies in no shared memory")
        if not nbytes:
            self._on_unused(where)
            return b""
        return region(memory, where, nbytes, self._on_unused).view(np.ndarray)

    def _receive_part(self, reading: _Reading) -> Message | None:
        target = reading.targets[0]
        try:
            count, ancillary, flags, _ = self._sock.recvmsg_into(
                [target], _ANCILLARY, _CLOSE_ON_EXEC
            )
        except BlockingIOError:
            return None
        except OSError as error:
            raise ConnectionEndedError("") from error
        for fd in _received(ancillary):
            os.close(fd)
        if not count or flags & _CUT_DATA or ancillary:
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
        """Give up the other side's memory; arrays that were received stay valid."""
        self._attached.clear()


def _received(ancillary: list[tuple[int, int, bytes]]) -> list[int]:
    found: list[int] = []
    for level, kind, raw in ancillary:
        if level == socket.SOL_SOCKET and kind == socket.SCM_RIGHTS:
            found += struct.unpack(f"={len(raw) // 4}i", raw[: len(raw) // 4 * 4])
    return found


def _message(meta: Meta, arrays: list[Any], descriptors: Sequence[Descriptor]) -> Message:
    whole: list[NDArray[Any]] = []
    for array, descriptor in zip(arrays, descriptors, strict=True):
        is_raw = array.dtype == np.uint8 and array.flags.writeable
        whole.append(decode_array(array.data, descriptor) if is_raw else array)
    return Message(meta, whole)
