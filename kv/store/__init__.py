"""Rows in memory: an index from keys to row numbers, and an arena that holds the rows.

    arena    reserved address space that fills as it is touched
    index    keys -> row numbers
    sparse   SparseStore, the two together with optimiser and initialiser

No thread safety: the caller holds a lock.
"""
