"""Trainings that repeat to the bit, started as users start them, and what they refuse."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result

from apps.ctr.cli import main

ROOT = Path(__file__).resolve().parents[2]

MODEL = """
[sparse_dict]
emb_dim = 4
[net]
model = fnn
layers = fc:8,tanh:-1,fc:1,sigmoid:-1
[optimizer]
optimizer = adagrad
learning_rate = 0.05
[train]
epoch = 2
batch_size = 20
shuffle = true
[debug]
interval = 5
"""

Train = Callable[..., Result]
FIGURES = ("digest", "train_logloss", "test_auc", "test_logloss", "test_calibration")


@pytest.fixture
def train(tmp_path: Path, generate: Callable[..., Any]) -> Train:
    """train(name of the run, options...): a training into that folder of `tmp_path`."""
    data = tmp_path / "features"
    data.mkdir()
    generate(rows=730, seed=1).write_parquet(data / "final_train.parquet")
    generate(rows=333, seed=2).write_parquet(data / "final_test.parquet")
    (tmp_path / "model.ini").write_text(MODEL)

    def act(name: str, *options: str) -> Result:
        args = ["train", "--conf", str(tmp_path / "model.ini"), "--data", str(data)]
        args += ["--cluster", str(ROOT / "conf/local.ini"), "--out", str(tmp_path / name)]
        return CliRunner().invoke(main, [*args, "--workers", "2", *options])

    return act


def files_of(folder: Path) -> dict[str, bytes]:
    """All files under a folder, by their names."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for path in sorted(folder.rglob("*"))
        if path.is_file()
    }


def assert_same(one: Path, other: Path) -> None:
    """Two runs have the same model, figures, and losses on the way."""
    assert files_of(one / "model") == files_of(other / "model")
    figures = [json.loads((run / "metrics.json").read_text()) for run in (one, other)]
    assert [figures[0][key] for key in FIGURES] == [figures[1][key] for key in FIGURES]
    lines = [(run / "metrics.jsonl").read_text().splitlines() for run in (one, other)]
    assert len(lines[0]) == len(lines[1]) > 3
    for ours, theirs in zip(*(map(json.loads, some) for some in lines), strict=True):
        assert {**ours, "samples_per_second": 0} == {**theirs, "samples_per_second": 0}


CLUSTER = ("--mode", "cluster", "--servers", "2")


def record_and_replay(train: Train, tmp_path: Path, *options: str) -> None:
    record = str(tmp_path / "order")
    first = train("first", *CLUSTER, *options, "--record", record)
    assert first.exit_code == 0, first.output
    again = train("again", *CLUSTER, *options, "--replay", record)
    assert again.exit_code == 0, again.output

    assert_same(tmp_path / "first", tmp_path / "again")


@pytest.mark.slow
def test_an_asynchronous_training_is_replayed_to_the_same_model(
    train: Train, tmp_path: Path
) -> None:
    record_and_replay(train, tmp_path, "--async", "--set", "train.prefetch=true")


@pytest.mark.slow
@pytest.mark.parametrize("mode", ["async", "dc_async", "ssp", "semi_sync"])
def test_every_mode_is_replayed_to_the_same_model(train: Train, tmp_path: Path, mode: str) -> None:
    options = ["param_sync.lr_by_staleness=yes", "server.threads=2", f"param_sync.mode={mode}"]
    record_and_replay(train, tmp_path, *(word for text in options for word in ("--set", text)))


@pytest.mark.slow
def test_two_deterministic_trainings_give_the_same_files(train: Train, tmp_path: Path) -> None:
    for name in ("one", "other"):
        result = train(name, *CLUSTER, "--sync", "--set", "run.deterministic=yes")
        assert result.exit_code == 0, result.output

    assert_same(tmp_path / "one", tmp_path / "other")


def test_a_deterministic_training_in_one_process_is_the_same_in_threads(
    train: Train, tmp_path: Path
) -> None:
    for mode in ("local", "threads"):
        result = train(mode, "--mode", mode, "--sync", "--set", "run.deterministic=yes")
        assert result.exit_code == 0, result.output

    assert_same(tmp_path / "local", tmp_path / "threads")


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (["--mode", "cluster", "--async"], "[param_sync] mode: in mode async the order"),
        (["--mode", "threads", "--async"], "record the run (--record DIR)"),
        (["--mode", "local", "--set", "train.threads=2"], "[train] threads: expected 1"),
        (["--mode", "threads", "--sync", "--set", "net.model=a:B"], "a:B"),
        (["--mode", "cluster", "--sync", "--set", "chaos.plan=drop 2%"], "[chaos] plan"),
        (["--mode", "local", "--record", "order"], "use --mode cluster"),
    ],
)
def test_what_cannot_repeat_is_refused_before_anything_starts(
    train: Train, tmp_path: Path, options: list[str], problem: str
) -> None:
    result = train("run", *options, "--set", "run.deterministic=yes")

    assert result.exit_code == 2
    assert problem in result.output
    assert not (tmp_path / "run" / "model").exists()
