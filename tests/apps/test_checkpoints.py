"""A training run that goes on from a checkpoint is the run that was never interrupted."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
import time
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest
from click.testing import CliRunner

from apps.ctr.cli import main
from apps.ctr.dataset import Dataset, open_source
from apps.ctr.errors import CtrError
from apps.ctr.modelconf import ModelConfig, model_config
from apps.ctr.models import network_class
from apps.ctr.progress import Step
from apps.ctr.trainer import TrainResult, train_together, train_worker
from kv.checkpoint import last_good
from kv.checkpoint.config import CheckpointConfig
from kv.local import LocalCluster
from pslite.audit import audit
from pslite.session import local_cluster

BATCHES = 8  # of an epoch
ROOT = Path(__file__).resolve().parents[2]


class StoppedError(Exception):
    """The run ends here."""


@pytest.fixture(scope="module")
def files(tmp_path_factory: pytest.TempPathFactory, generate: Callable[..., Any]) -> list[Path]:
    folder = tmp_path_factory.mktemp("data")
    train = generate(rows=500, seed=1).write_parquet(folder / "train.parquet", row_group_size=200)
    return [train, generate(rows=100, seed=2).write_parquet(folder / "test.parquet")]


def conf_of(*overrides: str) -> ModelConfig:
    small = ["train.batch_size=64", "train.epoch=2", "train.shuffle=true"]
    small += ["sparse_dict.emb_dim=4", "net.layers=fc:8,tanh:-1,fc:1,sigmoid:-1"]
    schedule = ["optimizer.optimizer=adam", "optimizer.schedule=warmup:20"]
    return model_config({}, overrides=[*small, *schedule, *overrides])


def stop_after(count: int) -> Callable[[Step], None]:
    left = [count]

    def listen(step: Step) -> None:
        left[0] -= 1
        if not left[0]:
            raise StoppedError

    return listen


def run_here(
    files: list[Path], conf: ModelConfig, how: dict[str, Any], checkpoint: CheckpointConfig
) -> TrainResult:
    workers, mode = how["workers"], how["mode"]
    cluster = LocalCluster(workers, mode, seed=7)
    data = [Dataset(open_source(path, network_class(conf.net.model).blocks)) for path in files]
    return train_together(
        [cluster.worker(rank) for rank in range(workers)],
        conf,
        *data,
        sync=mode == "sync",
        listener=how.get("listener"),
        checkpoint=checkpoint,
    )


def run_on_nodes(
    files: list[Path], conf: ModelConfig, how: dict[str, Any], checkpoint: CheckpointConfig
) -> TrainResult:
    data = [Dataset(open_source(path, network_class(conf.net.model).blocks)) for path in files]

    def work(worker: Any) -> TrainResult | None:
        listener = how.get("listener") if worker.rank == 0 else None
        options = {"sync": how["mode"] == "sync", "listener": listener, "checkpoint": checkpoint}
        return train_worker(worker, conf, *data, **options)

    shape = how.get("servers", 2), how["workers"], how["mode"]
    with local_cluster(*shape, seed=7, run_dir=how.get("run_dir")) as cluster:
        result = cluster.run(work)[0]
    assert result is not None
    return result


Runner = Callable[[list[Path], ModelConfig, dict[str, Any], CheckpointConfig], TrainResult]


@pytest.mark.parametrize(
    ("runner", "workers", "mode", "overrides"),
    [
        (run_here, 3, "sync", ()),
        (run_here, 2, "async", ()),
        (run_on_nodes, 2, "sync", ()),
        (run_on_nodes, 1, "async", ("train.prefetch=true",)),
        (run_here, 1, "async", ("train.pipeline_depth=2",)),
        (run_on_nodes, 2, "sync", ("train.pipeline_depth=3",)),
    ],
)
@pytest.mark.parametrize("stop", [11])
def test_a_run_that_was_stopped_goes_on_to_the_same_model(
    tmp_path: Path,
    files: list[Path],
    runner: Runner,
    workers: int,
    mode: str,
    overrides: tuple[str, ...],
    stop: int,
) -> None:
    steps = 16 if mode == "sync" else 16 // workers
    conf, how = conf_of(*overrides), {"workers": workers, "mode": mode}
    config = CheckpointConfig(dir=str(tmp_path / "one"), every_steps=3, full_every=2)
    whole = runner(files, conf, how, replace(config, dir=str(tmp_path / "other")))
    with pytest.raises(StoppedError):
        runner(files, conf, {**how, "listener": stop_after(min(stop, steps - 1))}, config)

    again = runner(files, conf, how, config)

    assert again.resumed_from is not None
    assert again.digest == whole.digest
    assert again.train_samples == whole.train_samples == 1000
    assert again.train_logloss == whole.train_logloss
    assert again.test is not None
    assert whole.test is not None
    assert again.test.auc == whole.test.auc


def test_checkpoints_change_nothing_of_a_run(tmp_path: Path, files: list[Path]) -> None:
    how = {"workers": 2, "mode": "sync"}

    without = run_here(files, conf_of(), how, CheckpointConfig())
    saved = run_here(files, conf_of(), how, CheckpointConfig(dir=str(tmp_path), every_steps=2))

    assert saved.digest == without.digest


def test_a_run_goes_on_with_other_numbers_of_servers_and_workers(
    tmp_path: Path, files: list[Path]
) -> None:
    config = CheckpointConfig(dir=str(tmp_path), every_steps=3)
    how: dict[str, Any] = {"workers": 2, "mode": "sync"}
    with pytest.raises(StoppedError):
        run_on_nodes(files, conf_of(), {**how, "listener": stop_after(10)}, config)

    again = run_on_nodes(files, conf_of(), {"workers": 1, "servers": 3, "mode": "sync"}, config)

    assert again.resumed_from == "ckpt-000003"
    assert again.train_samples == 1000


def test_a_run_with_other_batches_is_not_gone_on_with(tmp_path: Path, files: list[Path]) -> None:
    config = CheckpointConfig(dir=str(tmp_path), every_steps=3)
    how = {"workers": 1, "mode": "sync"}
    run_here(files, conf_of(), how, config)

    with pytest.raises(CtrError, match=r"train\.batch_size is 64 in it and 32 here"):
        run_here(files, conf_of("train.batch_size=32"), how, config)
    fresh = run_here(files, conf_of("train.batch_size=32"), how, replace(config, resume="no"))
    assert fresh.resumed_from is None


def test_all_batches_trained_means_no_more_steps(tmp_path: Path, files: list[Path]) -> None:
    config = CheckpointConfig(dir=str(tmp_path), every_steps=2 * BATCHES - 1)
    how = {"workers": 1, "mode": "async"}
    first = run_here(files, conf_of(), how, config)

    longer = run_here(files, conf_of("train.epoch=3"), how, config)

    assert longer.resumed_from == "ckpt-000001"
    assert longer.train_samples == first.train_samples + 500


@pytest.mark.parametrize("kind", ["step", "fuzzy"])
def test_workers_that_share_data_go_on_with_the_rest(
    tmp_path: Path, files: list[Path], kind: Any
) -> None:
    config = CheckpointConfig(dir=str(tmp_path / "saved"), every_steps=2, kind=kind)
    conf = conf_of("train.batch_size=20")
    how: dict[str, Any] = {"workers": 2, "mode": "async"}
    with pytest.raises(StoppedError):
        run_on_nodes(files, conf, {**how, "listener": stop_after(13)}, config)

    again = run_on_nodes(files, conf, {**how, "run_dir": tmp_path / "run"}, config)

    account = audit(tmp_path / "run")["train"]
    assert again.resumed_from is not None
    assert account.balances, account.problems
    assert 0 < account.resumed < 1000
    assert again.train_samples == 1000


def test_a_fuzzy_checkpoint_is_gone_on_with_in_step(tmp_path: Path, files: list[Path]) -> None:
    config = CheckpointConfig(dir=str(tmp_path), every_steps=4, kind="fuzzy")
    how: dict[str, Any] = {"workers": 2, "mode": "sync"}
    run_on_nodes(files, conf_of(), how, config)

    again = run_on_nodes(files, conf_of(), how, config)

    assert again.resumed_from is not None
    assert again.train_samples == 1000


@pytest.mark.slow
def test_a_cluster_whose_worker_was_killed_goes_on_where_it_was(
    tmp_path: Path, files: list[Path], generate: Callable[..., Any]
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    generate(rows=3000, seed=1).write_parquet(data / "final_train.parquet")
    generate(rows=200, seed=2).write_parquet(data / "final_test.parquet")
    settings = ["checkpoint.every_steps=10", "train.batch_size=64", "train.epoch=2"]

    def command(name: str) -> list[str]:
        place = f"checkpoint.dir={tmp_path / name / 'checkpoints'}"
        options = [part for text in (place, *settings) for part in ("--set", text)]
        mode = ["--mode", "cluster", "--servers", "2", "--workers", "2", "--sync"]
        where = ["--data", str(data), "--out", str(tmp_path / name)]
        conf = ["--conf", str(ROOT / "conf" / "fnn.ini")]
        return [sys.executable, "-m", "apps.ctr", "train", *conf, *where, *mode, *options]

    def figures(name: str) -> dict[str, Any]:
        found: dict[str, Any] = json.loads((tmp_path / name / "metrics.json").read_text())
        return found

    subprocess.run(command("whole"), cwd=ROOT, check=True, capture_output=True)
    with subprocess.Popen(command("cut"), cwd=ROOT, stderr=subprocess.DEVNULL) as first:
        watched = tmp_path / "cut" / "checkpoints"
        while last_good(str(watched)) is None and first.poll() is None:
            time.sleep(0.05)
        family = psutil.Process(first.pid).children(recursive=True)
        victims = [child for child in family if "worker" in child.cmdline()]
        victims[0].send_signal(signal.SIGKILL)
        assert first.wait(60) != 0

    subprocess.run(command("cut"), cwd=ROOT, check=True, capture_output=True)

    assert figures("cut")["resumed_from"] is not None
    assert figures("cut")["digest"] == figures("whole")["digest"]


def test_the_command_says_what_it_goes_on_from(
    tmp_path: Path, generate: Callable[..., Any]
) -> None:
    data = tmp_path / "data"
    data.mkdir()
    generate(rows=500, seed=1).write_parquet(data / "final_train.parquet")
    where = f"checkpoint.dir={tmp_path / 'run' / 'checkpoints'}"
    options = [where, "checkpoint.every_steps=3", "train.batch_size=64"]
    arguments = ["train", "--conf", str(ROOT / "conf" / "fnn.ini"), "--data", str(data)]
    arguments += ["--out", str(tmp_path / "run")]
    arguments += [part for text in options for part in ("--set", text)]

    first = CliRunner().invoke(main, arguments)
    second = CliRunner().invoke(main, arguments)
    without = CliRunner().invoke(main, [*arguments, "--set", "checkpoint.every_steps=0"])

    assert first.exit_code == 0, first.output
    assert "going on from" not in first.output
    assert "going on from ckpt-000002: 384 of 500 rows were trained on" in second.output
    assert without.exit_code == 2
    assert "[checkpoint] every" in without.output
