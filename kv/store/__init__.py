"""Rows in memory: an index from keys to row numbers, and an arena that holds the rows.

    arena      reserved address space that fills as it is touched
    numbers    numbers given out and taken back
    index      keys -> row numbers, and the rows' records; grows without a stop
    cold       records of rows on disk
    space      RowSpace, where the rows of a table lie: index, memory, disk
    limits     what happens when memory is full: refuse, evict, spill
    lifecycle  admission and expiry
    stats      StoreStats, what a store tells about itself
    sparse     SparseStore, all of it together with optimiser and initialiser

No thread safety: the caller holds a lock.
"""
