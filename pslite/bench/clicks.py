"""Click logs that are made up, and a small network that learns them with NumPy alone.

Ids of each field are spread as Zipf has it; whether a row is a click is drawn by a hidden
factorisation machine (Rendle, ICDM 2010). The network is embeddings, a layer of tanh and one output
(FNN: Zhang et al., ECIR 2016), so training has both kinds of tables: rare sparse rows and dense
arrays.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]
FIELD_BITS = 32  # an id is (field + 1) << 32 | value


@dataclass(frozen=True)
class Shape:
    """What the data and the network look like.

    Args:
        values: ids of each field.
        dim: floats of an embedding.
        hidden: width of the layer.
    """

    values: tuple[int, ...] = (20_000, 8_000, 2_000, 1_000, 300, 100, 30, 10)
    dim: int = 16
    hidden: int = 32

    @property
    def width(self) -> int:
        return len(self.values) * self.dim

    def dense_shapes(self) -> dict[str, tuple[int, ...]]:
        """Of the dense tables."""
        return {
            "w1": (self.width, self.hidden),
            "b1": (self.hidden,),
            "w2": (self.hidden,),
            "b2": (1,),
        }


@dataclass(frozen=True)
class Clicks:
    """Rows: ids, uint64 (rows, fields), and labels, float32 (rows,)."""

    ids: NDArray[np.uint64]
    labels: Floats

    def rows(self, start: int, stop: int) -> Clicks:
        return Clicks(self.ids[start:stop], self.labels[start:stop])

    def __len__(self) -> int:
        return len(self.labels)


def make_clicks(rows: int, shape: Shape, seed: int = 1) -> Clicks:
    """Click logs; the same for the same arguments."""
    chance = np.random.default_rng(seed)
    hidden, count = 4, len(shape.values)
    values = np.empty((rows, count), np.int64)
    total = np.zeros((rows, hidden))
    squares, logits = np.zeros((rows, hidden)), np.zeros(rows)
    for field, size in enumerate(shape.values):
        weights = 1.0 / np.arange(1, size + 1) ** 1.05
        values[:, field] = chance.choice(size, rows, p=weights / weights.sum())
        factors = chance.normal(0, 0.45, (size, hidden))[values[:, field]]
        total += factors
        squares += factors**2
        logits += chance.normal(0, 0.55, size)[values[:, field]]
    logits += 0.5 * (total**2 - squares).sum(axis=1) - 1.5
    labels = chance.random(rows) < 1 / (1 + np.exp(-logits))
    offsets = (np.arange(count, dtype=np.uint64) + np.uint64(1)) << np.uint64(FIELD_BITS)
    return Clicks(values.astype(np.uint64) + offsets, labels.astype(np.float32))


def first_weights(shape: Shape, seed: int = 1) -> dict[str, Floats]:
    """Where the dense tables start."""
    chance = np.random.default_rng(seed)
    return {
        name: (
            chance.normal(0, 1 / np.sqrt(sides[0]), sides)
            if name.startswith("w")
            else np.zeros(sides)
        ).astype(np.float32)
        for name, sides in shape.dense_shapes().items()
    }


@dataclass(frozen=True)
class Step:
    """A forward pass, kept for the backward one."""

    inputs: Floats
    activations: Floats
    scores: Floats


def forward(embeddings: Floats, weights: dict[str, Floats]) -> Step:
    """Scores of rows.

    Args:
        embeddings: float32, shape (rows, fields, dim).
        weights: of the dense tables.
    """
    inputs = embeddings.reshape(len(embeddings), -1)
    activations = np.tanh(inputs @ weights["w1"] + weights["b1"])
    scores = 1 / (1 + np.exp(-(activations @ weights["w2"] + weights["b2"])))
    return Step(inputs, activations, scores)


def backward(
    step: Step, labels: Floats, weights: dict[str, Floats]
) -> tuple[Floats, dict[str, Floats]]:
    """Gradients of the mean cross-entropy: of the inputs, (rows, width), and of each table."""
    errors = np.asarray((step.scores - labels) / len(labels), np.float32)
    inner: Floats = (errors[:, None] * weights["w2"]) * (1 - step.activations**2)
    grads: dict[str, Floats] = {
        "w1": step.inputs.T @ inner,
        "b1": inner.sum(axis=0),
        "w2": step.activations.T @ errors,
        "b2": errors.sum(keepdims=True, dtype=np.float32),
    }
    found = {name: np.asarray(grad, np.float32) for name, grad in grads.items()}
    return np.asarray(inner @ weights["w1"].T, np.float32), found


def area_under_curve(scores: NDArray[Any], labels: NDArray[Any]) -> float:
    """AUC, ties counted half (Mann and Whitney).

    >>> area_under_curve(np.array([0.1, 0.4, 0.4, 0.8]), np.array([0, 0, 1, 1]))
    0.875
    """
    order = np.argsort(scores, kind="stable")
    ranks = np.empty(len(scores))
    ordered = scores[order]
    starts = np.flatnonzero(np.r_[True, ordered[1:] != ordered[:-1]])
    ends = np.r_[starts[1:], len(scores)]
    ranks[order] = np.repeat((starts + ends + 1) / 2, ends - starts)
    positive = labels > 0
    count = int(positive.sum())
    whole = ranks[positive].sum() - count * (count + 1) / 2
    return float(whole / (count * (len(labels) - count)))


def parts_of(rows: int, workers: int, batch: int) -> Sequence[range]:
    """Where each worker's batches of each step start: one range of starts a worker."""
    share = rows // workers // batch * batch
    return [range(rank * share, (rank + 1) * share, batch) for rank in range(workers)]
