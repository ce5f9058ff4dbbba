"""`bench/convergence.py`: its virtual clock trains as the product does, its figures are kept."""

from __future__ import annotations

import json
import math
import sys
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from apps.ctr.dataset import Dataset, open_source
from apps.ctr.modelconf import ModelConfig, parse_layers
from apps.ctr.trainer import train_together
from kv.consistency.settings import Async, DCAsync, SemiSync
from kv.consistency.staleness import Staleness
from kv.local import LocalCluster

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "bench"))

import convergence  # noqa: E402  (after the path)
from convergence_cell import (  # noqa: E402
    Found,
    Setting,
    consistency_of,
    curve_of,
    pushes_of,
    run_cell,
    scaled,
)
from convergence_data import A9A, MODES, Data, NoDataError, prepare  # noqa: E402
from convergence_report import targets  # noqa: E402
from convergence_results import Cell, Journal, groups  # noqa: E402

BATCH, ROWS = 32, 1536
SETTINGS = ("train.epoch=1", "train.shuffle=false", f"train.batch_size={2 * BATCH}")
ALL = (*MODES, "dc_async:16")

Run = Callable[..., Found]


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory, generate: Callable[..., Any]) -> Path:
    made: Path = tmp_path_factory.mktemp("features")
    generate(rows=ROWS, seed=1).write_parquet(made / "final_train.parquet")
    generate(rows=700, seed=2).write_parquet(made / "final_test.parquet")
    return made


@pytest.fixture(scope="module")
def data(folder: Path) -> Data:
    return Data(A9A, folder, SETTINGS)


@pytest.fixture(scope="module")
def run(data: Data) -> Run:
    """run(mode, workers, seed) -> what was found."""

    def act(mode: str, workers: int, seed: int = 1) -> Found:
        setting = Setting(mode, workers, seed, BATCH)
        batches = data.batches(seed, BATCH)
        return run_cell(setting, data.seeded(seed), data.schema, batches, data.tests)

    return act


# -- experiments ----------------------------------------------------------------------------------


def test_one_worker_is_the_same_in_all_modes(run: Run) -> None:
    found = [run(mode, 1) for mode in ALL]

    assert len({one.digest for one in found}) == 1
    assert all(one.staleness == {"0": ROWS // BATCH} for one in found)
    assert (found[0].quality["test"]["auc"] or 0) > 0.7


def test_sync_on_the_virtual_clock_is_the_training_of_the_product_to_the_bit(
    run: Run, data: Data, folder: Path
) -> None:
    conf, cluster = data.seeded(1), LocalCluster(2, "sync", 1)
    blocks = {"x": ("user", "ad", "user_ad")}
    train, test = (
        Dataset(open_source(folder / f"final_{name}.parquet", blocks)) for name in ("train", "test")
    )

    expected = train_together(cluster.workers, conf, train, test, sync=True)

    found = run("sync", 2)
    assert found.digest == expected.digest
    assert expected.test is not None
    tested = {name: getattr(expected.test, name) for name in ("auc", "logloss", "calibration")}
    assert found.quality == {"test": tested}


@pytest.mark.parametrize("mode", ALL)
def test_equal_settings_give_equal_models_and_the_product_counts_the_same_staleness(
    run: Run, mode: str
) -> None:
    found, again = run(mode, 6), run(mode, 6)

    told = Staleness()
    for age, count in found.staleness.items():
        for _ in range(count):
            told.note(int(age))
    assert (found.digest, found.curve) == (again.digest, again.curve)
    assert found.told == told.report()
    assert found.steps == ROWS // BATCH == sum(found.staleness.values()) + found.dropped


def test_seeds_give_other_models(run: Run) -> None:
    assert run("async", 4, seed=1).digest != run("async", 4, seed=2).digest


def test_who_waits_is_less_stale_and_takes_longer(run: Run) -> None:
    found = {mode: run(mode, 6) for mode in ("async", "ssp:0", "ssp:1", "sync", "backup:1")}

    ages = {mode: max(map(int, one.staleness)) for mode, one in found.items()}
    assert ages["sync"] == ages["backup:1"] == 0
    assert 0 < ages["ssp:0"] <= 5  # a push of each of the others
    assert ages["ssp:0"] < ages["ssp:1"] <= ages["async"]
    assert [found[mode].lead for mode in ("sync", "ssp:0", "ssp:1")] == [0, 0, 1]
    assert found["async"].waiting < 0.1 < found["ssp:1"].waiting < found["ssp:0"].waiting
    assert found["async"].seconds < found["ssp:0"].seconds <= found["sync"].seconds
    assert found["backup:1"].seconds < found["sync"].seconds
    assert found["backup:1"].dropped > 0


def test_training_that_breaks_off_is_an_outcome_without_a_model(data: Data) -> None:
    wild = replace(
        data.conf,
        optimizer=replace(data.conf.optimizer, optimizer="sgd", learning_rate=1e30),
        net=replace(data.conf.net, layers=parse_layers("fc:8,relu:-1,fc:1,sigmoid:-1")),
    )

    found = run_cell(
        Setting("async", 2, 1, BATCH), wild, data.schema, data.batches(1, BATCH), data.tests
    )

    assert (found.quality, found.digest) == ({}, "")


def test_learning_rates_grow_with_the_rows_of_an_update(data: Data) -> None:
    def rates(conf: ModelConfig) -> tuple[float, float | None]:
        return conf.optimizer.learning_rate, conf.sparse_dict.learning_rate

    conf = data.conf  # 64 rows, Adagrad
    embeddings = replace(conf.sparse_dict, optimizer="sgd", learning_rate=2.0)

    assert rates(scaled(conf, 64)) == (0.05, 0.05)
    assert rates(scaled(conf, 256)) == pytest.approx((0.1, 0.1))
    assert rates(scaled(replace(conf, sparse_dict=embeddings), 256)) == pytest.approx((0.1, 8.0))


def test_modes_have_names_and_updates_so_many_pushes() -> None:
    found = {mode: pushes_of(consistency_of(mode), 16) for mode in MODES}

    assert consistency_of("async:lr") == Async(lr_by_staleness=1)
    assert consistency_of("dc_async:16") == DCAsync(lam=16)
    assert consistency_of("backup:1") == SemiSync(backup_workers=1)
    assert [found[mode] for mode in ("async", "ssp:4", "sync")] == [1, 1, 16]
    assert (found["semi_sync:0.75"], found["backup:1"]) == (12, 15)


def test_a_curve_has_the_mean_loss_of_equally_many_steps() -> None:
    losses = [(float(at), 64.0 / (at + 1), 64) for at in range(80)]

    curve = curve_of(losses[::-1])

    assert [at for at, _ in curve] == list(np.arange(1.0, 80.0, 2.0))
    assert curve[0][1] == pytest.approx((1 + 1 / 2) / 2)


# -- outcomes -------------------------------------------------------------------------------------


def outcome(auc: float | None, mode: str = "async", workers: int = 1, seed: int = 1) -> Any:
    tested = {"auc": auc, "logloss": 0.3, "calibration": 1.0}
    quality: Any = {"test": tested} if auc else {}
    found = Found(quality, 9, {"0": 9}, {"0": 9}, 0, 0, 0, 2.0, 0.1, [(1.0, 0.5)], "d", 0.1)
    return Cell("a9a", Setting(mode, workers, seed, 8), 72, {"net": "x"}), found


def test_outcomes_are_found_again_unless_something_has_changed(tmp_path: Path) -> None:
    (cell, found), path = outcome(0.9), tmp_path / "outcomes.jsonl"
    Journal(path).add(cell, found)
    with path.open("a") as file:
        file.write('{"cell": {"case": "a9')  # a run was killed amid writing

    journal = Journal(path)
    journal.add(outcome(0.8, "sync", 2)[0], found)

    known = Journal(path)
    assert known.find(cell) == replace(found, curve=[[1.0, 0.5]])
    assert known.find(outcome(0.8, "sync", 2)[0]) is not None
    assert known.find(replace(cell, rows=73)) is None
    assert known.find(replace(cell, model={"net": "y"})) is None
    assert known.find(replace(cell, setting=replace(cell.setting, batch=9))) is None


@pytest.mark.parametrize(
    ("auc", "verdict"), [(0.8971, "met"), (0.8969, "MISSED"), (None, "MISSED")]
)
def test_a_target_is_met_where_auc_is_near_that_of_one_worker(
    auc: float | None, verdict: str
) -> None:
    outcomes = [outcome(0.9), outcome(auc, "sync", 16), outcome(0.5, "async", 16)]

    rows = targets(groups(A9A, outcomes)).rows

    assert [(row[1], row[-1]) for row in rows] == [("sync", verdict), ("async", "")]


# -- the command ----------------------------------------------------------------------------------


@pytest.fixture
def public(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A folder of data sets with a small a9a."""
    source = tmp_path / "data" / "a9a"
    source.mkdir(parents=True)
    chance = np.random.default_rng(1)
    for name, rows in (("a9a", 512), ("a9a.t", 256)):
        lines = []
        for _ in range(rows):
            present = sorted(chance.choice(np.arange(1, 24), 6, replace=False).tolist())
            label = "+1" if chance.random() < 1 / (1 + math.exp(10 - sum(present) / 6)) else "-1"
            lines.append(" ".join([label, *(f"{number}:1" for number in present)]))
        (source / name).write_text("\n".join(lines) + "\n")
    monkeypatch.setenv("PSLITE_DATA", str(source.parent))
    return source.parent


def test_a_run_goes_on_where_it_was_ended_and_writes_tables_and_picture(
    tmp_path: Path, public: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    page, figures, picture = (tmp_path / name for name in ("page.md", "all.json", "all.png"))
    page.write_text(f"before\n{convergence.BEGIN}\nold\n{convergence.END}\nafter\n")
    command = ["--only", "a9a", "--modes", "async", "sync", "--workers", "2", "--seeds", "2"]
    command += ["--work", str(tmp_path / "work"), "--set", "train.epoch=1"]
    outputs = ["--markdown", str(page), "--json", str(figures), "--png", str(picture)]

    assert convergence.main([*command, "--minutes", "1e-9"]) == 1
    assert convergence.main(command) == 0
    monkeypatch.delattr(convergence, "run_cell")  # all is known
    assert convergence.main([*command, *outputs]) == 0

    text, found = page.read_text(), json.loads(figures.read_text())
    assert text.startswith("before\n")
    assert text.endswith("after\n")
    assert "old" not in text
    assert text.count("| sync | 2 |") == 2
    assert [(one["mode"], one["workers"], len(one["runs"])) for one in found] == [
        ("async", 1, 2),
        ("async", 2, 2),
        ("sync", 2, 2),
    ]
    assert picture.read_bytes().startswith(b"\x89PNG")


def test_data_that_is_not_there_is_left_out_with_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("PSLITE_DATA", str(tmp_path))

    with pytest.raises(NoDataError, match=r"there is no .*a9a"):
        prepare(A9A, tmp_path / "work")
    assert convergence.main(["--only", "a9a", "--work", str(tmp_path / "work")]) == 2

    assert "a9a is left out: there is no" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("option", "said"),
    [(["--modes", "asink"], "asink"), (["--modes", "ssp:x"], "ssp:x"), (["--seeds", "-1"], "1 on")],
)
def test_wrong_options_are_refused(
    option: list[str], said: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit):
        convergence.main(option)

    assert said in capsys.readouterr().err
