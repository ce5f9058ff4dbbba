"""Rows in memory: an index from keys to row numbers, and an arena that holds the rows.

    arena    reserved address space that fills as it is touched
    index    keys -> row numbers
    formats  how weights and state lie in a row, and what an update does to them
    sparse   SparseStore, all of them together

No thread safety: the caller holds a lock.
"""
