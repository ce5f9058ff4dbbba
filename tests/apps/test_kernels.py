from __future__ import annotations

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_allclose, assert_array_equal

from apps.ctr import kernels
from apps.ctr.batch import Block, starts_of
from apps.ctr.lookup import Lookup


def random_block(
    rng: np.random.Generator, rows: int, features: int, dense: int, most: int
) -> Block:
    lengths = rng.integers(0, 4, (rows, features)).astype(np.uint16)
    starts = starts_of(lengths.sum(axis=1, dtype=np.int64))
    keys = rng.integers(1, most, starts[-1], dtype=np.uint64)
    keys[rng.random(len(keys)) < 0.1] = 2**64 - 1
    return Block(rng.normal(size=(rows, dense)).astype(np.float32), keys, lengths, starts)


def bags(block: Block) -> list[tuple[int, int, np.ndarray]]:
    """(row, feature, keys) of each bag."""
    found, place = [], 0
    for row, counts in enumerate(block.lengths):
        for feature, count in enumerate(counts.tolist()):
            found.append((row, feature, block.keys[place : place + count]))
            place += count
    return found


sizes = {
    "rows": st.integers(0, 6),
    "features": st.integers(0, 4),
    "dense": st.integers(0, 3),
    "dim": st.integers(1, 5),
    "most": st.sampled_from([2, 5, 1000, 2**63]),
    "seed": st.integers(0, 2**32 - 1),
}


@settings(deadline=None)  # the first call compiles
@given(**sizes)
def test_inputs_are_the_mean_embeddings_then_the_dense_features(
    rows: int, features: int, dense: int, dim: int, most: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    blocks = [random_block(rng, rows, features, dense, most), random_block(rng, rows, 1, 0, most)]
    lookup = Lookup(blocks)
    values = rng.normal(size=(len(lookup.keys), dim)).astype(np.float32)
    out = [
        np.full((rows, b.lengths.shape[1] * dim + b.dense.shape[1]), np.nan, np.float32)
        for b in blocks
    ]

    lookup.fill(values, out)

    assert_array_equal(lookup.keys, np.unique(np.concatenate([b.keys for b in blocks])))
    table = dict(zip(lookup.keys.tolist(), values, strict=True))
    for block, matrix in zip(blocks, out, strict=True):
        width = block.lengths.shape[1] * dim
        assert_array_equal(matrix[:, width:], block.dense)
        for row, feature, keys in bags(block):
            mean = (
                np.mean([table[k] for k in keys.tolist()], axis=0) if len(keys) else np.zeros(dim)
            )
            assert_allclose(matrix[row, feature * dim : (feature + 1) * dim], mean, atol=1e-6)


@settings(deadline=None)  # the first call compiles
@given(**sizes)
def test_gradients_are_summed_over_the_occurrences_of_a_key(
    rows: int, features: int, dense: int, dim: int, most: int, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    block = random_block(rng, rows, features, dense, most)
    lookup = Lookup([block])
    grad = rng.normal(size=(rows, features * dim + dense)).astype(np.float32)
    grad.flags.writeable = False

    found = lookup.gradients([grad], dim)

    expected = {key: np.zeros(dim) for key in lookup.keys.tolist()}
    for row, feature, keys in bags(block):
        for key in keys.tolist():
            expected[key] += grad[row, feature * dim : (feature + 1) * dim] / np.float64(len(keys))
    assert_allclose(found, np.array([*expected.values()]).reshape(-1, dim), atol=1e-5)


@settings(deadline=None)  # the first call compiles
@given(seed=st.integers(0, 2**32 - 1), rows=st.integers(1, 8), dense=st.integers(0, 2))
def test_rows_taken_sliced_and_put_together_keep_their_features(
    seed: int, rows: int, dense: int
) -> None:
    rng = np.random.default_rng(seed)
    block = random_block(rng, rows, 3, dense, 50)
    order = rng.permutation(rows)
    cut = int(rng.integers(0, rows + 1))

    taken = Block.concatenate([block.take(order).slice(0, cut), block.take(order).slice(cut, rows)])

    assert_array_equal(taken.dense, block.dense[order])
    assert_array_equal(taken.lengths, block.lengths[order])
    wanted = [block.keys[block.starts[i] : block.starts[i + 1]] for i in order]
    assert_array_equal(taken.keys, np.concatenate(wanted))


PROGRAM = """
import sys
from apps.ctr import kernels
from apps.ctr.dataset import Dataset, open_source
from apps.ctr.modelconf import model_config
from apps.ctr.trainer import train_together
from kv.local import LocalCluster

compiled = {n: f for n, f in vars(kernels).items() if hasattr(f, "signatures")}
kernels.warm_up(8)
before = {name: len(found.signatures) for name, found in compiled.items()}
conf = model_config({}, overrides=["train.batch_size=50", "train.epoch=2", "train.shuffle=true"])
data = Dataset(open_source(sys.argv[1], {"x": ("user", "ad", "user_ad")}))
train_together([LocalCluster(1).worker(0)], conf, data, data, sync=False)
print([n for n, f in compiled.items() if len(f.signatures) != before[n]])
"""


def test_warming_up_compiles_all_that_training_runs(
    tmp_path: Path, generate: Callable[..., Any]
) -> None:
    """A signature that appears later would make a step wait for the compiler."""
    path = generate(rows=120, seed=1).write_parquet(tmp_path / "f.parquet")

    result = subprocess.run(
        [sys.executable, "-c", PROGRAM, str(path)],
        cwd=Path(kernels.__file__).parents[2],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )

    assert result.stderr == ""
    assert result.stdout.splitlines()[-1] == "[]"
