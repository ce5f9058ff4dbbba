"""Settings of the van: the ini sections `[van]` and `[security]`."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Literal

from van.errors import ConfigError
from van.quantities import NBytes, Seconds

_MOST_WAITING = 1_000_000  # ZeroMQ has 31 bits for such numbers
_SHORTEST_RESEND = 0.01  # seconds; sooner no answer can be there
LONGEST_SPIN = 10e-3  # seconds; whoever looks keeps a core from all others meanwhile


@dataclass(frozen=True, kw_only=True)
class VanConfig:
    """Limits and habits of a node's sockets, the ini section `[van]`.

    Of the transports `auto` takes the local lane (shared memory) to nodes of this host and tcp to
    all others, `tcp` only tcp; `ipc` (ZeroMQ's) and `local` reach no other hosts.

    Raises:
        ConfigError: a value is out of range.
    """

    transport: Literal["auto", "tcp", "ipc", "local"] = "auto"  # auto: local on this host, else tcp
    max_header: NBytes = 1 << 20  # a larger header is malformed
    max_frame: NBytes = 1 << 30  # a larger array is neither sent nor taken
    max_frames: int = 4096  # arrays in one message
    zero_copy_from: NBytes = 65536  # smaller arrays are cheaper to copy
    chunk: NBytes = 1 << 20  # a piece of a message four times as large; urgent ones pass between
    backlog: int = 1000  # messages waiting for one peer before a sender must wait
    backlog_bytes: NBytes = 256 << 20  # the same in bytes; a single message may be larger
    shared_memory: NBytes = 1 << 30  # for what is sent to one peer of this host; 0: none
    handshake_timeout: Seconds = 5.0  # for a peer that connects to shake hands; then it is cut off
    half_open: int = 256  # peers that may be in their handshakes at once; others are turned away
    spin: Seconds = 500e-6  # looking for a message before sleeping, at most; 0: never
    resend: Literal["on", "off"] = "on"  # send again what nobody has answered; off: never
    resend_timeout: Seconds = 1.0  # until it goes again, at most: sooner where answers come soon
    linger: Seconds = 2.0  # how long a closing socket tries to deliver its last messages

    def __post_init__(self) -> None:
        for key, least, most in (
            ("max_header", 1000, None),
            ("max_frame", 100, None),
            ("max_frames", 2, 65000),
            ("chunk", 65536, None),
            ("backlog", 1, _MOST_WAITING),
            ("backlog_bytes", 1, None),
            ("half_open", 1, _MOST_WAITING),
        ):
            value = getattr(self, key)
            if value < least or (most is not None and value > most):
                wanted = f"{least} or more" if most is None else f"{least} to {most}"
                raise ConfigError(f"expected {wanted}, got {value}", section="van", key=key)
        if not 0 <= self.spin <= LONGEST_SPIN:
            problem = f"expected 0s to {LONGEST_SPIN * 1000:g}ms, got {self.spin:g}s"
            raise ConfigError(f"{problem}: it keeps a core busy", section="van", key="spin")
        if self.resend_timeout < _SHORTEST_RESEND:
            problem = f"expected 10ms or more, got {self.resend_timeout:g}s; resend = off ends it"
            raise ConfigError(problem, section="van", key="resend_timeout")
        if self.handshake_timeout < 0.1:  # 0 would be without end
            problem = f"expected 100ms or more, got {self.handshake_timeout:g}s"
            raise ConfigError(problem, section="van", key="handshake_timeout")


@dataclass(frozen=True, kw_only=True)
class SecurityConfig:
    """Keys of the nodes and who is let in, the ini section `[security]`."""

    curve: bool = False  # encrypt all connections and check the keys of both ends (CURVE)
    keys: str = ""  # folder that pslite keygen made; empty: pslite local makes keys for the job
    key: str = ""  # name of this node's key there; empty: ROLE-RANK, else ROLE
    lane: Literal["off", "trusted"] = "off"  # under curve: the local lane, which checks only users
    open: Literal["warn", "yes", "no"] = "warn"  # listening beyond this host without curve
