"""Which dispatcher a worker pushes and pulls through: a rule that all nodes compute for themselves.

Workers of neighbouring ranks share a dispatcher, and no dispatcher has more than one worker more
than another. So a sum in the order of ranks is a sum by dispatcher, one after the other.
"""

from __future__ import annotations


def dispatcher_of(worker: int, workers: int, dispatchers: int) -> int:
    """The rank of the dispatcher of a worker, by its rank.

    >>> [dispatcher_of(rank, 5, 3) for rank in range(5)]
    [0, 0, 1, 1, 2]
    """
    return worker * dispatchers // workers


def workers_of(dispatcher: int, workers: int, dispatchers: int) -> list[int]:
    """The ranks of the workers of a dispatcher.

    >>> workers_of(1, 5, 3)
    [2, 3]
    """
    ranks = range(workers)
    return [rank for rank in ranks if dispatcher_of(rank, workers, dispatchers) == dispatcher]
