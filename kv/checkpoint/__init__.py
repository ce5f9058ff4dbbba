"""Checkpoints: all tables, with optimiser state and counters, and the workers' own state, on disk.

    places      a local folder, or a URL that fsspec knows
    rowfile     the file of one part of one table
    manifest    what is in a checkpoint, and how to know that it is all there
    shelf       the checkpoints of a place: which are good, which may go
    saving      one server's share, written while it works
    loading     the same, read back by however many servers
    desk        what a server answers; `server` is its node, `shards` who asks
    leading     naming a checkpoint, asking the servers, the manifest last
    plan        when workers meet
    collective  Checkpoints, what a program uses
    state       a worker's own state as bytes

docs/checkpoints.md says what is promised and why it holds.
"""
