from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.metrics import log_loss, roc_auc_score

from apps.ctr.metrics import auc, logloss, quality


@given(
    rows=st.integers(2, 60),
    levels=st.integers(1, 20),
    seed=st.integers(0, 2**32 - 1),
    dtype=st.sampled_from([np.float32, np.float64]),
)
def test_auc_and_logloss_are_those_of_scikit_learn(
    rows: int, levels: int, seed: int, dtype: type
) -> None:
    rng = np.random.default_rng(seed)
    labels = rng.integers(0, 2, rows).astype(np.float32)
    labels[:2] = 0, 1
    scores = (rng.integers(0, levels + 1, rows) / levels).astype(dtype)  # ties, 0 and 1 included

    assert auc(labels, scores) == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    assert logloss(labels, scores) == pytest.approx(log_loss(labels, scores), rel=1e-6)


@given(seed=st.integers(0, 2**32 - 1), parts=st.integers(1, 5))
def test_the_order_of_the_parts_does_not_change_auc(seed: int, parts: int) -> None:
    rng = np.random.default_rng(seed)
    labels, scores = rng.integers(0, 2, 50), rng.random(50).round(1)
    labels[:2] = 0, 1
    mixed = np.concatenate(np.array_split(rng.permutation(50), parts))

    assert auc(labels[mixed], scores[mixed]) == auc(labels, scores)


def test_one_class_has_no_auc_and_says_so() -> None:
    found = quality(np.zeros(3, np.float32), np.full(3, 0.5, np.float32))

    assert (found.rows, found.positives, found.auc, found.calibration) == (3, 0, None, None)
    assert found.logloss == pytest.approx(np.log(2))
    assert found.remark == "all 3 labels are 0, so AUC is undefined"


def test_no_rows_measure_nothing() -> None:
    found = quality(np.empty(0), np.empty(0))

    assert (found.rows, found.auc, found.logloss, found.calibration) == (0, None, None, None)
    assert found.remark


def test_calibration_is_mean_score_over_mean_label() -> None:
    assert quality([0, 1, 0, 1], [0.1, 0.2, 0.3, 0.4]).calibration == pytest.approx(0.5)
