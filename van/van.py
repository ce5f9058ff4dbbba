"""What a van is: the one thing that moves messages between this node and its peers.

`van.courier.ZmqVan` is the real one, `van.loopback` the one for tests: same nodes, no sockets,
an order of delivery that a seed decides.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from typing import Any, Protocol

from numpy.typing import DTypeLike, NDArray

from van.errors import VanError
from van.message import Message


class Van(Protocol):
    """Moves messages. `receiver` is called with each message that arrives, by one thread at a time.

    Attributes:
        receiver: takes what arrives; it may send, and may itself wait.
        on_refused: called when a peer of another protocol version is met
            (`ProtocolVersionError`), or one whose keys do not fit ours (`HandshakeError`).
        reports_waits: seconds after which a wait is worth a word; None where time is virtual.
        counts: messages `received`, `sent`, and dropped by reason; bytes of `sent_bytes`.
    """

    receiver: Callable[[Message], None]
    on_refused: Callable[[VanError], None]
    reports_waits: float | None

    @property
    def is_closed(self) -> bool: ...

    @property
    def address(self) -> str: ...
    @property
    def counts(self) -> Counter[str]: ...

    @property
    def is_driving(self) -> bool:
        """Whether the calling thread is the one that hands messages on: others depend on it."""

    @property
    def has_more(self) -> bool:
        """Whether another message is known to be there; asked by the driving thread alone."""

    def now(self) -> float:
        """Seconds on this van's clock."""

    def every(self, seconds: float, call: Callable[[], None]) -> None:
        """Have the driving thread make `call` each `seconds`, until this van is closed; any thread.

        A call must be quick; it may send. What it raises is logged.
        """

    def at(self, time: float, call: Callable[[], None]) -> None:
        """Have the driving thread make `call` once, at `time` on this van's clock; any thread."""

    def bind(self, address: str) -> str:
        """Be reachable; returns the real address. Raises `AddressError`."""

    def connect(self, node: int, address: str) -> None:
        """Make a peer reachable. Raises `AddressError`."""

    def disconnect(self, node: int) -> None: ...

    def send(self, message: Message) -> None:
        """Queue for `message.meta.recipient`; never blocks, any thread. Raises `CodecError`."""

    def has_room(self, node: int) -> bool:
        """Whether less waits for `node` than `[van] backlog` and `backlog_bytes` allow.

        `send` takes messages all the same: who sends decides whether to wait. Any thread.
        """

    def empty(self, node: int, shape: tuple[int, ...], dtype: DTypeLike) -> NDArray[Any]:
        """An uninitialised array to be filled and sent to `node`, once or more; any thread.

        Where the peer shares memory with this node and some is free, the array lies there, and
        sending it copies nothing. A receiver sees later changes of an array that has been sent.
        """

    def shares_memory(self, node: int) -> bool:
        """Whether large arrays reach `node` without crossing a network; any thread."""

    def wait(self, done: Callable[[], bool], timeout: float | None = None) -> bool:
        """Move messages until `done()` or for `timeout` seconds; returns the last `done()`."""

    def close(self, linger: float | None = None) -> None:
        """Send what is queued, then be unreachable."""
