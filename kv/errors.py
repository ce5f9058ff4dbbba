"""Errors about parameters.

PsliteError
└── KVError
    ├── UnsortedKeysError     KVWorker got keys that repeat or go down
    ├── KeyValueShapeError    keys, values and lens do not fit each other
    ├── TableError            something about a table
    │   ├── TableConflictError   one name, two definitions
    │   ├── UnknownTableError    no such table on the server
    │   └── MissingKeyError      a key has no row and the table says missing=error
    ├── RemoteError           a handler on another node raised
    └── NonFiniteError        NaN or infinity where a number is needed
"""

from __future__ import annotations

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


class NonFiniteError(TableError):
    """NaN or infinity where a number is needed."""


class RemoteError(KVError):
    """A handler on another node raised; `node` says where, the text what."""

    def __init__(self, node: str, problem: str) -> None:
        self.node, self.problem = node, problem
        super().__init__(f"{node}: {problem}")
