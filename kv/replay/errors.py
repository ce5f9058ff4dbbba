"""What can go wrong with runs that are to repeat.

KVError
├── RecordError        a record cannot be written or read, or is of another job; has `.path`
└── DivergenceError    a replayed run does what the recorded one did not; has `.node`
"""

from __future__ import annotations

from kv.errors import KVError


class RecordError(KVError):
    """A record cannot be written or read, is damaged, or is of another job."""

    def __init__(self, path: object, problem: str) -> None:
        self.path, self.problem = str(path), problem
        super().__init__(f"record {path}: {problem}")


class DivergenceError(KVError):
    """A replayed run is not the recorded one.

    Args:
        node: where that was seen, such as "server 0".
        problem: what was expected, and what came.
    """

    def __init__(self, node: str, problem: str) -> None:
        self.node, self.problem = node, problem
        super().__init__(f"{node}: the run is not the recorded one: {problem}")
