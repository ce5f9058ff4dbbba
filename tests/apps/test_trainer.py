"""Training in this process: what is learned, and that it is the same however it is run."""

from __future__ import annotations

import json
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from numpy.testing import assert_allclose, assert_array_equal
from sklearn.metrics import log_loss, roc_auc_score

from apps.ctr.batch import Rows
from apps.ctr.dataset import Dataset, open_source
from apps.ctr.learner import Learner
from apps.ctr.modelconf import Layer, ModelConfig, model_config
from apps.ctr.models import BlockShape, Network, network_class
from apps.ctr.progress import Progress, Step
from apps.ctr.snapshot import take_snapshot
from apps.ctr.trainer import TrainResult, score_part, train_steps, train_together, train_worker
from kv.local import LocalCluster
from kv.pipelining import Pipeline
from pslite.session import local_cluster


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, generate: Callable[..., Any]) -> list[Path]:
    """3 000 rows to train on, in row groups of 500, and 1 001 to test on."""
    folder = tmp_path_factory.mktemp("data")
    train = generate(rows=3000, seed=1).write_parquet(folder / "train.parquet", row_group_size=500)
    return [train, generate(rows=1001, seed=2).write_parquet(folder / "test.parquet")]


def conf_of(*overrides: str) -> ModelConfig:
    small = ["train.batch_size=128", "test.batch_size=100", "optimizer.learning_rate=0.05"]
    return model_config({}, overrides=[*small, *overrides])


def untrained(conf: ModelConfig) -> ModelConfig:
    """The same without a step, which no ini may ask for."""
    return replace(conf, train=replace(conf.train, epoch=0))


def data_of(path: Path, conf: ModelConfig) -> Dataset:
    return Dataset(open_source(path, network_class(conf.net.model).blocks))


def train(
    files: list[Path], conf: ModelConfig, workers: int = 1, mode: str = "sync", **how: Any
) -> TrainResult:
    cluster = LocalCluster(workers, mode, seed=7)
    team = [cluster.worker(rank) for rank in range(workers)]
    data = [data_of(path, conf) for path in files]
    return train_together(team, conf, *data, sync=mode == "sync", **how)


def train_in_threads(
    files: list[Path], conf: ModelConfig, workers: int, mode: str = "sync"
) -> TrainResult:
    cluster = LocalCluster(workers, mode, seed=7, threads=True)
    data = [data_of(path, conf) for path in files]

    def work(rank: int) -> TrainResult | None:
        with cluster.worker(rank) as worker:
            return train_worker(worker, conf, *data, sync=mode == "sync")

    with ThreadPoolExecutor(workers) as pool:
        results = list(pool.map(work, range(workers)))
    assert results[0] is not None
    assert results[1:] == [None] * (workers - 1)
    return results[0]


@pytest.mark.parametrize("optimizer", ["sgd", "momentum", "nesterov", "adagrad", "adam"])
@pytest.mark.parametrize("model", ["fnn", "dssm"])
def test_a_model_learns(files: list[Path], model: str, optimizer: str) -> None:
    layers = "fc:16,tanh:-1,fc:1,sigmoid:-1" if model == "fnn" else "fc:16,tanh:-1,fc:8"
    rate = {"sgd": 2.0, "momentum": 0.2, "nesterov": 0.2, "adagrad": 0.1, "adam": 0.01}[optimizer]
    conf = conf_of(
        f"net.model={model}",
        f"net.layers={layers}",
        f"optimizer.optimizer={optimizer}",
        f"optimizer.learning_rate={rate}",
        "train.epoch=4",
        "train.shuffle=true",
    )

    result = train(files, conf)

    assert result.train_samples == 4 * 3000
    assert result.test is not None
    assert result.test.rows == 1001  # none dropped: 1001 is no multiple of a batch
    assert result.test.auc is not None
    assert result.test.auc > 0.7


def test_test_figures_are_scikit_learns_on_all_rows(files: list[Path]) -> None:
    conf, cluster = conf_of(), LocalCluster(1, "sync", seed=7)
    data, test = (data_of(path, conf) for path in files)
    result = train_together([cluster.worker(0)], conf, data, test, sync=True)

    learner = Learner(cluster.worker(0), conf, data.schema)
    steps = list(score_part(learner, test, 0, 1))

    labels = np.concatenate([step.labels for step in steps])
    scores = np.concatenate([step.scores for step in steps])
    assert result.test is not None
    assert result.test.auc == pytest.approx(roc_auc_score(labels, scores), abs=1e-12)
    assert result.test.logloss == pytest.approx(log_loss(labels, scores), rel=1e-6)


@pytest.mark.parametrize("mode", ["sync", "async"])
def test_the_same_run_twice_gives_the_same_bits(files: list[Path], mode: str) -> None:
    conf = conf_of("train.shuffle=true", "train.epoch=2", "optimizer.optimizer=adam")

    first, again = (train(files, conf, workers=3, mode=mode) for _ in range(2))
    other = train(files, conf_of("train.shuffle=true", "train.epoch=2", "train.seed=2"), workers=3)

    assert first.digest == again.digest
    assert (first.train_logloss, first.test) == (again.train_logloss, again.test)
    assert first.digest != other.digest


def test_parts_in_one_process_equal_a_sum_made_by_hand(files: list[Path]) -> None:
    """Sync mode with 3 workers is: gradients of the 3 parts, added in rank order, one SGD step."""
    conf = conf_of("optimizer.optimizer=sgd", "optimizer.learning_rate=0.5")
    cluster = LocalCluster(3, "sync", seed=7)
    learners = [
        Learner(cluster.worker(rank), conf, data_of(files[0], conf).schema) for rank in range(3)
    ]
    batch = next(data_of(files[0], conf).batches(100)).rows()
    parts = [batch.slice(0, 33), batch.slice(33, 66), batch.slice(66, 100)]
    expected = _sgd_by_hand(conf, data_of(files[0], conf), parts, len(batch))

    for learner, part in zip(learners, parts, strict=True):
        learner.train(part, len(batch))
    found = take_snapshot(learners[0])

    assert_array_equal(found.keys, expected.keys)
    assert_array_equal(found.embeddings, expected.embeddings)
    assert found.dense.keys() == expected.dense.keys()
    for name, weights in expected.dense.items():
        assert_array_equal(found.dense[name], weights)


def _sgd_by_hand(conf: ModelConfig, data: Dataset, parts: Sequence[Rows], size: int) -> Any:
    """Another cluster whose tables get the sum of the parts' gradients as one assignment."""
    cluster = LocalCluster(1, "async", seed=7)
    learner = Learner(cluster.worker(0), conf, data.schema)
    pushed: list[list[tuple[Any, ...]]] = []

    class Recorder:
        """The worker, but pushes are written down and not made."""

        def __getattr__(self, name: str) -> Any:
            return getattr(cluster.worker(0), name)

        def push_many(self, writes: list[tuple[Any, ...]], **how: Any) -> int:
            pushed.append([(w[0].name, *(np.array(a) for a in w[1:])) for w in writes])
            return 1

        def wait(self, request: int) -> None: ...

    learner.worker = Recorder()  # type: ignore[assignment]
    learner.pipeline = Pipeline(learner.worker, 0)
    for part in parts:
        learner.train(part, size)
    before = take_snapshot(learner)
    rate = np.float32(conf.optimizer.learning_rate)
    total = np.zeros_like(before.embeddings)
    dense = {name: np.zeros_like(weights) for name, weights in before.dense.items()}
    for writes in pushed:
        for name, *arrays in writes:
            if name == "embedding":
                total[np.searchsorted(before.keys, arrays[0])] += arrays[1]
            else:
                dense[name.removeprefix("net.")] += arrays[0]
    before.embeddings[:] -= rate * total
    for name, weights in before.dense.items():
        weights -= rate * dense[name]
    return before


@pytest.mark.parametrize("workers", [2, 3, 20])  # 20: some have no row
def test_one_step_in_parts_agrees_with_the_unsplit_batch(files: list[Path], workers: int) -> None:
    rate = ["optimizer.optimizer=sgd", "optimizer.learning_rate=0.5"]
    conf = conf_of(*rate, "train.batch_size=16")

    def one_step(team: int) -> Any:
        cluster = LocalCluster(team, "sync", seed=7)
        data = data_of(files[0], conf)
        runs = [
            train_steps(Learner(cluster.worker(rank), conf, data.schema), data, sync=True)
            for rank in range(team)
        ]
        steps = [next(run) for run in runs]
        assert sum(len(step.labels) for step in steps) == 16
        return take_snapshot(Learner(cluster.worker(0), conf, data.schema))

    whole, split = one_step(1), one_step(workers)

    assert_array_equal(split.keys, whole.keys)
    assert_allclose(split.embeddings, whole.embeddings, atol=1e-5)
    for name, weights in whole.dense.items():
        assert_allclose(split.dense[name], weights, atol=1e-5)


def test_a_whole_run_in_parts_stays_close_to_the_unsplit_one(files: list[Path]) -> None:
    conf = conf_of("train.epoch=2")

    whole, split = train(files, conf), train(files, conf, workers=4)

    assert whole.test is not None
    assert split.test is not None
    assert split.test.logloss == pytest.approx(whole.test.logloss, abs=1e-3)


@pytest.mark.parametrize("optimizer", ["nesterov", "adagrad"])
def test_threads_in_sync_mode_equal_one_process_to_the_bit(
    files: list[Path], optimizer: str
) -> None:
    conf = conf_of(f"optimizer.optimizer={optimizer}", "train.shuffle=true", "train.epoch=2")

    together, threads = train(files, conf, workers=3), train_in_threads(files, conf, workers=3)

    assert threads.digest == together.digest
    assert threads.train_logloss == together.train_logloss
    assert threads.test == together.test


@pytest.mark.parametrize("workers", [1, 2, 4])
def test_asynchronous_threads_learn_as_well(files: list[Path], workers: int) -> None:
    conf = conf_of("train.epoch=3", "optimizer.optimizer=adagrad")
    alone = train(files, conf, mode="async")

    found = train_in_threads(files, conf, workers, mode="async")

    assert found.train_samples == alone.train_samples
    assert found.test is not None
    assert alone.test is not None
    assert found.test.rows == 1001
    assert found.test.auc == pytest.approx(alone.test.auc, abs=0.02)
    if workers == 1:
        assert found.digest == alone.digest


def test_index_zero_never_reaches_the_table(files: list[Path]) -> None:
    assert train(files, conf_of()).snapshot.keys.min() > 0


def test_testing_makes_no_rows(files: list[Path]) -> None:
    conf = untrained(conf_of())

    result = train(files, conf)

    assert len(result.snapshot.keys) == 0
    assert result.train_logloss is None
    assert result.test is not None


def test_more_workers_than_batches_is_no_trouble(files: list[Path]) -> None:
    conf = conf_of("train.batch_size=2999")  # two batches, one of one row

    for mode in ("async", "sync"):
        result = train(files, conf, workers=4, mode=mode)
        assert result.train_samples == 3000


class Linear(Network):
    """A user's own network, with first values of its own."""

    def __init__(self, shapes: Mapping[str, BlockShape], layers: Sequence[Layer]) -> None:
        super().__init__(shapes, layers)
        self.weights = torch.nn.Parameter(torch.full((shapes["x"].width,), 0.25))

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return torch.sigmoid(x @ self.weights - 1)


def test_a_users_own_network_trains(files: list[Path], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("apps.ctr.models.NETWORKS", {"linear": Linear})

    start = train(files, untrained(conf_of("net.model=linear")))
    trained = train(files, conf_of("net.model=linear", "train.epoch=3"), workers=2)

    assert_array_equal(start.snapshot.dense["weights"], np.float32(0.25))
    assert trained.test is not None
    assert trained.test.auc is not None
    assert trained.test.auc > 0.7


def test_progress_is_reported_each_interval(files: list[Path], tmp_path: Path) -> None:
    said: list[str] = []
    times = iter(range(1000))
    progress = Progress(10, tmp_path / "metrics.jsonl", said.append, now=lambda: float(next(times)))

    train(files, conf_of(), listener=progress)
    progress.close()

    records = [json.loads(line) for line in (tmp_path / "metrics.jsonl").read_text().splitlines()]
    assert [r["batch"] for r in records] == [10, 20]
    assert [r["rows"] for r in records] == [1280, 2560]
    assert [r["samples_per_second"] for r in records] == [1280, 1280]
    assert said[0].startswith("epoch 1 batch 10: loss 0.")


def test_progress_measures_the_rows_since_the_last_report() -> None:
    said: list[str] = []
    progress = Progress(1, None, said.append)
    one, zero = np.ones(1, np.float32), np.zeros(1, np.float32)
    labels, half = np.concatenate([one, zero]), np.full(2, 0.5, np.float32)

    progress(Step(1, 1, labels, np.concatenate([one, zero]), 0.0))
    progress(Step(1, 2, labels, half, 0.0))
    progress(Step(1, 3, one, one, 0.0))

    areas = [line.partition("AUC ")[2].partition(",")[0] for line in said]
    assert areas == ["1.0000", "0.5000", "undefined"]


def test_values_asked_for_ahead_change_nothing_in_one_process_and_in_rounds(
    files: list[Path],
) -> None:
    plain, ahead = conf_of("train.epoch=2"), conf_of("train.epoch=2", "train.prefetch=true")

    for mode in ("async", "sync"):
        assert train(files, ahead, 2, mode).digest == train(files, plain, 2, mode).digest


def test_a_worker_of_a_cluster_asks_ahead_for_all_batches_but_a_pieces_first(
    files: list[Path],
) -> None:
    conf = conf_of("train.prefetch=true", "train.shuffle=true")
    data = [data_of(path, conf) for path in files]
    with local_cluster(servers=2, seed=7) as nodes:
        (worker,) = nodes.workers
        result = train_worker(worker, conf, *data, sync=False)

    assert result is not None
    assert result.train_samples == 3000
    assert result.test is not None
    assert worker.counts["prefetched"] == worker.counts["prefetch_used"] == -(-3000 // 128) - 1
