"""Errors about parameters.

PsliteError
└── KVError
    ├── UnsortedKeysError     KVWorker got keys that repeat or go down
    ├── KeyValueShapeError    keys, values and lens do not fit each other
    ├── SettingError          an optimiser, initialiser or table is set up wrongly
    ├── RankError             no such worker, or one that has finished
    ├── WouldWaitError        a call would wait for workers that the same thread drives
    ├── UnknownKeyListError   a request names key lists that the server has not; it is sent again
    ├── TableError            something about a table
    │   ├── TableConflictError   one name, two definitions
    │   ├── UnknownTableError    no such table on the server
    │   ├── MissingKeyError      a key has no row and the table says missing=error
    │   ├── KeyListError         a list cannot be read as keys
    │   ├── ValueShapeError      values or gradients of another shape or type
    │   ├── NonFiniteError       NaN or infinity where a number is needed
    │   ├── LatePushError        a push for a round that is closed
    │   ├── VersionMismatchError a push of gradients that are too stale
    │   ├── ScanError            rows got other places since a scan began
    │   └── ArenaFullError       no room for more rows
    ├── CompressionError      something about compressed values
    │   ├── PacketError          bytes are no compressed rows, or not those expected
    │   └── UnknownBaseError     differences from an update that is not known; it is sent anew
    ├── LeaseError            pieces of training data: a wrong description, or no right to one
    └── RemoteError           a handler on another node raised
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from van.errors import PsliteError


class KVError(PsliteError):
    """Something about keys and values went wrong."""


class UnsortedKeysError(KVError):
    """Keys given to `KVWorker` repeat or go down."""

    def __init__(self, position: int, before: int, key: int) -> None:
        self.position, self.before, self.key = position, before, key
        super().__init__(
            f"keys must strictly increase, but key {key} at position {position} follows {before}; "
            f"sort and merge them first, or use a table, which does so itself"
        )


class KeyValueShapeError(KVError):
    """Keys, values and lens do not fit each other."""


class SettingError(KVError):
    """An optimiser, initialiser or table is set up wrongly.

    Args:
        what: whose setting it is, such as "optimizer adagrad".
        problem: what is wrong and what to do.
    """

    def __init__(self, what: str, problem: str) -> None:
        self.what, self.problem = what, problem
        super().__init__(f"{what}: {problem}")


class RankError(KVError):
    """No worker of this rank, or one that has finished."""


class WouldWaitError(KVError):
    """A call would wait for workers that the same thread drives, so for ever."""

    def __init__(self, call: str, rank: int, others: Sequence[int]) -> None:
        self.rank, self.others = rank, list(others)
        super().__init__(
            f"{call} by worker {rank} must wait for workers {self.others}, and this thread drives "
            f"them all: let them come first, or run each worker in a thread of its own and make "
            f"LocalCluster(threads=True)"
        )


class UnknownKeyListError(KVError):
    """A request names key lists that are not remembered here; the worker sends the keys again."""

    def __init__(self, signature: int) -> None:
        self.signature = signature
        super().__init__(f"no key list {signature:x} is remembered here; send the keys")


class TableError(KVError):
    """Something about the table `table` went wrong."""

    def __init__(self, table: str, problem: str) -> None:
        self.table, self.problem = table, problem
        super().__init__(f"table {table}: {problem}")


class TableConflictError(TableError):
    """Two definitions of one table disagree; the text shows both."""


class UnknownTableError(TableError):
    """The server holds no such table."""


class MissingKeyError(TableError):
    """A key has no row in a table with `missing=error`."""


class KeyListError(TableError):
    """A list cannot be read as keys; `position` is its first wrong element, -1 if all of it is."""

    def __init__(self, table: str, problem: str, position: int = -1) -> None:
        self.position = position
        super().__init__(table, problem)


class ValueShapeError(TableError):
    """Values or gradients of another shape or type than the table's."""


class NonFiniteError(TableError):
    """NaN or infinity where a number is needed.

    Args:
        what: the number is part of: `gradient` or `value`.
        key: of the row, in a sparse table.
        place: in a dense table, where in it.
        outcome: what became of the request.
        step, worker: whose push it was, where that is known.
        sample: which sample it came from, likewise.
    """

    def __init__(
        self,
        table: str,
        what: str,
        number: float,
        *,
        key: int | None = None,
        place: str = "",
        outcome: str = "",
        step: int | None = None,
        worker: int | None = None,
        sample: str = "",
    ) -> None:
        self.what, self.number, self.key, self.place = what, number, key, place
        self.step, self.worker, self.sample, self.outcome = step, worker, sample, outcome
        whose = f"at {place}" if key is None else f"of key {key}"
        pusher = "" if step is None else f"step {step}, worker {worker}"
        facts = "; ".join(filter(None, (pusher, sample, outcome)))
        super().__init__(table, f"{what} {whose} is {number}" + (f" ({facts})" if facts else ""))

    def knowing(self, **facts: Any) -> NonFiniteError:
        """The same with some of the arguments that were not known."""
        known = {name: getattr(self, name) for name in ("key", "place", "outcome", "step")}
        known |= {name: getattr(self, name) for name in ("worker", "sample")}
        return NonFiniteError(self.table, self.what, self.number, **{**known, **facts})


class ScanError(TableError):
    """A scan has waited so long that rows got other places: it would not meet all of them."""

    def __init__(self, table: str) -> None:
        super().__init__(
            table,
            "rows have got other places since this scan began, to give memory back after slots had "
            "moved; scan again from the beginning",
        )


class LatePushError(TableError):
    """A push for a round that is closed; `clock` is the table's, `step` the push's."""

    def __init__(self, table: str, rank: int, step: int, clock: int) -> None:
        self.rank, self.step, self.clock = rank, step, clock
        super().__init__(
            table,
            f"worker {rank} pushed for step {step}, but it has ended that step "
            f"(the table's clock is {clock}); push before worker.step()",
        )


class VersionMismatchError(TableError):
    """A push of gradients that are staler than `[param_sync] max_staleness` allows.

    Args:
        expected: the table's clock on the server.
        got: the clock there when the worker pulled.
    """

    def __init__(self, table: str, expected: int, got: int, rank: int, server: int) -> None:
        self.expected, self.got, self.rank, self.server = expected, got, rank, server
        problem = f"version mismatch: expected {expected}, got {got}"
        super().__init__(table, f"{problem} (worker {rank}, server {server})")


class ArenaFullError(TableError):
    """No room for more rows."""


class CompressionError(KVError):
    """Something about compressed values went wrong."""


class PacketError(CompressionError):
    """Bytes from elsewhere are no compressed rows, or not those expected."""

    def __init__(self, expected: str) -> None:
        super().__init__(f"compressed rows are not as they should be: expected {expected}")


class UnknownBaseError(CompressionError):
    """A packet has differences from an update that is not known here; it is sent anew, whole."""

    def __init__(self, stream: int, place: int) -> None:
        self.stream, self.place = stream, place
        super().__init__(f"the update before number {place} of run {stream} is not known here")


class LeaseError(KVError):
    """Training data in pieces: a wrong or another description, or no right to a piece."""


class RemoteError(KVError):
    """A handler on another node raised; `node` says where, the text what."""

    def __init__(self, node: str, problem: str) -> None:
        self.node, self.problem = node, problem
        super().__init__(f"{node}: {problem}")


def in_step(error: PsliteError, step: int, worker: int) -> PsliteError:
    """The error of a push, whose text now says in which step of which worker that was made."""
    if f"step {step}" not in str(error):
        error.args = (f"{error} (step {step}, worker {worker})",)
    error.__dict__.setdefault("step", step)
    return error
