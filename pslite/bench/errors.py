"""What can go wrong in a benchmark.

PsliteError
    BenchError          the run cannot go on, or was asked for something it does not have
    PeerError           one peer failed; the run goes on without it and says so
"""

from __future__ import annotations

from van.errors import PsliteError


class BenchError(PsliteError):
    """The run cannot go on, or was asked for something that it does not have."""


class PeerError(PsliteError):
    """One peer crashed, is not installed, was too slow or raised.

    Attributes:
        peer: its label.
        problem: what happened, in one line.
    """

    def __init__(self, peer: str, problem: str) -> None:
        self.peer, self.problem = peer, problem
        super().__init__(f"{peer}: {problem}")
