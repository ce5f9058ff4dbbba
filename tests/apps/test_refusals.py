"""A sample that poisons a gradient is named with its line, or left out."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, ClassVar

import numpy as np
import pytest
import torch
from click.testing import CliRunner

from apps.ctr.batch import Block, Rows
from apps.ctr.cli import main
from apps.ctr.dataset import Dataset, open_source
from apps.ctr.errors import BadOutputError, DataError
from apps.ctr.learner import Learner
from apps.ctr.modelconf import ModelConfig, model_config
from apps.ctr.models import Network, network_class
from apps.ctr.origin import Origin, Suspects
from apps.ctr.run import read_metrics
from apps.ctr.snapshot import take_snapshot
from apps.ctr.trainer import TrainResult, train_together, train_worker
from kv.errors import NonFiniteError
from kv.local import LocalCluster
from pslite import local_cluster

BLOCKS = network_class("fnn").blocks
SMALL = ["train.batch_size=64", "sparse_dict.emb_dim=4", "net.layers=fc:8,tanh:-1,fc:1,sigmoid:-1"]


def poisoned(generate: Callable[..., Any], rows: dict[int, float], count: int = 1000) -> Any:
    """Rows of which some (from 0) have a first dense feature that ruins a step."""
    made = generate(rows=count, seed=1)
    for row, number in rows.items():
        made.dense[row, 0] = number
    return made


def conf_of(*overrides: str) -> ModelConfig:
    return model_config({}, overrides=[*SMALL, *overrides])


def dataset(path: Path, window_rows: int = 8192) -> Dataset:
    return Dataset(open_source(path, BLOCKS, window_rows=window_rows, finite=False))


def in_one_thread(data: Dataset, conf: ModelConfig, workers: int, mode: str) -> TrainResult:
    cluster = LocalCluster(workers, mode, seed=5)
    team = [cluster.worker(rank) for rank in range(workers)]
    return train_together(team, conf, data, sync=mode == "sync")


def over_the_network(data: Dataset, conf: ModelConfig, workers: int, mode: str) -> TrainResult:
    torch.set_num_threads(1)
    with local_cluster(2, workers, mode, seed=5) as cluster:
        results = cluster.run(lambda w: train_worker(w, conf, data, sync=mode == "sync"))
    assert results[0] is not None
    return results[0]


# -- where rows come from -----------------------------------------------------------------------


@pytest.mark.parametrize("kind", ["parquet", "text"])
@pytest.mark.parametrize("shuffle", [None, (3, 1)])
def test_every_row_of_a_batch_knows_its_line(
    tmp_path: Path, generate: Callable[..., Any], kind: str, shuffle: tuple[int, int] | None
) -> None:
    made = generate(rows=1000, seed=1)
    made.dense[:, 0] = np.arange(1, 1001)  # its own line
    if kind == "text":
        path = made.write_text(tmp_path / "train.tsv")
        path.write_text(path.read_text())
    else:
        path = made.write_parquet(tmp_path / "train.parquet", row_group_size=130)

    seen: list[int] = []
    for batch in dataset(path, window_rows=90).batches(64, shuffle=shuffle):
        low, high = batch.size // 3, batch.size
        lines = Origin(str(path), batch, low, high).lines(np.arange(high - low))
        assert lines.tolist() == batch.rows(low, high).blocks["x"].dense[:, 0].tolist()
        seen += batch.lines().tolist()

    assert sorted(seen) == list(range(1, 1001))


def test_lines_are_named_with_their_file(tmp_path: Path, generate: Callable[..., Any]) -> None:
    path = generate(rows=50, seed=1).write_parquet(tmp_path / "part-0003.parquet")
    (batch,) = dataset(path).batches(64)
    origin = Origin(str(path), batch, 10, 50)

    assert origin.describe(np.array([4])) == "sample line 15 of part-0003.parquet"
    several = "sample lines 11, 12, 13 and 2 more of part-0003.parquet"
    assert origin.describe(np.arange(5)) == several


def test_a_file_to_be_tested_or_predicted_is_refused_with_the_line(
    tmp_path: Path, generate: Callable[..., Any]
) -> None:
    made = poisoned(generate, {731: np.nan})
    for path in (made.write_text(tmp_path / "x.tsv"), made.write_parquet(tmp_path / "x.parquet")):
        with pytest.raises(DataError, match=r"line 732: feature dense_user/001.* is nan; dense"):
            list(Dataset(open_source(path, BLOCKS)).batches(64))


# -- whose fault it is --------------------------------------------------------------------------


def suspects(**wrong: Any) -> Suspects:
    """Three rows; row 0 has keys 7 and 8, row 1 none, row 2 key 8."""
    starts = np.array([0, 2, 2, 3])
    keys, lengths = np.array([7, 8, 8], np.uint64), np.array([[2], [0], [1]], np.uint16)
    block = Block(np.zeros((3, 1), np.float32), keys, lengths, starts)
    fine = np.zeros((3, 5), np.float32)
    made = Suspects(
        Rows(np.zeros(3, np.float32), {"x": block}), {"x": fine}, {"x": fine}, fine[:, 0], None
    )
    return made._replace(**wrong)


def with_nan(*rows: int) -> dict[str, np.ndarray]:
    found = np.zeros((3, 5), np.float32)
    found[list(rows), 3] = np.nan
    return {"x": found}


@pytest.mark.parametrize(
    ("wrong", "rows"),
    [
        ({"inputs": with_nan(1), "grads": with_nan(0, 1, 2)}, [1]),
        ({"grads": with_nan(0, 2)}, [0, 2]),
        ({"grads": {"x": None}, "scores": np.array([0, 0, np.inf], np.float32)}, [2]),
        ({"key": 7}, [0]),
        ({"key": 8}, [0, 2]),
        ({"key": 9}, [0, 1, 2]),
        ({}, [0, 1, 2]),
    ],
)
def test_the_rows_to_blame_are_found(wrong: dict[str, Any], rows: list[int]) -> None:
    assert suspects(**wrong).culprits().tolist() == rows


# -- training -----------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("run", "mode", "number"),
    [
        (in_one_thread, "async", np.nan),
        (in_one_thread, "sync", 1e39),
        (over_the_network, "async", -np.inf),
        (over_the_network, "sync", np.nan),
    ],
)
def test_a_poisoned_sample_ends_the_training_with_its_line(
    tmp_path: Path, generate: Callable[..., Any], run: Callable[..., Any], mode: str, number: float
) -> None:
    with np.errstate(over="ignore"):
        number = float(np.float32(number))
    made = poisoned(generate, {431: number})
    data = dataset(made.write_parquet(tmp_path / "part-0003.parquet", row_group_size=100))

    whose = (
        r"table (embedding: gradient of key \d+|net\.\S+: gradient at \[.*\]) is (nan|-?inf) "
        r"\(step \d+, worker [01]; sample line 432 of part-0003.parquet, "
        rf"whose feature dense_user/001_age is {number}\)"
    )
    with pytest.raises(NonFiniteError, match=whose):
        run(data, conf_of("train.shuffle=true"), 2, mode)


@pytest.mark.parametrize(
    ("run", "mode", "depth"),
    [
        (in_one_thread, "async", 0),
        (in_one_thread, "sync", 2),
        (over_the_network, "sync", 0),
        (over_the_network, "async", 3),
    ],
)
def test_poisoned_samples_may_be_left_out(
    tmp_path: Path,
    generate: Callable[..., Any],
    run: Callable[..., Any],
    mode: str,
    depth: int,
    caplog: pytest.LogCaptureFixture,
) -> None:
    made = poisoned(generate, {431: np.nan, 440: np.nan, 999: np.inf})
    data = dataset(made.write_parquet(tmp_path / "train.parquet", row_group_size=100))
    conf = conf_of("train.on_non_finite=skip", "train.epoch=2", f"train.pipeline_depth={depth}")

    result = run(data, conf, 2, mode)

    assert result.skipped_samples == 6
    assert result.train_samples == 2 * 997
    assert result.train_logloss is not None
    assert result.train_logloss < 0.7
    assert all(np.isfinite(values).all() for values in result.snapshot.dense.values())
    warned = [record.message for record in caplog.records if "left out" in record.message]
    assert (
        any("sample lines 432, 441 of train.parquet" in text for text in warned)
        or depth
        or (mode == "sync")
    )


def test_a_step_without_a_sample_is_the_step_of_the_others(
    tmp_path: Path, generate: Callable[..., Any]
) -> None:
    made = poisoned(generate, {3: np.nan, 7: np.inf}, 20)
    rows = next(dataset(made.write_parquet(tmp_path / "x.parquet")).batches(20)).rows()
    conf, good = conf_of("train.on_non_finite=skip"), np.delete(np.arange(20), [3, 7])
    learners = [
        Learner(LocalCluster(seed=3).worker(0), conf, dataset(tmp_path / "x.parquet").schema)
        for _ in range(2)
    ]

    trained = learners[0].train(rows, 20)

    assert trained.kept.tolist() == good.tolist()
    expected = learners[1].train(rows.take(good), 20)
    assert trained.loss == expected.loss
    np.testing.assert_array_equal(trained.scores, expected.scores)
    found, same = (take_snapshot(learner) for learner in learners)
    places = np.searchsorted(found.keys, same.keys)  # rows were made for the others' keys, too
    np.testing.assert_array_equal(found.embeddings[places], same.embeddings)
    assert all((found.dense[name] == same.dense[name]).all() for name in same.dense)
    assert learners[0].embedding.stats()[0]["non_finite"] == 1  # type: ignore[attr-defined]


@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_a_training_that_diverges_is_not_the_samples_fault(
    tmp_path: Path, generate: Callable[..., Any], policy: str
) -> None:
    data = dataset(generate(rows=300, seed=1).write_parquet(tmp_path / "x.parquet"))
    explode = ["optimizer.optimizer=sgd", "optimizer.learning_rate=1e38", "train.epoch=3"]
    conf = conf_of(*explode, f"train.on_non_finite={policy}")

    with pytest.raises(NonFiniteError, match=r"diverge.*take a smaller learning_rate"):
        in_one_thread(data, conf, 1, "async")


class Bare(Network):
    """One weight for each column and a probability, of which torch refuses NaN."""

    output: ClassVar[str] = "probability"  # type: ignore[misc]  # as the base says it

    def __init__(self, shapes: Any, layers: Any) -> None:
        super().__init__(shapes, layers)
        self.weights = torch.nn.Parameter(torch.zeros(shapes["x"].width))

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # type: ignore[override]
        return torch.sigmoid(x @ self.weights)


@pytest.mark.parametrize("policy", ["stop", "skip"])
def test_an_output_that_has_no_loss_is_told_likewise(
    tmp_path: Path, generate: Callable[..., Any], policy: str
) -> None:
    made = poisoned(generate, {150: np.nan}, 200)
    data = dataset(made.write_parquet(tmp_path / "x.parquet"))
    model = f"net.model={__name__}:Bare"
    conf = conf_of(model, f"train.on_non_finite={policy}")

    if policy == "skip":
        assert in_one_thread(data, conf, 1, "async").skipped_samples == 1
    else:
        whose = r"Bare returns nan \(step 2, worker 0\) \(sample line 151 of x.parquet, whose"
        with pytest.raises(BadOutputError, match=whose):
            in_one_thread(data, conf, 1, "async")


# -- the command --------------------------------------------------------------------------------


def train(folder: Path, mode: str, overrides: Sequence[str] = ()) -> Any:
    (folder / "model.ini").write_text("")
    args = ["train", "--conf", str(folder / "model.ini"), "--data", str(folder), "--mode", mode]
    args += ["--servers", "1", "--workers", "2", "--out", str(folder / mode)]
    settings = [part for text in [*SMALL, *overrides] for part in ("--set", text)]
    return CliRunner().invoke(main, [*args, *settings])


@pytest.mark.parametrize("mode", ["local", "threads"])
def test_the_command_ends_with_the_line_or_counts_what_it_left_out(
    tmp_path: Path, generate: Callable[..., Any], mode: str, caplog: pytest.LogCaptureFixture
) -> None:
    poisoned(generate, {77: np.nan}).write_text(tmp_path / "final_train.tsv")
    generate(rows=100, seed=2).write_text(tmp_path / "final_test.tsv")

    result = train(tmp_path, mode)

    assert result.exit_code == 2
    said = result.output.splitlines()[-1]
    assert said.startswith("pslite-ctr: error: table embedding: gradient of key ")
    assert "; sample line 78 of final_train.tsv, whose feature dense_user/001 is nan)" in said

    result = train(tmp_path, mode, ["train.on_non_finite=skip", "train.clip_global_norm=0.01"])

    assert result.exit_code == 0, result.output
    assert "a sample left out: table embedding: gradient of key" in caplog.text
    figures = read_figures(tmp_path / mode)
    assert (figures["skipped_samples"], figures["train_samples"]) == (1, 999)
    assert figures["clipped"]["steps"] > 0


def read_figures(run: Path) -> dict[str, Any]:
    from apps.ctr.job import RunFolder

    return read_metrics(RunFolder(path=run))


@pytest.mark.slow
def test_a_cluster_of_processes_says_the_line(
    tmp_path: Path, generate: Callable[..., Any], capfd: pytest.CaptureFixture[str]
) -> None:
    poisoned(generate, {431: np.nan}).write_parquet(tmp_path / "final_train.parquet")

    result = train(tmp_path, "cluster")

    said = capfd.readouterr()
    assert result.exit_code == 2
    whose = "sample line 432 of final_train.parquet, whose feature dense_user/001_age is nan"
    assert whose in said.out + said.err + result.output


def test_a_pipeline_that_servers_would_refuse_is_refused_before_anything_runs(
    tmp_path: Path, generate: Callable[..., Any]
) -> None:
    generate(rows=100, seed=1).write_parquet(tmp_path / "final_train.parquet")

    result = train(tmp_path, "local", ["train.pipeline_depth=2", "param_sync.mode=dc_async"])

    assert result.exit_code == 2
    assert "[train] pipeline_depth: depth 2 in mode dc_async needs" in result.output
    assert not (tmp_path / "local").exists()
