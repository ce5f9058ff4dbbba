"""`[train] pipeline_depth`: what a model is with several steps of a worker under way."""

from __future__ import annotations

from pathlib import Path

import pytest

from apps.ctr.modelconf import model_config
from apps.ctr.reading import Share, Trail
from apps.ctr.trainer import train_worker
from pslite import SSP, local_cluster
from pslite.audit import audit
from tests.apps.test_cluster_mode import datasets, in_one_thread, over_the_network
from tests.apps.test_cluster_mode import folder as folder  # a fixture
from van.errors import ConfigError

DEEP = ["train.pipeline_depth=3", "train.epoch=2"]
PLAIN = ["train.epoch=2"]


@pytest.mark.parametrize("workers", [1, 2])
def test_rounds_give_the_same_model_at_any_depth(folder: Path, workers: int) -> None:
    plain = in_one_thread(folder, workers, "sync", PLAIN)

    for found in (
        in_one_thread(folder, workers, "sync", DEEP),
        over_the_network(folder, 2, workers, "sync", DEEP),
    ):
        assert found.digest == plain.digest
        assert set(found.staleness) == {"0"}


def test_one_asynchronous_worker_gives_the_bits_of_one_process_at_any_depth(folder: Path) -> None:
    plain, here = (in_one_thread(folder, 1, "async", conf) for conf in (PLAIN, DEEP))
    there = over_the_network(folder, 2, 1, "async", DEEP)

    assert there.digest == here.digest != plain.digest
    assert there.train_logloss == here.train_logloss
    assert max(map(int, here.staleness)) == 3
    assert plain.staleness == {"0": 2 * 16}


def test_every_row_counts_once_at_any_depth(folder: Path, tmp_path: Path) -> None:
    conf, data = model_config({}, overrides=["train.batch_size=20", *DEEP]), datasets(folder)

    with local_cluster(2, 3, SSP(2), seed=5, run_dir=tmp_path / "run") as cluster:
        results = cluster.run(lambda w: train_worker(w, conf, *data, sync=False))

    assert results[0] is not None
    assert results[0].train_samples == 2000
    account = audit(tmp_path / "run")["train"]
    assert account.counted == 2000


def test_a_trail_says_only_what_is_answered() -> None:
    said: list[int] = []

    class Shards:
        def seen(self, records: int) -> None:
            said.append(records)

    def share(seen: int) -> Share:
        return Share(1, 1, None, 0, seen, 0, None)  # type: ignore[arg-type]  # not looked at

    trail = Trail(Shards(), depth=2)  # type: ignore[arg-type]
    for seen in (10, 20, 30):
        trail.pushed(share(seen))
    assert said == []
    trail.pushed(share(40))
    assert said == [10]
    trail.all_answered()
    assert said == [10, 40]
    trail.pushed(share(50))
    trail.began()
    trail.all_answered()
    assert said == [10, 40]


def test_a_depth_beyond_all_measure_is_refused() -> None:
    with pytest.raises(ConfigError, match="300 must be at most 256"):
        model_config({}, overrides=["train.pipeline_depth=300"])
