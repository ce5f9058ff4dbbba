"""Rows in memory: an index from keys to row numbers, and an arena that holds the rows.

    arena      reserved address space that fills as it is touched
    numbers    numbers given out and taken back
    index      keys -> row numbers, and the rows' records; grows without a stop
    cold       records of rows on disk
    space      RowSpace, where the rows of a table lie: index, memory, disk
    rows       RowBatch, whole rows on their way out of a store and into one
    layout     where rows lie in tables that evict, which decides who goes next
    removals   keys that lost their rows, for who keeps copies of the rows
    limits     what happens when memory is full: refuse, evict, spill
    lifecycle  admission and expiry
    stats      StoreStats, what a store tells about itself
    formats    how weights and state lie in a row, and what an update does to them
    keyed      rows by key: found, made and forgotten
    scans      where passes over all rows have come to
    transfer   rows read through, exported, put, packed: what goes out of a store and into it whole
    sparse     SparseStore, all of it together: pull, push, assign, and the policies at work
    pieces     Part, a store with a lock, and the keys of a list that lie in it
    partition  a sparse table's parts: whose a key is, and what all of them hold together
    parts      Parts, requests over them chunk by chunk, for threads beside each other
    blocks     a dense table's store, with a lock

A store is not thread safe; `pieces` and `blocks` have the locks.
"""
