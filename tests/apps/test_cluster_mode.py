"""Training over the network: the numbers are those of one process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

import pslite
from apps.ctr.cli import main
from apps.ctr.dataset import Dataset, open_source
from apps.ctr.modelconf import model_config
from apps.ctr.models import network_class
from apps.ctr.trainer import TrainResult, train_together, train_worker
from kv.local import LocalCluster

CONF = [
    "train.batch_size=64",
    "train.shuffle=true",
    "sparse_dict.emb_dim=4",
    "net.layers=fc:8,tanh:-1,fc:1,sigmoid:-1",
    "optimizer.optimizer=adam",
    "sparse_dict.optimizer=adagrad",
]


@pytest.fixture
def folder(tmp_path: Path, generate: Callable[..., Any]) -> Path:
    """1 000 rows to train on and 301 to test on; a model ini."""
    generate(rows=1000, seed=1).write_parquet(tmp_path / "final_train.parquet")
    generate(rows=301, seed=2).write_parquet(tmp_path / "final_test.parquet")
    (tmp_path / "model.ini").write_text("")
    return tmp_path


def datasets(folder: Path) -> list[Dataset]:
    blocks = network_class("fnn").blocks
    names = ("final_train.parquet", "final_test.parquet")
    return [Dataset(open_source(folder / name, blocks)) for name in names]


def in_one_thread(
    folder: Path, workers: int, mode: Any, settings: Sequence[str] = ()
) -> TrainResult:
    cluster = LocalCluster(workers, mode, seed=5)
    team = [cluster.worker(rank) for rank in range(workers)]
    conf = model_config({}, overrides=[*CONF, *settings])
    return train_together(team, conf, *datasets(folder), sync=mode == "sync")


def over_the_network(
    folder: Path, servers: int, workers: int, mode: Any, settings: Sequence[str] = ()
) -> TrainResult:
    conf, data = model_config({}, overrides=[*CONF, *settings]), datasets(folder)
    with pslite.local_cluster(servers, workers, mode, seed=5) as cluster:
        results = cluster.run(lambda w: train_worker(w, conf, *data, sync=mode == "sync"))
    assert results[0] is not None
    return results[0]


EVERY = [
    pslite.Async(lr_by_staleness=1),
    pslite.DCAsync(),
    pslite.SSP(0),
    pslite.SSP(2),
    pslite.SemiSync(0.5),
    pslite.SemiSync(3),
    pslite.SemiSync(backup_workers=1),
]


@pytest.mark.parametrize("run", [in_one_thread, over_the_network])
@pytest.mark.parametrize("mode", EVERY, ids=repr)
def test_every_mode_trains_to_the_end_with_unequal_shares(
    folder: Path, mode: Any, run: Callable[..., TrainResult]
) -> None:
    conf = ["train.epoch=3"]  # 16 batches an epoch for 3 workers: one has more each time
    network = () if run is in_one_thread else (2,)

    result = run(folder, *network, 3, mode, conf)

    assert result.train_samples == 3000
    assert result.test is not None
    assert result.test.logloss < 0.69


@pytest.mark.parametrize("servers", [1, 3])
@pytest.mark.parametrize("mode", ["sync", "async"])
def test_one_worker_over_the_network_equals_local_mode_to_the_bit(
    folder: Path, servers: int, mode: str
) -> None:
    local, network = in_one_thread(folder, 1, mode), over_the_network(folder, servers, 1, mode)

    assert network.digest == local.digest
    assert (network.train_logloss, network.test) == (local.train_logloss, local.test)


@pytest.mark.parametrize(("servers", "workers"), [(2, 2), (1, 3)])
def test_workers_in_sync_mode_equal_one_process_that_adds_their_parts(
    folder: Path, servers: int, workers: int
) -> None:
    local = in_one_thread(folder, workers, "sync")
    network = over_the_network(folder, servers, workers, "sync")

    assert network.digest == local.digest
    assert (network.train_logloss, network.test) == (local.train_logloss, local.test)


def run(folder: Path, mode: str, *more: str) -> Any:
    out = folder / mode
    args = ["train", "--conf", str(folder / "model.ini"), "--data", str(folder), "--mode", mode]
    args += ["--servers", "1", "--workers", "1", "--sync", "--out", str(out)]
    settings = [part for text in [*CONF, *more] for part in ("--set", text)]
    return CliRunner().invoke(main, [*args, *settings])


@pytest.mark.slow
def test_a_worker_process_that_fails_ends_the_run(folder: Path) -> None:
    explode = ["optimizer.optimizer=sgd", "optimizer.learning_rate=1e30"]

    result = run(folder, "cluster", *explode)

    assert result.exit_code == 2
    assert "pslite-ctr: error: the cluster ended with exit code" in result.output
    assert not (folder / "cluster" / "metrics.json").exists()
