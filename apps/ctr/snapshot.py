"""All parameters of a model as arrays, and their fingerprint."""

from __future__ import annotations

import hashlib
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from apps.ctr.learner import Learner


@dataclass(frozen=True)
class Snapshot:
    """A model's parameters at one moment.

    Attributes:
        keys: uint64 (n,), rising.
        embeddings: float32 (n, dim).
        dense: name of a parameter -> float32 array.
    """

    keys: NDArray[np.uint64]
    embeddings: NDArray[np.float32]
    dense: dict[str, NDArray[np.float32]]

    def digest(self) -> str:
        """SHA-256 of all parameters in hexadecimal: equal models to the bit have equal ones."""
        found = hashlib.sha256()
        for array in (self.keys, self.embeddings):
            found.update(str(array.shape).encode() + np.ascontiguousarray(array).tobytes())
        for name in sorted(self.dense):
            array = self.dense[name]
            found.update(f"{name}{array.shape}".encode() + np.ascontiguousarray(array).tobytes())
        return found.hexdigest()


def take_snapshot(learner: Learner) -> Snapshot:
    """What the learner's tables hold; nobody should push meanwhile."""
    learner.finish()
    batches = list(learner.embedding.items())
    keys = np.concatenate([np.empty(0, np.uint64), *(keys for keys, _ in batches)])
    empty = np.empty((0, learner.embedding.dim), np.float32)
    rows = np.concatenate([empty, *(values for _, values in batches)])
    order = np.argsort(keys)
    dense = {name: table.pull() for name, table in learner.dense.items()}
    return Snapshot(keys[order], rows[order], dense)
