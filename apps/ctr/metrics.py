"""Exact AUC, log-loss and calibration over all rows, in float64.

The parts of several workers are put together first and measured once: a mean of AUCs is no AUC.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import ArrayLike, NDArray


@dataclass(frozen=True)
class Quality:
    """How well scores fit labels.

    Attributes:
        rows: how many.
        positives: rows with label 1.
        auc: chance that a positive scores above a negative, ties half; None where all labels are
            alike.
        logloss: mean cross-entropy, natural logarithm; None without rows.
        calibration: mean score over mean label; 1 is unbiased, None without positives.
    """

    rows: int
    positives: int
    auc: float | None
    logloss: float | None
    calibration: float | None

    @property
    def remark(self) -> str:
        """Why a figure is missing, or empty text."""
        if self.rows == 0:
            return "no rows, so nothing is measured"
        if self.auc is None:
            return f"all {self.rows} labels are {int(self.positives > 0)}, so AUC is undefined"
        return ""


def quality(labels: ArrayLike, scores: ArrayLike) -> Quality:
    """Measure scores (probabilities, shape (n,)) against labels (0 or 1, shape (n,))."""
    y, p = np.asarray(labels), np.asarray(scores)
    rows, positives = len(y), int(np.count_nonzero(y > 0.5))
    return Quality(
        rows=rows,
        positives=positives,
        auc=auc(y, p),
        logloss=logloss(y, p) if rows else None,
        calibration=float(p.mean(dtype=np.float64) / (positives / rows)) if positives else None,
    )


def auc(labels: ArrayLike, scores: ArrayLike) -> float | None:
    """Area under the ROC curve, exact and with ties counted half; None where it is undefined.

    >>> auc([0, 1, 1, 0], [0.1, 0.9, 0.3, 0.3])
    0.875

    Source: Fawcett, Pattern Recognition Letters 27 (2006), section 7, as a sum over equal scores.
    """
    positive, p = np.asarray(labels) > 0.5, np.asarray(scores)
    total = int(np.count_nonzero(positive))
    if total in (0, len(p)):
        return None
    order = np.argsort(p)
    p = p[order]
    ends = np.append(np.flatnonzero(p[1:] != p[:-1]), len(p) - 1)  # last row of each score
    positives = np.diff(np.cumsum(positive[order])[ends], prepend=0)
    negatives = np.diff(ends, prepend=-1) - positives
    below = np.cumsum(negatives) - negatives
    pairs = 2 * int(np.sum(positives * below)) + int(np.sum(positives * negatives))
    return pairs / 2 / (total * (len(p) - total))


def row_losses(labels: ArrayLike, scores: ArrayLike) -> NDArray[np.float64]:
    """Cross-entropy of each row, float64 (n,).

    Scores are kept the precision of their type away from 0 and 1 (1.2e-7 for float32).
    """
    p = np.asarray(scores)
    edge = np.finfo(p.dtype if np.issubdtype(p.dtype, np.floating) else np.float64).eps
    p = np.clip(p.astype(np.float64), edge, 1 - edge)
    return -np.log(np.where(np.asarray(labels) > 0.5, p, 1 - p))


def logloss(labels: ArrayLike, scores: ArrayLike) -> float:
    """Mean of `row_losses`; at least one row."""
    return float(row_losses(labels, scores).mean())
