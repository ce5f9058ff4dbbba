"""Gradients clipped together: by the norm of a push, of a round, and of a worker's whole step."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from kv.clipping import Clipping
from kv.engine import Engine
from kv.errors import NonFiniteError, SettingError
from kv.global_norm import ROWS, GlobalNorm
from kv.initializers import Zeros
from kv.kernels.gradients import clip_rows, clipped_total, prepare
from kv.kernels.jit import frozen
from kv.local import LocalCluster
from kv.optimizers import SGD, Adagrad, Optimizer
from kv.protocols import Worker
from pslite import local_cluster

F = np.float32
LIMITS = st.sampled_from([0.3, 1.0, np.inf])


def in_numpy(g: np.ndarray, value: float, norm: float) -> np.ndarray:
    """Each number by value, then each row by its norm; float64."""
    g = np.clip(g.astype(np.float64), -value, value)
    lengths = np.sqrt((g * g).sum(axis=1, keepdims=True))
    return g * np.minimum(1.0, norm / np.maximum(lengths, 1e-300))


def random_grads(seed: int, n: int, dim: int) -> np.ndarray:
    """Some rows are short, some long, some zero."""
    rng = np.random.default_rng(seed)
    return (rng.standard_normal((n, dim)) * rng.choice([0, 0.05, 1], (n, 1))).astype(F)


@given(
    n=st.integers(0, 9),
    dim=st.integers(1, 20),
    value=LIMITS,
    norm=LIMITS,
    seed=st.integers(0, 2**32 - 1),
)
def test_rows_are_clipped_counted_and_squared_by_the_formula(
    n: int, dim: int, value: float, norm: float, seed: int
) -> None:
    grads = frozen(random_grads(seed, n, dim))
    out, ready = np.empty((n, dim), F), np.empty((n, dim), F)
    limits = F(value), F(norm)

    count, square = clip_rows(grads, *limits, out)

    expected = in_numpy(grads, *limits)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-7)
    assert square == pytest.approx((expected**2).sum(), rel=1e-5)
    assert square == pytest.approx(clipped_total(grads, *limits), rel=1e-6)
    lengths = np.linalg.norm(np.clip(grads, -limits[0], limits[0]), axis=1)
    if not np.isclose(lengths, norm, rtol=1e-6).any():  # else rounding decides
        changed = (np.abs(grads) > value).any(axis=1) | (lengths > norm)
        assert count == changed.sum()
    rows, data = np.arange(n), np.zeros((n, dim), F)
    assert prepare(data, dim, rows, grads, *limits, F(1), F(0), ready) == count
    np.testing.assert_array_equal(ready, out)


def test_compiled_and_plain_kernels_agree() -> None:
    grads, outs = random_grads(0, 6, 5), np.empty((2, 6, 5), F)

    counts = [clip_rows(frozen(grads), F(0.5), F(0.8), outs[0])]

    counts.append(clip_rows.py_func(grads, F(0.5), F(0.8), outs[1]))
    np.testing.assert_allclose(outs[0], outs[1], rtol=1e-6)
    assert counts[0] == pytest.approx(counts[1])


# -- on servers ---------------------------------------------------------------------------------


def sparse(worker: Worker, optimizer: Optimizer, **how: Any) -> Any:
    return worker.sparse_table("t", 2, optimizer=optimizer, initializer=Zeros(), **how)


@pytest.mark.parametrize("storage", ["float32", "float16"])
def test_a_push_is_scaled_to_the_norm_as_torch_does(storage: str) -> None:
    torch = pytest.importorskip("torch")
    table = sparse(LocalCluster().worker(0), SGD(1.0, clip_global_norm=2.0), storage=storage)
    grads = np.array([[3, 1], [-2, 5], [0.5, 0]], F)
    weights = torch.nn.Parameter(torch.zeros(3, 2))
    weights.grad = torch.tensor(grads)

    table.push([4, 9, 6], grads)
    table.push([5], [[0.25, 0.5]])  # is short

    torch.nn.utils.clip_grad_norm_([weights], 2.0)
    exact = 1e-6 if storage == "float32" else 1e-3
    np.testing.assert_allclose(table.pull([4, 9, 6]), -weights.grad.numpy(), rtol=exact)
    assert table.pull([5]).tolist() == [[-0.25, -0.5]]
    assert table.stats()[0]["clipped_pushes"] == 1


def test_equal_keys_are_added_before_the_norm_is_taken() -> None:
    table = sparse(LocalCluster().worker(0), SGD(1.0, clip_global_norm=1.0))

    table.push([7, 7, 8], [[3, 0], [-3, 0], [0, 1]])  # 3, not 1, were they not added

    np.testing.assert_allclose(table.pull([8]), [[0, -1]], rtol=1e-5)


def test_a_round_is_scaled_by_the_norm_of_its_sum() -> None:
    cluster = LocalCluster(2, "sync")
    tables = [sparse(w, SGD(1.0, clip_global_norm=1.0)) for w in cluster.workers]
    for table, worker, sign in zip(tables, cluster.workers, (1, -1), strict=True):
        table.push([1, 2], [[sign * 100, 0], [0, 1.5]])  # what is long goes in the sum
        worker.step()

    np.testing.assert_allclose(tables[0].pull([1, 2]), [[0, 0], [0, -1]], atol=1e-5)
    assert tables[0].stats()[0]["clipped_pushes"] == 1


def test_numbers_rows_and_pushes_are_clipped_in_this_order() -> None:
    optimizer = SGD(1.0, clip_value=3.0, clip_norm=2.0, clip_global_norm=1.0)
    table = sparse(LocalCluster().worker(0), optimizer)
    grads = np.array([[9, 0], [0.1, 0.2], [3, 4]], F)

    table.push([1, 2, 3], grads)

    clipped = in_numpy(grads, 3.0, 2.0)
    expected = -clipped * min(1.0, 1.0 / (np.linalg.norm(clipped) + 1e-6))
    np.testing.assert_allclose(table.pull([1, 2, 3]), expected, rtol=1e-5)
    stats = table.stats()[0]
    assert (stats["clipped_rows"], stats["clipped_pushes"]) == (2, 1)


@pytest.mark.parametrize("norm", [0.0, 3.0])
def test_a_dense_table_is_one_array(norm: float) -> None:
    optimizer = SGD(1.0, clip_norm=norm, clip_global_norm=2.0)
    table = LocalCluster().worker(0).dense_table("w", (3, 2000), optimizer=optimizer)
    grad = np.random.default_rng(2).standard_normal((3, 2000))

    table.push(grad)
    table.push(grad / 1e6)

    np.testing.assert_allclose(np.linalg.norm(table.pull()), 2.0, rtol=1e-4)
    assert table.stats()[0]["clipped_pushes"] == 1


def test_weights_decay_beside_a_gradient_that_was_scaled() -> None:
    table = sparse(LocalCluster().worker(0), SGD(1.0, weight_decay=0.5, clip_global_norm=1.0))
    table.assign([1], [[4.0, 0.0]])

    table.push([1], [[0.0, 10.0]])

    np.testing.assert_allclose(table.pull([1]), [[2.0, -1.0]], rtol=1e-5)


def test_the_norm_of_many_rows_is_added_up_in_turns() -> None:
    grads = np.full((2 * ROWS + 5, 1), 0.5, F)

    scale = GlobalNorm(SGD(clip_global_norm=1.0), is_whole=False).scale(grads)

    assert scale == pytest.approx(1 / np.sqrt(0.25 * len(grads)), rel=1e-5)


def test_a_large_push_over_several_parts_and_chunks_has_one_norm() -> None:
    count = 40_000
    keys, grads = np.arange(count) * 977, random_grads(3, count, 4)
    optimizer = SGD(1.0, clip_global_norm=1.0)

    def program(worker: Worker) -> np.ndarray:
        table = worker.sparse_table("big", 4, optimizer=optimizer, initializer=Zeros())
        worker.wait(table.push(keys, grads))
        return table.pull(keys)

    with local_cluster() as nodes:
        (pulled,) = nodes.run(program)

    np.testing.assert_allclose(pulled, -grads / np.linalg.norm(grads), rtol=1e-4, atol=1e-8)
    cluster = LocalCluster()
    np.testing.assert_array_equal(pulled, program(cluster.worker(0)))
    cluster.engine = Engine(1, parts=3)
    np.testing.assert_array_equal(pulled, program(cluster.worker(0)))


# -- on workers ---------------------------------------------------------------------------------


def test_all_tables_of_a_step_are_clipped_as_torch_clips_parameters() -> None:
    torch = pytest.importorskip("torch")
    rng = np.random.default_rng(5)
    shapes = [(4, 2), (3, 7), (5,)]
    grads = [rng.standard_normal(shape).astype(F) * 4 for shape in shapes]
    parameters = [torch.nn.Parameter(torch.zeros(shape)) for shape in shapes]
    for parameter, grad in zip(parameters, grads, strict=True):
        parameter.grad = torch.tensor(grad)
    worker = LocalCluster().worker(0)
    table = sparse(worker, SGD(1.0))
    dense = [worker.dense_table(str(s), s, optimizer=SGD(1.0)) for s in shapes[1:]]
    before = [grad.copy() for grad in grads]
    clipping = Clipping(clip_value=3.0, clip_global_norm=1.5)

    writes = [(table, [8, 2, 5, 3], grads[0]), *zip(dense, grads[1:], strict=True)]
    worker.push_many(writes, clipping=clipping)

    torch.nn.utils.clip_grad_value_(parameters, 3.0)
    torch.nn.utils.clip_grad_norm_(parameters, 1.5)
    pulled = [table.pull([8, 2, 5, 3]), *(d.pull() for d in dense)]
    for parameter, found in zip(parameters, pulled, strict=True):
        np.testing.assert_allclose(found, -parameter.grad.numpy(), rtol=1e-5)
    assert all((a == b).all() for a, b in zip(grads, before, strict=True))
    assert clipping.counts["steps"] == 1


def test_rows_are_clipped_by_their_norm_and_arrays_by_theirs() -> None:
    worker, clipping = LocalCluster().worker(0), Clipping(clip_norm=1.0)
    table, dense = sparse(worker, SGD(1.0)), worker.dense_table("d", (3, 3), optimizer=SGD(1.0))

    writes = [(table, [1, 2], [[3, 4], [0.3, 0.4]]), (dense, np.full((3, 3), 2.0))]
    worker.push_many(writes, clipping=clipping)

    np.testing.assert_allclose(table.pull([1, 2]), [[-0.6, -0.8], [-0.3, -0.4]], rtol=1e-6)
    np.testing.assert_allclose(dense.pull(), np.full((3, 3), -1 / 3), rtol=1e-6)
    assert clipping.counts == {"rows": 2}


def test_a_worker_over_the_network_clips_to_the_same_bits() -> None:
    def program(worker: Worker) -> list[np.ndarray]:
        optimizer = Adagrad(0.1)
        table = worker.sparse_table("t", 3, optimizer=optimizer)
        dense = worker.dense_table("d", (40,), optimizer=optimizer)
        clipping, rng = Clipping(clip_norm=0.7, clip_global_norm=1.0), np.random.default_rng(0)
        for _ in range(5):
            keys = rng.integers(0, 30, 20)
            writes = [(table, keys, rng.standard_normal((20, 3))), (dense, rng.standard_normal(40))]
            worker.wait(worker.push_many(writes, clipping=clipping))
        return [table.pull(np.arange(30), create=False), dense.pull()]

    with local_cluster(servers=2, workers=1, seed=1) as nodes:
        (remote,) = nodes.run(program)

    for there, here in zip(remote, program(LocalCluster(seed=1).worker(0)), strict=True):
        np.testing.assert_array_equal(there, here)


@pytest.mark.parametrize("number", [np.nan, np.inf])
def test_clipping_does_not_hide_what_is_no_number(number: float) -> None:
    worker, clipping = LocalCluster().worker(0), Clipping(clip_value=1.0)
    table = sparse(worker, SGD(1.0))
    worker.step()

    whose = rf"table t: gradient of key 6 is {number} \(step 1, worker 0\)"
    with pytest.raises(NonFiniteError, match=whose):
        worker.push_many([(table, [5, 6], [[1, 1], [1, number]])], clipping=clipping)

    assert table.stats()[0]["non_finite"] == 1
    assert (table.pull([5, 6]) == 0).all()


def test_a_wrong_limit_is_refused() -> None:
    with pytest.raises(SettingError, match="clip_global_norm must be 0 or more"):
        Clipping(clip_global_norm=-1)
    assert not Clipping(clip_norm=None)  # type: ignore[arg-type]  # as an ini may leave it


def test_a_sum_of_finite_gradients_that_is_none_drops_its_round() -> None:
    cluster = LocalCluster(2, "sync")
    tables = [sparse(w, SGD(1.0)) for w in cluster.workers]
    for table in tables:
        table.push([3], [[0, 3e38]])
    cluster.worker(0).step()

    whose = r"table t: gradient of key 3 is inf \(the sum of round 0, which is dropped\)"
    with pytest.raises(NonFiniteError, match=whose):
        cluster.worker(1).step()

    assert tables[0].pull([3]).tolist() == [[0, 0]]
    assert tables[0].stats()[0]["non_finite"] == 1
