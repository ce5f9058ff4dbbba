"""One connection of the local lane between two nodes of a host, for both directions."""

from __future__ import annotations

import socket

from van import lane_packets as packets
from van.config import VanConfig
from van.errors import CodecError
from van.lane_receiver import ConnectionEndedError, LaneReceiver
from van.lane_sender import LaneSender
from van.message import Message
from van.slabs import Place


class LaneConnection(LaneSender):
    """A connected socket, the memory sent from, and the memory of the other side.

    Args:
        sock: connected, of type SOCK_SEQPACKET.
        config: limits.
        address: of the node at the other end; of an accepted one the first packet tells it.
        returning: where this adds itself when it has regions to give back.

    Attributes:
        fd: of the socket, also when it is closed.
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
        super().__init__(sock, config.shared_memory)
        self.fd = sock.fileno()
        self.address = address
        self.is_ended = False
        self._returning = returning
        self._is_reading = False
        self._receiver = LaneReceiver(
            sock, config, self._note_hello, self.add_return, self.pool.give_back
        )

    def _note_hello(self, address: str) -> None:
        self.address = self.address or address

    def add_return(self, place: Place) -> None:
        """Give back a region of the other side's with the next packet. Any thread."""
        super().add_return(place)
        self._returning.add(self)

    def receive(self) -> Message | None:
        """See `LaneReceiver.receive`."""
        if self._is_reading:  # an exception out of a signal handler came in between
            raise ConnectionEndedError("the reading of a packet was interrupted")
        self._is_reading = True
        try:
            message = self._receiver.receive()
        except CodecError:
            self._is_reading = False
            raise
        self._is_reading = False
        return message

    def close(self) -> None:
        """End the connection; arrays that were received stay valid."""
        self.is_ended = True
        super().close()
        self._receiver.close()
        self._sock.close()

    def __repr__(self) -> str:
        return (
            f"<LaneConnection {self.address} waiting={len(self.waiting)} "
            f"shared={self.pool.size >> 20} MiB>"
        )
