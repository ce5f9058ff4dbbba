"""What generated raw logs look like, and that what is said of their truth is true."""

from __future__ import annotations

import csv
import json
import resource
from collections import Counter
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest
from hypothesis import given
from hypothesis import strategies as st
from sklearn.feature_extraction import FeatureHasher
from sklearn.linear_model import LogisticRegression
from sklearn.metrics import log_loss, roc_auc_score

from sample import SCHEMA, world
from sample import generate as generate_package
from sample.clicks import simulate
from sample.errors import OutputError, SettingError
from sample.generate import generate
from sample.join import join
from sample.rawwriter import HEADERS
from sample.truth import auc, logloss
from sample.world import Shows

FIRST, LAST = 1494000000, 1494691200  # 2017-05-06 and 2017-05-14, 00:00 in Shanghai


@pytest.fixture(scope="module")
def log(tmp_path_factory) -> tuple[Path, dict]:
    folder = tmp_path_factory.mktemp("log")
    return folder, generate(folder, 20_000, 50_000, seed=11)


def rows_of(path: Path) -> list[list[str]]:
    with path.open(newline="") as stream:
        return list(csv.reader(stream))


def test_equal_seeds_give_equal_bytes(log, tmp_path):
    folder, found = log

    again = generate(tmp_path, 20_000, 50_000, seed=11)

    assert again == found
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted(p.name for p in folder.iterdir())
    for path in folder.iterdir():
        assert (tmp_path / path.name).read_bytes() == path.read_bytes()


def test_another_seed_gives_another_log(log, tmp_path):
    generate(tmp_path, 20_000, 50_000, seed=12)

    for name in HEADERS:
        assert (tmp_path / name).read_bytes() != (log[0] / name).read_bytes()


def test_files_have_the_published_columns_and_the_rows_asked_for(log):
    folder, found = log
    rows = {name: rows_of(folder / name) for name in HEADERS}

    assert [",".join(rows[name][0]) for name in HEADERS] == list(HEADERS.values())
    assert len(rows["raw_sample.csv"]) - 1 == found["impressions"] == 20_000
    assert len(rows["behavior_log.csv"]) - 1 == found["behaviors"] == 50_000
    assert len(rows["ad_feature.csv"]) - 1 == found["ads"]
    assert {row[2] for row in rows["behavior_log.csv"][1:]} == {"pv", "cart", "fav", "buy"}
    assert any(row[4] == "NULL" for row in rows["ad_feature.csv"])
    assert any("" in row for row in rows["user_profile.csv"])
    assert all(int(row[4]) + int(row[5]) == 1 for row in rows["raw_sample.csv"][1:])


def test_times_lie_where_they_should_come_in_no_order_and_tie_at_times(log):
    shows = rows_of(log[0] / "raw_sample.csv")[1:]
    times = np.array([int(row[1]) for row in shows])
    acts = np.array([int(row[1]) for row in rows_of(log[0] / "behavior_log.csv")[1:]])
    of_user_and_second = Counter((row[0], row[1]) for row in shows)

    assert times.min() >= FIRST
    assert times.max() < LAST
    assert set((times - FIRST) // 86400) == set(range(8))
    assert acts.min() >= FIRST - 22 * 86400
    assert acts.max() < LAST
    assert 0.4 < (np.diff(times) > 0).mean() < 0.6
    assert 0.01 < np.mean([n > 1 for n in of_user_and_second.values()]) < 0.1


def test_about_five_in_a_hundred_are_clicked_and_ids_recur(log):
    _, found = log

    assert 0.04 < found["ctr"] < 0.06
    assert found["impressions"] / found["users"] == 20
    assert found["impressions"] / found["ads"] == 100
    assert 0.7 < found["best_auc_all"] < 0.9


def test_the_best_figures_are_those_of_the_true_probabilities(log):
    folder, found = log
    rows = rows_of(folder / "raw_sample.csv")[1:]
    clicked = np.array([int(row[5]) for row in rows])
    is_test = np.array([int(row[1]) for row in rows]) >= LAST - 86400
    truth = pq.read_table(folder / "truth.parquet")
    probability = truth["probability"].to_numpy()

    assert truth["clk"].to_pylist() == clicked.tolist()
    assert json.loads((folder / "truth.json").read_text()) == found
    for part, mask in (("all", is_test >= 0), ("test", is_test), ("train", ~is_test)):
        assert found[f"best_auc_{part}"] == pytest.approx(
            roc_auc_score(clicked[mask], probability[mask])
        )
        assert found[f"best_logloss_{part}"] == pytest.approx(
            log_loss(clicked[mask], probability[mask])
        )


def test_the_true_probabilities_are_those_of_the_clicks(log):
    truth = pq.read_table(log[0] / "truth.parquet")
    probability, clicked = truth["probability"].to_numpy(), truth["clk"].to_numpy()

    for part in np.array_split(np.argsort(probability), 5):
        expected, spread = probability[part].sum(), (probability * (1 - probability))[part].sum()
        assert abs(clicked[part].sum() - expected) < 4 * np.sqrt(spread)


def test_a_log_of_many_blocks_has_every_row(tmp_path, monkeypatch):
    monkeypatch.setattr(generate_package, "BLOCK_EVENTS", 3000)

    found = generate(tmp_path, 5_000, 10_000, seed=1)

    rows = rows_of(tmp_path / "raw_sample.csv")[1:]
    assert len(rows) == 5_000
    assert len(rows_of(tmp_path / "behavior_log.csv")) - 1 == 10_000
    assert pq.read_table(tmp_path / "truth.parquet")["clk"].to_pylist() == [int(r[5]) for r in rows]
    assert 0.03 < found["ctr"] < 0.07


@pytest.mark.parametrize(("impressions", "behaviors"), [(1, 0), (3, 1), (50, 0)])
def test_the_smallest_logs_can_be_made_and_joined(tmp_path, impressions, behaviors):
    generate(tmp_path / "raw", impressions, behaviors, seed=0)

    found = join(tmp_path / "raw", tmp_path / "out")

    assert found["train"] + found["test"] == impressions


@pytest.mark.parametrize("arguments", [(0, 1, 1), (1, -1, 1), (1, 1, -1)])
def test_senseless_arguments_are_refused(tmp_path, arguments):
    with pytest.raises(SettingError):
        generate(tmp_path, *arguments)


def test_a_folder_that_cannot_be_made_is_named(tmp_path):
    (tmp_path / "out").write_text("a file")

    with pytest.raises(OutputError, match="out"):
        generate(tmp_path / "out", 10, 10, seed=1)


@given(pairs=st.lists(st.tuples(st.sampled_from([0.1, 0.2, 0.5, 0.9]), st.booleans()), max_size=40))
def test_auc_and_logloss_equal_those_of_sklearn(pairs):
    probability = np.array([p for p, _ in pairs], np.float64)
    clicked = np.array([c for _, c in pairs], np.bool_)

    if clicked.any() and not clicked.all():
        assert auc(probability, clicked) == pytest.approx(roc_auc_score(clicked, probability))
        assert logloss(probability, clicked) == pytest.approx(log_loss(clicked, probability))
    else:
        assert auc(probability, clicked) is None


@given(seed=st.integers(0, 2**32 - 1), n=st.integers(1, 60))
def test_a_click_changes_no_probability_of_its_second_or_before(seed, n):
    rng = np.random.default_rng(seed)
    user, time = np.sort(rng.integers(0, 3, n)), rng.integers(0, 30, n) * 1800
    time = time[np.lexsort((time, user))]
    shows = Shows(user, time, rng.integers(0, 4, n), np.zeros(n, np.int64))
    logits, draws = rng.normal(size=n), rng.random(n)
    turned = int(rng.integers(n))

    before, _ = simulate(logits, draws, shows, shows.ad // 2)
    draws[turned] = 0.0 if draws[turned] >= before[turned] else 1.0
    after, _ = simulate(logits, draws, shows, shows.ad // 2)

    unseen = (user != user[turned]) | (time <= time[turned])
    assert (before[unseen] == after[unseen]).all()


def features_of(row: dict[str, str]) -> list[str]:
    """What a simple model looks at: ids and levels, and whether the ad is in the user's lists."""
    single = (
        "adgroup_id", "pid", "tm_hour", "final_gender_code", "age_level", "pvalue_level",
        "shopping_level", "cate_id", "brand",
    )  # fmt: skip
    found = [f"{name}={row[name]}" for name in single]
    found.append(f"gender cate={row['final_gender_code']} {row['cate_id']}")
    for name in SCHEMA:
        if name.endswith(("_last_14days", "_latest_n", "_latest_1")):
            value = row["brand" if "_brand_" in name else "cate_id"]
            found += [name] * (value in row[name].split(","))
    if row["cate_id"] in row["user_click_local_cate_id_list_uniq_last_168hour"].split(","):
        found.append("clicked cate")
    return [*found, f"non click={row['user_non_click_local_this_ad_count_last_24hour']}"]


@pytest.mark.slow
def test_a_simple_model_over_the_columns_comes_near_the_best(tmp_path):
    found = generate(tmp_path / "raw", 100_000, 500_000, seed=5)
    join(tmp_path / "raw", tmp_path)
    hasher = FeatureHasher(2**18, input_type="string")
    matrices, labels = [], []
    for name in ("train", "test"):
        with (tmp_path / f"{name}.tsv").open() as stream:
            rows = [
                dict(zip(SCHEMA, line.rstrip("\n").split("\t"), strict=True)) for line in stream
            ]
        matrices.append(hasher.transform(features_of(row) for row in rows))
        labels.append([int(row["clk"]) for row in rows])

    model = LogisticRegression(C=0.03, solver="liblinear").fit(matrices[0], labels[0])

    reached = roc_auc_score(labels[1], model.predict_proba(matrices[1])[:, 1])
    assert found["best_auc_test"] - 0.05 < reached < found["best_auc_test"] + 0.01
    assert world.AD_SHARE == 100


@pytest.mark.parametrize("impressions", [1, 2, 10, 50])
@pytest.mark.parametrize("seed", [1, 2, 3])
def test_a_log_may_lack_behaviours(tmp_path, impressions, seed):
    found = generate(tmp_path, impressions, 0, seed)

    assert found["behaviors"] == 0
    assert len((tmp_path / "raw_sample.csv").read_text().splitlines()) == impressions + 1
    assert len((tmp_path / "behavior_log.csv").read_text().splitlines()) == 1


@pytest.mark.parametrize("nbytes", [10, 5_000, 60_000])
def test_a_full_disk_is_named_and_leaves_nothing(tmp_path, nbytes):
    generate(tmp_path / "warm", 3000, 3000, 1)  # all that is loaded and compiled once is there
    before = resource.getrlimit(resource.RLIMIT_FSIZE)

    resource.setrlimit(resource.RLIMIT_FSIZE, (nbytes, before[1]))
    try:
        with pytest.raises(OutputError, match=r"\w\.csv cannot be written: .*File too large"):
            generate(tmp_path / "out", 3000, 3000, 1)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert list((tmp_path / "out").iterdir()) == []
