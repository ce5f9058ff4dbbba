"""How well the true click probabilities themselves do: no model can be expected to do better."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def auc(probability: NDArray[np.float64], clicked: NDArray[np.bool_]) -> float | None:
    """Area under the ROC curve, ties counting half; None without both outcomes.

    Source: the rank-sum form, Hanley and McNeil, Radiology 143 (1982).
    """
    positives = int(clicked.sum())
    negatives = len(clicked) - positives
    if not positives or not negatives:
        return None
    _, at, count = np.unique(probability, return_inverse=True, return_counts=True)
    rank = (np.cumsum(count) - (count - 1) / 2)[at]
    total = float(rank[clicked].sum()) - positives * (positives + 1) / 2
    return total / (positives * negatives)


def logloss(probability: NDArray[np.float64], clicked: NDArray[np.bool_]) -> float | None:
    """Mean negative log-likelihood in nats; None of no rows."""
    if not len(clicked):
        return None
    return float(-np.log(np.where(clicked, probability, 1.0 - probability)).mean())


def figures(
    probability: NDArray[np.float64], clicked: NDArray[np.bool_], part: str
) -> dict[str, float | None]:
    """`best_auc_PART` and `best_logloss_PART`."""
    return {
        f"best_auc_{part}": auc(probability, clicked),
        f"best_logloss_{part}": logloss(probability, clicked),
    }
