"""Public data sets as their users have them; skipped where the folder is not there.

The folder is `PSLITE_DATA`, by default `../shared/data` beside the project.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import pytest

from feature_extract.conf import read_conf
from feature_extract.extract import extract
from feature_extract.split import split
from tests.feature_extract.reference import Reference

ROOT = Path(__file__).resolve().parents[2]
DATA = Path(os.environ.get("PSLITE_DATA", ROOT.parent / "shared" / "data"))
CONF = ROOT / "conf"


def data(name: str) -> Path:
    path = DATA / name
    if not path.is_file():
        pytest.skip(f"{path} is not there; PSLITE_DATA names the folder of the data sets")
    return path


def run(name: str, train: Path, test: Path, out: Path, **options):
    report = extract(CONF / f"features_{name}.ini", train, test, out, **options)
    tables = [pq.read_table(out / f"final_{part}.parquet") for part in ("train", "test")]
    return report, *tables


def last_tenth(name: str, source: str, out: Path) -> tuple[Path, Path]:
    train, test = split(data(source), out, test_share=0.1, conf=CONF / f"features_{name}.ini")
    return train.path, test.path


def as_reference(name: str) -> Reference:
    """The plain extractor with one of the inis that come along."""
    conf = read_conf(CONF / f"features_{name}.ini")
    ini: dict[str, dict[str, str]] = {
        "raw_sample_schema": {"fields": ",".join(conf.fields)},
        "id": {"id": conf.id.text if conf.id else f"{conf.fields[0]},direct"},
        "label": {"label": conf.label.text},
    }
    for feature in conf.features:
        section = f"{feature.kind}_features_{feature.group}"
        ini.setdefault(section, {})[feature.key] = feature.text
    spec = conf.input
    return Reference(ini, list_delimiter=spec.list_delimiter, clip_min=spec.clip_min)


def lines(path: Path) -> list[str]:
    return path.read_bytes().decode().split("\n")[:-1]


@pytest.mark.parametrize(
    ("name", "source", "delimiter"),
    [
        ("criteo", "criteo_7k/train.tsv", "\t"),
        ("taobao_ad", "taobao_ad_10k/impressions.csv", ","),
    ],
)
def test_final_samples_are_those_of_the_plain_extractor(tmp_path: Path, name, source, delimiter):
    rows = [line.split(delimiter) for line in lines(data(source))[:1500]]
    parts = {"train": rows[:1200], "test": rows[1200:]}
    for part, some in parts.items():
        text = "".join(delimiter.join(row) + "\n" for row in some)
        (tmp_path / f"{part}.txt").write_text(text)
    expected = as_reference(name).run(parts["train"], parts["test"])

    extract(
        CONF / f"features_{name}.ini", tmp_path / "train.txt", tmp_path / "test.txt",
        tmp_path / "out", format="text",
    )  # fmt: skip

    for part in parts:
        for kind, wanted in (("intermediate", expected.intermediate), ("final", expected.final)):
            found = lines(tmp_path / "out" / f"{kind}_{part}.tsv")
            assert list(map(without_id, found)) == list(map(without_id, wanted[part]))
    pairs = [f"{value}\t{index}" for value, index in expected.dictionary.items()]
    assert lines(tmp_path / "out" / "dictionary.tsv") == pairs


def without_id(line: str) -> str:
    return line.split("\t", 1)[1]


def test_criteo(tmp_path: Path):
    train, test = last_tenth("criteo", "criteo_7k/train.tsv", tmp_path)

    report, table, _ = run("criteo", train, test, tmp_path / "out")

    raw = [line.split("\t") for line in lines(train)]
    assert report["rows"] == {"train": 6480, "test": 720}
    assert table["label"].to_pylist() == [float(row[0]) for row in raw]
    counts = [float(row[2] or 0) for row in raw]  # I2 has negative counts
    assert min(counts) < 0
    logs = np.log(np.maximum(counts, 0) + 1).astype(np.float32)
    np.testing.assert_array_equal(table["dense_user/002_I2_log"].to_numpy(), logs)


def test_avazu(tmp_path: Path):
    train, test = last_tenth("avazu", "avazu_8k/train.csv", tmp_path)

    report, table, held_out = run("avazu", train, test, tmp_path / "out")

    assert report["rows"] == {"train": 7278, "test": 809}
    raw = [line.split(",") for line in lines(data("avazu_8k/train.csv"))[1:]]
    labels = table["label"].to_pylist() + held_out["label"].to_pylist()
    assert labels == [float(row[1]) for row in raw]
    assert table["id"][0].as_py() == f"id#{raw[0][0]}"
    hours = table["sparse_user/010_hour_of_day"].to_pylist()
    assert len(set(hours)) == len({row[2][6:] for row in raw[:7278]})


def test_a9a(tmp_path: Path):
    train, test = data("a9a/a9a"), data("a9a/a9a.t")

    report, table, held_out = run("a9a", train, test, tmp_path / "out", min_freq=0)

    assert report["rows"] == {"train": 32561, "test": 16281}
    assert report["size"] == 123
    for part, path in ((table, train), (held_out, test)):
        raw = [line.split() for line in lines(path)]
        assert part["label"].to_pylist() == [float(row[0] == "+1") for row in raw]
        lengths = [len(row) - 1 for row in raw]
        assert [len(row) for row in part["sparse_user/001_features"].to_pylist()] == lengths


def test_adult(tmp_path: Path):
    train, test = data("adult/adult.data"), data("adult/adult.test")

    report, table, held_out = run("adult", train, test, tmp_path / "out")

    assert report["rows"] == {"train": 32561, "test": 16281}
    assert report["bad_lines"] == {"train": 0, "test": 0}
    assert sum(table["label"].to_pylist()) == 7841  # adult.names: 24.08 % of the training rows
    assert sum(held_out["label"].to_pylist()) == 3846
    values = {line.split("\t")[0] for line in lines(tmp_path / "out" / "dictionary.tsv")}
    assert "workclass#" in values
    assert not [value for value in values if "?" in value or "# " in value]


def test_adult_test_file_may_begin_with_its_remark(tmp_path: Path):
    text = data("adult/adult.test").read_text()
    (tmp_path / "adult.test").write_text("|1x3 Cross validator\n" + text + "\n")

    report, _, held_out = run(
        "adult", data("adult/adult.data"), tmp_path / "adult.test", tmp_path / "out"
    )

    assert report["rows"]["test"] == 16281
    assert report["bad_lines"]["test"] == 0
    assert sum(held_out["label"].to_pylist()) == 3846


def test_taobao_ad(tmp_path: Path):
    train, test = last_tenth("taobao_ad", "taobao_ad_10k/impressions.csv", tmp_path)

    report, table, _ = run("taobao_ad", train, test, tmp_path / "out")

    assert report["rows"] == {"train": 9000, "test": 1000}
    raw = [line.split(",") for line in lines(train)]
    assert table["label"].to_pylist() == [float(row[0]) for row in raw]
    hits = table["sparse_user_ad/001_cate_hit"].to_pylist()
    expected = [bool(row[17]) and row[4] in row[17].split("|") for row in raw]
    assert len(set(hits)) == 2
    assert len(set(zip(hits, expected, strict=True))) == 2
    dictionary = dict(line.split("\t") for line in lines(tmp_path / "out" / "dictionary.tsv"))
    first = [int(dictionary[f"cate_id#{value}"]) for value in raw[0][17].split("|")
             if f"cate_id#{value}" in dictionary]  # fmt: skip
    assert table["sparse_user/020_categories"][0].as_py() == first
