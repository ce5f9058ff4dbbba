"""Settings of the van, the ini section `[van]`."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, kw_only=True)
class VanConfig:
    """Limits and habits of a node's sockets. Sizes are in bytes, times in seconds."""

    max_header: int = 1 << 20  # a larger header is malformed
    max_frame: int = 1 << 30  # a larger array is neither sent nor taken
    max_frames: int = 4096  # arrays in one message
    zero_copy_from: int = 65536  # smaller arrays are cheaper to copy
    backlog: int = 1000  # messages waiting for one peer before sending to it is an error
    linger: float = 2.0  # how long a closing socket tries to deliver its last messages
