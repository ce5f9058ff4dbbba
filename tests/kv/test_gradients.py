"""Gradients on their way to an optimiser: clipped by value and norm, decayed, scheduled."""

from __future__ import annotations

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv.errors import SettingError
from kv.kernels.gradients import prepare
from kv.kernels.jit import frozen
from kv.kernels.updates import SCRATCH, update_of
from kv.local import LocalCluster
from kv.optimizers import FTRL, SGD, Adam, Momentum
from kv.schedules import StepDecay, Warmup

F = np.float32
INF = F(np.inf)


def in_numpy(w: np.ndarray, g: np.ndarray, value: float, norm: float, decay: float) -> np.ndarray:
    """Clipped by value, then by the norm of each row, then decayed; float64."""
    g = np.clip(g.astype(np.float64), -value, value)
    lengths = np.sqrt((g * g).sum(axis=1, keepdims=True))
    g = g * np.minimum(1.0, norm / np.maximum(lengths, 1e-300))
    return g + decay * w


@given(
    n=st.integers(0, 9),
    dim=st.integers(1, 20),
    value=st.sampled_from([0.5, 1.0, np.inf]),
    norm=st.sampled_from([0.3, 2.0, np.inf]),
    decay=st.sampled_from([0.0, 0.1]),
    seed=st.integers(0, 2**32 - 1),
)
def test_gradients_are_clipped_and_decayed_by_the_formula(
    n: int, dim: int, value: float, norm: float, decay: float, seed: int
) -> None:
    rng = np.random.default_rng(seed)
    data, rows = rng.standard_normal((20, dim + 3)).astype(F), rng.permutation(20)[:n]
    grads = frozen(rng.standard_normal((n, dim)).astype(F))
    out = np.empty((n, dim), F)

    prepare(data, dim, rows, grads, F(value), F(norm), F(1), F(decay), out)

    expected = in_numpy(data[rows, :dim], grads, value, norm, decay)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-6)


def test_compiled_and_plain_preparation_agree() -> None:
    rng = np.random.default_rng(0)
    data, rows = rng.standard_normal((5, 4)).astype(F), np.array([3, 1])
    grads, outs = rng.standard_normal((2, 4)).astype(F), np.empty((2, 2, 4), F)
    limits = F(0.8), F(1.0), F(0.5), F(0.1)

    prepare(data, 4, rows, frozen(grads), *limits, outs[0])

    prepare.py_func(data, 4, rows, grads, *limits, outs[1])
    np.testing.assert_allclose(outs[0], outs[1], rtol=1e-6)


def test_many_rows_are_made_ready_in_parts_without_a_seam() -> None:
    dim = 16
    count = 2 * SCRATCH // dim + 3
    rng = np.random.default_rng(1)
    data = rng.standard_normal((count, 2 * dim)).astype(F)
    grads, rows = frozen(rng.standard_normal((count, dim)).astype(F)), rng.permutation(count)
    optimizer = Momentum(lr=0.5, clip_value=1.0, clip_norm=3.0, weight_decay=0.1)
    velocity = 0.9 * data[rows, dim:] + in_numpy(data[rows, :dim], grads, 1.0, 3.0, 0.1)
    expected = data[rows, :dim] - 0.5 * velocity

    update_of(optimizer)(data, dim, rows, grads, 0)

    np.testing.assert_allclose(data[rows, :dim], expected, rtol=1e-4, atol=1e-5)


def test_clipping_a_dense_table_takes_the_norm_of_the_whole_array() -> None:
    table = (
        LocalCluster()
        .worker(0)
        .dense_table("w", (3, 2000), optimizer=SGD(lr=1.0, clip_value=2.0, clip_norm=5.0))
    )
    grad = np.random.default_rng(2).standard_normal((3, 2000)) * 3

    table.push(grad)

    clipped = np.clip(grad, -2, 2)
    np.testing.assert_allclose(
        table.pull(), -clipped * 5.0 / np.linalg.norm(clipped), rtol=1e-4, atol=1e-7
    )


def test_clipping_by_norm_equals_torch() -> None:
    torch = pytest.importorskip("torch")
    table = LocalCluster().worker(0).dense_table("w", (70, 90), optimizer=SGD(1.0, clip_norm=2.0))
    grad = np.random.default_rng(3).standard_normal((70, 90)).astype(F)
    weights = torch.nn.Parameter(torch.zeros(70, 90))
    weights.grad = torch.tensor(grad)

    table.push(grad)

    torch.nn.utils.clip_grad_norm_([weights], 2.0)
    torch.optim.SGD([weights], lr=1.0).step()
    np.testing.assert_allclose(table.pull(), weights.detach().numpy(), rtol=1e-4, atol=1e-7)


def test_a_gradient_of_zeros_is_clipped_to_itself() -> None:
    table = LocalCluster().worker(0).dense_table("w", (4,), optimizer=SGD(clip_norm=1.0))

    table.push(np.zeros(4))

    assert (table.pull() == 0).all()


def test_rows_without_a_gradient_do_not_decay() -> None:
    table = LocalCluster().worker(0).sparse_table("t", 1, optimizer=SGD(1.0, weight_decay=0.5))
    table.assign([1, 2], [[4.0], [4.0]])

    table.push([1], [[0.0]])

    assert table.pull([1, 2])[:, 0].tolist() == [2.0, 4.0]


def test_what_is_off_leaves_gradients_alone() -> None:
    assert not update_of(Adam())._prepares
    assert update_of(SGD(clip_norm=1.0))._prepares


@pytest.mark.parametrize("mode", ["async", "sync"])
def test_a_schedule_follows_the_tables_clock(mode: str) -> None:
    cluster = LocalCluster(2, mode)
    tables = [
        cluster.worker(rank).dense_table("w", (1,), optimizer=SGD(1.0, schedule=StepDecay(2, 0.5)))
        for rank in (0, 1)
    ]
    steps = []
    for _ in range(4):
        before = float(tables[0].pull()[0])
        for rank in (0, 1):
            tables[rank].push([1.0])
            cluster.worker(rank).step()
        steps.append(before - float(tables[0].pull()[0]))

    # async: each push is an update of its own; sync: a round is one
    assert steps == ([2.0, 1.0, 0.5, 0.25] if mode == "async" else [2.0, 2.0, 1.0, 1.0])


def test_rounds_that_close_at_once_have_their_own_place_in_the_schedule() -> None:
    cluster = LocalCluster(2, "sync")
    optimizer = SGD(1.0, schedule=StepDecay(1, 0.5))
    table = cluster.worker(0).dense_table("w", (1,), optimizer=optimizer)
    for _ in range(3):
        table.push([1.0])
        cluster.worker(0).step()

    cluster.worker(1).close()

    assert table.pull().tolist() == [-1.75]


def test_a_learning_rate_is_set_for_a_table_and_scheduled_on() -> None:
    cluster = LocalCluster()
    optimizer = SGD(1.0, schedule=Warmup(2, 0.5))
    table = cluster.worker(0).dense_table("w", (1,), optimizer=optimizer)
    table.push([1.0])

    cluster.engine.set_lr(0, 0.1)
    table.push([1.0])

    assert table.pull().tolist() == pytest.approx([-0.575])
    assert cluster.engine.table(0).spec.optimizer == optimizer


@pytest.mark.parametrize("lr", [-1.0, float("nan"), float("inf"), True, "fast", None])
def test_a_wrong_learning_rate_is_refused(lr: object) -> None:
    cluster = LocalCluster()
    cluster.worker(0).dense_table("w", (1,), optimizer=FTRL())

    with pytest.raises(SettingError, match="lr must be a finite number, 0 or more"):
        cluster.engine.set_lr(0, lr)
