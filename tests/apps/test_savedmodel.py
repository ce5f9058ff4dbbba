from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from numpy.testing import assert_array_equal

from apps.ctr.dataset import Dataset, open_source
from apps.ctr.errors import SavedModelError
from apps.ctr.learner import Learner
from apps.ctr.modelconf import ModelConfig, model_config
from apps.ctr.models import network_class
from apps.ctr.savedmodel import SavedModel, save_model
from apps.ctr.snapshot import take_snapshot
from apps.ctr.trainer import score_part, train_together
from kv.local import LocalCluster


class Trained:
    """A model of 400 rows that has not seen most feature values of its test rows."""

    def __init__(self, folder: Path, generate: Callable[..., Any]) -> None:
        self.conf: ModelConfig = model_config({}, overrides=["train.batch_size=100"])
        blocks = network_class("fnn").blocks
        files = [
            generate(rows=400, seed=1, values=30).write_parquet(folder / "a.parquet"),
            generate(rows=300, seed=2, values=90).write_parquet(folder / "b.parquet"),
        ]
        train, self.test = (Dataset(open_source(path, blocks)) for path in files)
        cluster = LocalCluster(1, "async", seed=11)
        train_together([cluster.worker(0)], self.conf, train, sync=False)
        self.schema = train.schema
        self.learner = Learner(cluster.worker(0), self.conf, train.schema)
        self.snapshot = take_snapshot(self.learner)

    def save(self, path: Path) -> Path:
        save_model(path, self.snapshot, self.conf, self.schema, seed=11)
        return path


@pytest.fixture(scope="module")
def trained(tmp_path_factory: pytest.TempPathFactory, generate: Callable[..., Any]) -> Trained:
    return Trained(tmp_path_factory.mktemp("data"), generate)


def scores(learner: Learner, data: Dataset) -> np.ndarray:
    return np.concatenate([step.scores for step in score_part(learner, data, 0, 1)])


def test_a_loaded_model_scores_as_the_tables_did(
    tmp_path: Path, trained: Trained, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("apps.ctr.savedmodel.ROWS_A_FILE", 37)
    loaded = SavedModel(trained.save(tmp_path / "model"))

    assert len(list((tmp_path / "model").glob("embedding-*.npz"))) == -(
        -len(trained.snapshot.keys) // 37
    )
    assert (loaded.conf, loaded.schema) == (trained.conf, trained.schema)
    assert take_snapshot(loaded.learner).digest() == trained.snapshot.digest()
    assert_array_equal(scores(loaded.learner, trained.test), scores(trained.learner, trained.test))


def test_a_model_is_replaced_whole(tmp_path: Path, trained: Trained) -> None:
    path = trained.save(tmp_path / "model")
    (path / "stray.npz").write_bytes(b"")

    trained.save(path)

    assert not (path / "stray.npz").exists()
    assert [found.name for found in tmp_path.iterdir()] == ["model"]


def test_an_altered_file_is_refused_by_name(tmp_path: Path, trained: Trained) -> None:
    path = trained.save(tmp_path / "model")
    file = path / "embedding-00000.npz"
    data = bytearray(file.read_bytes())
    data[len(data) // 2] ^= 1
    file.write_bytes(data)

    with pytest.raises(SavedModelError, match=r"embedding-00000\.npz is not the file"):
        SavedModel(path)
    file.unlink()
    with pytest.raises(SavedModelError, match=r"embedding-00000\.npz cannot be read"):
        SavedModel(path)


def test_what_is_no_model_is_refused(tmp_path: Path, trained: Trained) -> None:
    with pytest.raises(SavedModelError, match=r"manifest\.json cannot be read"):
        SavedModel(tmp_path / "absent")
    manifest = trained.save(tmp_path / "model") / "manifest.json"
    text = manifest.read_text()
    manifest.write_text(text[:-20])
    with pytest.raises(SavedModelError, match="is damaged"):
        SavedModel(tmp_path / "model")
    manifest.write_text(json.dumps({**json.loads(text), "format": 99}))
    with pytest.raises(SavedModelError, match="not of format 1"):
        SavedModel(tmp_path / "model")
