"""The join against the reference, byte for byte, on raw logs made to be awkward."""

from __future__ import annotations

import importlib.util
from pathlib import Path

import numpy as np
import pytest

from sample.generate import generate
from sample.join import join

_spec = importlib.util.spec_from_file_location(
    "reference_join", Path(__file__).with_name("reference_join.py")
)
assert _spec is not None
reference = importlib.util.module_from_spec(_spec)
assert _spec.loader is not None
_spec.loader.exec_module(reference)

MIDNIGHT = 1494604800  # 2017-05-13 00:00 in Shanghai, the first second of the test day
HEADERS = {
    "raw_sample": "user,time_stamp,adgroup_id,pid,nonclk,clk",
    "ad_feature": "adgroup_id,cate_id,campaign_id,customer,brand,price",
    "user_profile": "userid,cms_segid,cms_group_id,final_gender_code,age_level,pvalue_level,"
    "shopping_level,occupation,new_user_class_level ",
    "behavior_log": "user,time_stamp,btag,cate,brand",
}


def write_raw(folder: Path, **rows: list[str]) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    for name, header in HEADERS.items():
        text = "\n".join([header, *rows.get(name, [])]) + "\n"
        (folder / f"{name}.csv").write_text(text, encoding="utf-8")
    return folder


def awkward_raw(folder: Path, seed: int) -> Path:
    """A small log full of ties: few users and ads, times that crowd around a few borders."""
    rng = np.random.default_rng(seed)
    users = ["1", "2", "10", "NULL", "", "u é"]
    ads = ["7", "12", "123", "9", "é", "NULL"]
    values = ["5", "12", "123", "", "NULL", "Ω", "\U0001f600", "～"]
    borders = MIDNIGHT + np.array([0, -86400, 3600, -3600 * 23, -3600 * 24, -3600 * 167, -1800])

    def pick(options):
        return options[rng.integers(len(options))]

    def moment():
        return int(pick(borders) + rng.integers(-2, 3) + pick([0, 0, 0, 3600, -3600 * 167]))

    shows = []
    for _ in range(int(rng.integers(0, 70))):
        click = int(rng.random() < 0.5)
        shows.append(f"{pick(users)},{moment()},{pick(ads)},p{pick(values)},{1 - click},{click}")
    acts = [
        f"{pick(users)},{moment() - 86400 * int(pick([0, 0, 1, 13, 14, 15]))},"
        f"{pick(['pv', 'fav', 'cart', 'buy'])},{pick(values)},{pick(values)}"
        for _ in range(int(rng.integers(0, 120)))
    ]
    spaces = ["", " ", "\t", "\r", " \r"]
    return write_raw(
        folder,
        raw_sample=[pick(["", "  "]) + row + pick(spaces) for row in shows],
        behavior_log=[row + pick(spaces) for row in acts],
        ad_feature=[
            f"{pick(ads[:4])},{pick(values)},c,{pick(values)},{pick(values)},{pick(['1', 'NULL'])}"
            for _ in range(6)
        ],
        user_profile=[f"{pick(users)},{pick(values)},1,2,,{pick(values)},,0," for _ in range(5)],
    )


def read_tsv(folder: Path) -> tuple[str, str]:
    train, test = (
        (folder / f"{name}.tsv").read_bytes().decode("utf-8") for name in ("train", "test")
    )
    return train, test


@pytest.mark.parametrize("compat", [False, True])
@pytest.mark.parametrize("seed", range(12))
def test_the_join_equals_the_reference_on_awkward_logs(tmp_path, seed, compat):
    raw = awkward_raw(tmp_path / "raw", seed)

    join(raw, tmp_path / "out", compat=compat)

    assert read_tsv(tmp_path / "out") == reference.reference_join(raw, compat)


@pytest.mark.parametrize("compat", [False, True])
def test_the_join_equals_the_reference_on_a_generated_log(tmp_path, compat):
    generate(tmp_path / "raw", 900, 3000, seed=3)

    join(tmp_path / "raw", tmp_path / "out", compat=compat)

    assert read_tsv(tmp_path / "out") == reference.reference_join(tmp_path / "raw", compat)
