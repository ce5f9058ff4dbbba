"""The same training through processes, threads and one process gives the same model.

Processes are started as users start them. Each report of progress is compared too, so that equal
figures at the end cannot hide steps that differ.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from apps.ctr.cli import main
from feature_extract.extract import extract
from sample.generate import generate as generate_logs
from sample.join import join

ROOT = Path(__file__).resolve().parents[2]

MODEL = """
[sparse_dict]
emb_dim = 4
[net]
model = {model}
layers = fc:8,tanh:-1,fc:1,sigmoid:-1
[optimizer]
optimizer = {optimizer}
learning_rate = 0.05
[train]
epoch = 2
batch_size = 100
[debug]
interval = 1
"""

Train = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def final(tmp_path_factory: pytest.TempPathFactory, generate: Callable[..., Any]) -> Path:
    folder = tmp_path_factory.mktemp("features")
    generate(rows=1530, seed=1).write_parquet(folder / "final_train.parquet")
    generate(rows=333, seed=2).write_parquet(folder / "final_test.parquet")
    return folder


@pytest.fixture
def train(tmp_path: Path, final: Path) -> Train:
    """train(name of the run, model, optimizer, options...) -> figures and progress."""

    def act(name: str, model: str, optimizer: str, *options: str) -> dict[str, Any]:
        ini, out = tmp_path / f"{name}.ini", tmp_path / name
        ini.write_text(MODEL.format(model=model, optimizer=optimizer))
        args = ["train", "--conf", str(ini), "--data", str(final), "--out", str(out)]
        args += ["--cluster", str(ROOT / "conf/local.ini"), *options]
        result = CliRunner().invoke(main, args)
        assert result.exit_code == 0, result.output
        figures: dict[str, Any] = json.loads((out / "metrics.json").read_text())
        lines = (out / "metrics.jsonl").read_text().splitlines()
        figures["progress"] = [_progress(json.loads(line)) for line in lines]
        return figures

    return act


def _progress(report: dict[str, Any]) -> dict[str, Any]:
    return {key: value for key, value in report.items() if key != "samples_per_second"}


def assert_same(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one["progress"] == other["progress"]
    assert len(one["progress"]) > 10
    for figure in ("digest", "test_auc", "test_logloss", "test_calibration", "train_logloss"):
        assert one[figure] == other[figure], figure


@pytest.mark.slow
@pytest.mark.parametrize(
    ("model", "optimizer"),
    [("fnn", "adagrad"), ("dssm", "adam")],
)
def test_one_worker_through_the_cluster_equals_local_mode_step_by_step(
    train: Train, model: str, optimizer: str
) -> None:
    local = train("local", model, optimizer, "--mode", "local")
    cluster = train("cluster", model, optimizer, "--mode", "cluster", "--servers", "2")

    assert (local["servers"], cluster["servers"], cluster["workers"]) == (0, 2, 1)
    assert_same(local, cluster)


@pytest.mark.parametrize("workers", ["2", pytest.param("3", marks=pytest.mark.soak)])
def test_sync_processes_equal_one_process_that_adds_in_rank_order(
    train: Train, workers: str
) -> None:
    options = ["--workers", workers, "--sync", "--servers", "2"]
    one = train("one", "fnn", "nesterov", "--mode", "local", *options)
    threads = train("threads", "fnn", "nesterov", "--mode", "threads", *options)
    processes = train("processes", "fnn", "nesterov", "--mode", "cluster", *options)

    assert_same(one, threads)
    assert_same(one, processes)


@pytest.mark.slow
def test_sync_processes_give_the_same_twice(train: Train) -> None:
    options = ["--workers", "3", "--sync", "--servers", "2"]
    once = train("once", "fnn", "nesterov", "--mode", "cluster", *options)
    again = train("again", "fnn", "nesterov", "--mode", "cluster", *options)

    assert_same(once, again)


@pytest.mark.slow
def test_asynchronous_workers_stay_close_to_local_mode_on_generated_logs(tmp_path: Path) -> None:
    raw, samples, features = tmp_path / "raw", tmp_path / "samples", tmp_path / "features"
    generate_logs(raw, impressions=100_000, behaviors=500_000, seed=3)
    join(raw, samples)
    extract(
        ROOT / "conf/features_taobao.ini", samples / "train.tsv", samples / "test.tsv", features
    )
    runs = {
        "local": ["--mode", "local"],
        "1": ["--mode", "cluster", "--servers", "2", "--workers", "1"],
        "2": ["--mode", "cluster", "--servers", "2", "--workers", "2"],
        "4": ["--mode", "cluster", "--servers", "2", "--workers", "4"],
    }
    auc = {}
    for name, options in runs.items():
        out = tmp_path / name
        args = ["train", "--conf", str(ROOT / "conf/fnn.ini"), "--data", str(features)]
        args += ["--cluster", str(ROOT / "conf/local.ini"), "--out", str(out), *options]
        result = CliRunner().invoke(main, args)
        assert result.exit_code == 0, result.output
        auc[name] = json.loads((out / "metrics.json").read_text())["test_auc"]
    print(auc)

    assert auc["1"] == auc["local"]
    assert auc["2"] == pytest.approx(auc["local"], abs=0.01)
    assert auc["4"] == pytest.approx(auc["local"], abs=0.01)
