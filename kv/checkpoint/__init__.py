"""Checkpoints: all tables, with optimiser state and counters, and the workers' own state, on disk.

    places      a local folder, or a URL that fsspec knows
    rowfile     the file of one part of one table
    manifest    what is in a checkpoint, and how to know that it is all there
    shelf       the checkpoints of a place: which are good, which may go
    saving      one server's share, written while it works
    loading     the same, read back by however many servers
    desk        what a server answers; `server` is its node, `shards` who asks
    leading     naming a checkpoint, asking the servers, the manifest last
    owner       of two jobs in one place one keeps it
    plan        when workers meet
    complaint   what fails again and again is said once
    collective  Checkpoints, what a program uses; `fuzzy` are those that nobody waits for
    outcome     what a program is told
    state       a worker's own state as bytes

docs/checkpoints.md says what is promised and why it holds.
"""

from __future__ import annotations


def last_good(url: str) -> str | None:
    """The name of the last checkpoint under `url` that can be used; None if there is none.

    Raises:
        CheckpointError: the place cannot be reached.
    """
    from kv.checkpoint import shelf  # NumPy, which who names no checkpoint does without

    return shelf.last_good(url)
