"""Training data leased in pieces: every record exactly once in the final accounting.

    pieces     a data set's description, its pieces, and sets of ranges
    events     what happens to pieces; the lines of a ledger
    shards     `DataShards`: who gets which piece, a pure state machine driven by events
    reading    what has been read, as a checkpoint holds it
    dealing    who gets which piece, where speeds must not say it
    book       the data sets of a job under their names
    ledger     RUN/ledger.jsonl: events on disk, written before they count
    accounts   what a ledger adds up to, and whether it balances
    desk       the scheduler's edge: requests of workers in, answers out
    client     a worker's edges, over the network and in one process
    reader     `Shards`: what `worker.shards(...)` returns

Nothing here needs Numba: the scheduler runs it.
"""
