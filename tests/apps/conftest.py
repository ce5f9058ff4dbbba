"""Small data sets with a known signal, in both layouts of final features."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
import torch

KINDS = ["dense_user", "dense_ad", "sparse_user", "sparse_ad", "sparse_user_ad"]


class Generated:
    """Rows whose clicks depend on the values of two sparse features and one dense feature.

    Features: dense_user 2, dense_ad 1, sparse_user 2 of which one is a group, sparse_ad 2,
    sparse_user_ad 1. Index 0 (unknown) occurs in each.
    """

    def __init__(self, rows: int, seed: int, values: int = 40) -> None:
        rng = np.random.default_rng(seed)
        self.ids = [f"id#{i}" for i in range(rows)]
        self.dense = rng.normal(size=(rows, 3)).astype(np.float32).round(3)
        self.single = rng.integers(0, values, size=(rows, 4)).astype(np.uint64)
        self.single[:, 1:] += np.where(self.single[:, 1:] > 0, values, 0).astype(np.uint64)
        self.groups = [rng.integers(0, values, size=rng.integers(0, 5)) for _ in range(rows)]
        weights = np.random.default_rng(0).normal(size=(2, 2 * values))
        weights[:, 0] = 0
        logit = weights[0][self.single[:, 0]] + weights[1][self.single[:, 1]] + self.dense[:, 0]
        self.labels = (rng.random(rows) < 1 / (1 + np.exp(1 - logit))).astype(np.float32)

    def columns(self) -> dict[str, pa.Array]:
        group = pa.array([g.tolist() for g in self.groups], pa.list_(pa.uint64()))
        return {
            "dense_user/001_age": pa.array(self.dense[:, 0]),
            "dense_user/002_seen": pa.array(self.dense[:, 1]),
            "dense_ad/001_price": pa.array(self.dense[:, 2]),
            "sparse_user/001_user": pa.array(self.single[:, 0]),
            "sparse_user/002_hist": group,
            "sparse_ad/001_brand": pa.array(self.single[:, 1]),
            "sparse_ad/002_cate": pa.array(self.single[:, 2]),
            "sparse_user_ad/001_hit": pa.array(self.single[:, 3]),
        }

    def write_parquet(self, path: Path, row_group_size: int | None = None) -> Path:
        columns = self.columns()
        features = [
            {"column": name, "kind": kind, "group": group}
            for name in columns
            for kind, _, group in [name.split("/")[0].partition("_")]
        ]
        table = pa.table({"id": self.ids, "label": self.labels, **columns})
        table = table.replace_schema_metadata(
            {"pslite.features": json.dumps({"features": features})}
        )
        pq.write_table(table, path, row_group_size=row_group_size)
        return path

    def lines(self) -> list[str]:
        found = []
        for i, name in enumerate(self.ids):
            hist = "|".join(str(v) for v in self.groups[i] if v) or "0"
            user, brand, cate, hit = self.single[i]
            age, seen, price = (f"{value:.3f}" for value in self.dense[i])
            cells = [name, f"{self.labels[i]:.0f}", f"{age},{seen}", price, ""]
            found.append("\t".join([*cells, f"{user},{hist}", f"{brand},{cate}", f"{hit}"]))
        return found

    def write_text(self, path: Path) -> Path:
        path.write_text("".join(line + "\n" for line in self.lines()), encoding="utf-8")
        return path


@pytest.fixture(scope="session", autouse=True)
def _one_torch_thread() -> Iterator[None]:
    """Batches here are so small that threads of torch only wait for each other."""
    before = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(before)


@pytest.fixture(scope="session")
def generate() -> Callable[..., Generated]:
    return Generated
