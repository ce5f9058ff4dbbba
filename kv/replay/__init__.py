"""Runs that repeat: the order in which servers work is written down, and kept to another time.

    entry       what is noted of a request, 13 bytes
    recordfile  the file of one server: what the cluster was, its tables, the requests in order
    script      whose turn it is by a record: a pure state machine
    answers     answers to reads, kept so that each read has one place in the order
    order       a server's edge: `Recording` writes the record, `Replaying` keeps to it
    leases      the same of pieces of training data, at the scheduler
    rules       tables whose values depend on more than an order

docs/consistency.md says what is promised.
"""
