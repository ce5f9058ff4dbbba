"""What the pushes of one round become: one gradient for each key.

A worker's part of a round is the sum of its pushes in it, except in a weighted mean, where each
push is a part with its own weight. A key that a part has no gradient for counts as zero there:

    sum            of the parts
    mean           the sum over the number of workers in the round, whether they pushed or not
    weighted_mean  sum of weight times gradient over the sum of the weights; zero if that is zero
    max_norm       for each key the part that is longest (L2); of equal ones the lower rank's

A key of a dense table is one of its blocks. All are made in rank order, a worker's pushes in the
order in which it made them, and so do not depend on when a push arrived: one that was lost and sent
again comes after later ones. In mode async a push is a round of its own, where each of these is the
push itself.

Behind dispatchers the sum over workers is one of sums: over the workers of each dispatcher, in rank
order, then over these. So it is the same, to the bit, whether a dispatcher has made its part of it
or not.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, MutableMapping

import numpy as np

from kv.consistency.base import Update
from kv.consistency.progress import Progress
from kv.kernels.sums import Part, longest_parts, sum_parts, weigh_parts

Round = dict[int, list[Update]]  # rank -> its pushes, in order of arrival
Groups = Callable[[int], int] | None  # rank -> the group that is added up first; None: none


def is_made_again(progress: Progress, rank: int, push: Update) -> bool:
    """Whether a kept push is of a worker's former life, and its present one makes that step."""
    if push.push is None:
        return False
    life, inside = push.push.incarnation, push.push.constituents
    if len(inside) > 1:  # the part of a round in which all whose pushes it has have ended the step
        return False
    if inside:
        life = inside[0][1]
    return progress.is_of_former_life(rank, life, push.step)


def drop_former(rounds: MutableMapping[int, Round], progress: Progress, rank: int) -> int:
    """Drop from rounds what worker `rank`, which was started again, will push once more.

    Returns the floats that are kept no longer.
    """
    dropped = 0
    for number, pushes in list(rounds.items()):
        kept = [p for p in pushes.get(rank, ()) if not is_made_again(progress, rank, p)]
        former = pushes.pop(rank, [])
        dropped += sum(p.grads.size for p in former) - sum(p.grads.size for p in kept)
        if kept:
            pushes[rank] = kept
        if not pushes:
            del rounds[number]
    return dropped


def sum_of(pushes: Round, workers: int, group_of: Groups = None) -> Part:
    return sum_parts(_per_group(pushes, group_of))


def mean_of(pushes: Round, workers: int, group_of: Groups = None) -> Part:
    keys, sums = sum_parts(_per_group(pushes, group_of))
    return keys, sums if workers == 1 else sums / np.float32(workers)


def weighted_mean_of(pushes: Round, workers: int, group_of: Groups = None) -> Part:
    parts = list(itertools.chain.from_iterable(as_made(pushes[rank]) for rank in sorted(pushes)))
    if len(parts) == 1 and parts[0].weight:
        return parts[0].keys, parts[0].grads
    total = sum(part.weight for part in parts if not part.is_rest)
    factors = [part.weight / total if total else 0.0 for part in parts]
    return weigh_parts([(part.keys, part.grads) for part in parts], factors)


def max_norm_of(pushes: Round, workers: int, group_of: Groups = None) -> Part:
    return longest_parts(_per_worker(pushes))


AGGREGATORS: dict[str, Callable[[Round, int, Groups], Part]] = {
    "sum": sum_of,
    "mean": mean_of,
    "weighted_mean": weighted_mean_of,
    "max_norm": max_norm_of,
}


def aggregated(
    name: str, pushes: Round, workers: int, clock: int, group_of: Groups = None
) -> Update:
    """One update of a round's pushes, at least one.

    Args:
        name: of the aggregator, one of `kv.spec.AGGREGATORS`.
        workers: how many take part in the round, those included that pushed nothing.
        clock: the round's number.
        group_of: see `kv.consistency.base.Context`.
    """
    return Update(*AGGREGATORS[name](pushes, workers, group_of), clock=clock)


def _per_worker(pushes: Round) -> list[Part]:
    """The sum of each worker's pushes, in rank order."""
    return [
        sum_parts([(push.keys, push.grads) for push in as_made(pushes[rank])])
        for rank in sorted(pushes)
    ]


def as_made(pushes: list[Update]) -> list[Update]:
    """One worker's pushes in the order in which it made them, as far as that is known."""
    stamps = [push.push.timestamp for push in pushes if push.push is not None]
    if len(stamps) < len(pushes) or all(a <= b for a, b in itertools.pairwise(stamps)):
        return pushes
    return sorted(pushes, key=lambda push: push.push.timestamp if push.push else 0)


def _per_group(pushes: Round, group_of: Groups) -> list[Part]:
    """The sum of each group's workers, in rank order; without groups that of each worker."""
    if group_of is None:
        return _per_worker(pushes)
    groups: dict[int, list[int]] = {}
    for rank in sorted(pushes):
        groups.setdefault(group_of(rank), []).append(rank)
    return [sum_parts(_per_worker({r: pushes[r] for r in some})) for some in groups.values()]
