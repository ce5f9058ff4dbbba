"""Public data sets, from their files to a tested model, through a cluster of processes.

Settings come from `conf/`; they were chosen on training rows only. The data folder is named by
PSLITE_DATA (default: ../shared/data); without it these tests are skipped.
"""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from click.testing import CliRunner
from sklearn.feature_extraction import FeatureHasher
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import roc_auc_score

from apps.ctr.cli import main
from feature_extract.split import split

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("PSLITE_DATA", ROOT.parent / "shared" / "data"))

pytestmark = [
    pytest.mark.slow,
    pytest.mark.skipif(not DATA.is_dir(), reason=f"no data in {DATA}; set PSLITE_DATA"),
]


@dataclass(frozen=True)
class Columns:
    """Where the reference finds what in a file."""

    separator: str
    label: int
    numbers: range
    categories: range
    header: bool = False

    def texts(self, row: list[str]) -> list[str]:
        """`column=value`; of a number its bit length, so that near ones are alike."""
        coarse = [f"{i}={len(row[i]) and int(row[i]).bit_length()}" for i in self.numbers]
        return coarse + [f"{i}={row[i]}" for i in self.categories]


Train = Callable[..., dict[str, Any]]


@pytest.fixture(scope="module")
def run_mode() -> list[str]:
    """How models are trained here."""
    return ["--mode", "cluster", "--servers", "2", "--workers", "2"]


@pytest.fixture
def train(tmp_path: Path, run_mode: list[str]) -> Train:
    """train(name, folder of train.* and test.*, seed) -> what metrics.json holds."""

    def run(name: str, folder: Path, seed: int = 1) -> dict[str, Any]:
        out = tmp_path / f"run{seed}"
        args = ["train", "--conf", str(ROOT / f"conf/fnn_{name}.ini"), "--data", str(folder)]
        args += ["--features", str(ROOT / f"conf/features_{name}.ini"), "--out", str(out)]
        args += ["--cluster", str(ROOT / "conf/local.ini"), *run_mode]
        args += ["--set", f"train.seed={seed}", "--set", f"run.seed={seed}"]
        result = CliRunner().invoke(main, args)
        assert result.exit_code == 0, result.output
        found: dict[str, Any] = json.loads((out / "metrics.json").read_text())
        return found

    return run


def with_given_test(folder: Path, train: Path, test: Path, suffix: str) -> Path:
    """A folder with both files under the names that pslite-ctr looks for."""
    folder.mkdir()
    shutil.copyfile(train, folder / f"train{suffix}")
    shutil.copyfile(test, folder / f"test{suffix}")
    return folder


def with_last_tenth_as_test(folder: Path, name: str, data: Path) -> Path:
    split(data, folder, test_share=0.1, conf=ROOT / f"conf/features_{name}.ini")
    return folder


def test_a9a_is_learned_as_well_as_by_a_linear_model(tmp_path: Path, train: Train) -> None:
    source = DATA / "a9a"
    folder = with_given_test(tmp_path / "a9a", source / "a9a", source / "a9a.t", ".tsv")

    found = train("a9a", folder)

    assert found["test_rows"] == 16_281
    assert found["test_auc"] >= 0.899


def test_adult_is_learned_from_its_raw_csv(tmp_path: Path, train: Train) -> None:
    source = DATA / "adult"
    files = source / "adult.data", source / "adult.test"
    folder = with_given_test(tmp_path / "adult", *files, ".csv")

    found = train("adult", folder)

    assert found["test_rows"] == 16_281
    assert found["test_auc"] >= 0.905


@pytest.mark.parametrize(
    ("name", "file", "columns"),
    [
        ("criteo", "criteo_7k/train.tsv", Columns("\t", 0, range(1, 14), range(14, 40))),
        ("avazu", "avazu_8k/train.csv", Columns(",", 1, range(0), range(2, 24), header=True)),
    ],
)
def test_ad_clicks_are_foretold_as_by_a_hashed_linear_model(
    tmp_path: Path, train: Train, name: str, file: str, columns: Columns
) -> None:
    folder = with_last_tenth_as_test(tmp_path / name, name, DATA / file)
    reference = linear_auc(folder, columns)

    areas = [train(name, folder, seed)["test_auc"] for seed in (1, 2, 3)]

    assert reference > 0.6  # or the reference is broken
    assert np.mean(areas) >= reference - 0.02


def test_taobao_ads_are_not_foretold_better_than_they_can_be(tmp_path: Path, train: Train) -> None:
    """A constant is hard to beat here; an AUC above 0.65 would mean that a label leaks."""
    source = DATA / "taobao_ad_10k" / "impressions.csv"
    folder = with_last_tenth_as_test(tmp_path / "taobao_ad", "taobao_ad", source)
    clicks = {
        part: np.array([row[0] == "1" for row in (folder / f"{part}.csv").read_text().splitlines()])
        for part in ("train", "test")
    }
    rate = clicks["train"].mean()
    constant = -np.log(np.where(clicks["test"], rate, 1 - rate)).mean()

    found = train("taobao_ad", folder)

    assert found["test_rows"] == len(clicks["test"]) == 1000
    assert found["test_logloss"] <= constant + 0.003
    assert found["test_auc"] < 0.65


def linear_auc(folder: Path, columns: Columns) -> float:
    """Test AUC of scikit-learn's logistic regression on hashed `column=value` texts."""
    hasher = FeatureHasher(2**18, input_type="string")
    parts = []
    for part in ("train", "test"):
        (path,) = folder.glob(f"{part}.*")
        lines = path.read_text().splitlines()[int(columns.header) :]
        rows = [line.split(columns.separator) for line in lines]
        clicks = np.array([int(row[columns.label]) for row in rows])
        parts.append((hasher.transform([columns.texts(row) for row in rows]), clicks))
    (train_x, train_y), (test_x, test_y) = parts
    model = LogisticRegression(C=0.1, solver="liblinear").fit(train_x, train_y)
    return float(roc_auc_score(test_y, model.predict_proba(test_x)[:, 1]))
