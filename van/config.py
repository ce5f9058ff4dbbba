"""Settings of the van, the ini section `[van]`."""

from __future__ import annotations

from dataclasses import dataclass

from van.quantities import NBytes, Seconds


@dataclass(frozen=True, kw_only=True)
class VanConfig:
    """Limits and habits of a node's sockets, the ini section `[van]`."""

    max_header: NBytes = 1 << 20  # a larger header is malformed
    max_frame: NBytes = 1 << 30  # a larger array is neither sent nor taken
    max_frames: int = 4096  # arrays in one message
    zero_copy_from: NBytes = 65536  # smaller arrays are cheaper to copy
    backlog: int = 1000  # messages waiting for one peer before sending to it is an error
    linger: Seconds = 2.0  # how long a closing socket tries to deliver its last messages
