"""Errors of compressed values.

KVError
└── CompressionError
    ├── PacketError          bytes from elsewhere are no compressed rows, or not those expected
    └── UnknownBaseError     differences from an update that is not known here; it is sent anew
"""

from __future__ import annotations

from kv.errors import KVError


class CompressionError(KVError):
    """Something about compressed values went wrong."""


class PacketError(CompressionError):
    """Bytes from elsewhere are no compressed rows, or not those expected."""

    def __init__(self, expected: str) -> None:
        super().__init__(f"compressed rows are not as they should be: expected {expected}")


class UnknownBaseError(CompressionError):
    """A packet has differences from an update that is not known here; its sender sends it whole."""

    def __init__(self, stream: int, place: int) -> None:
        self.stream, self.place = stream, place
        super().__init__(f"the update before number {place} of run {stream} is not known here")
