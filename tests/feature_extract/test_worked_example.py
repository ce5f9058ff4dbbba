"""The example of the format description comes out byte for byte, from the command line too."""

from __future__ import annotations

from pathlib import Path

import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from feature_extract.cli import main

INI = """\
[raw_sample_schema]
fields=user,ts,ad,clk,price,brand,age,seen,hist
[id]
id=ts|user|ad,combine,direct|direct|direct,##
[label]
label=clk,direct
[dense_features_user]
001_seen_log=seen,log
002_seen=seen,direct
[dense_features_ad]
001_price_sqrt=price,sqrt
[sparse_features_user]
001_user=user,direct
002_age=age,direct
003_hist=hist,group,brand
004_hist_own=hist,group
[sparse_features_ad]
001_brand=brand,direct
002_price=price,bucket,20|50|100
003_brand_price=brand|price,combine,direct|bucket,#20|50|100
010_tenth=ad,direct
[sparse_features_user_ad]
001_brand_in_hist=brand|hist,hit
002_age_brand=age|brand,combine,direct|direct,#
"""
SAMPLES = """\
u1⇥100⇥a7⇥1⇥50⇥b1⇥3⇥9⇥b1,b2,b1
u2⇥101⇥a8⇥0⇥50.01⇥b9⇥⇥⇥
u1⇥102⇥a7⇥0⇥⇥NULL⇥3⇥0⇥b2
u3⇥103⇥a9⇥1⇥1000⇥b2⇥4⇥2.5⇥b2
"""
INTERMEDIATE = (
    "id#100#u1#a7⇥clk#1⇥001_seen_log#2.302585,seen#9⇥001_price_sqrt#7.141428⇥⇥"
    "user#u1,age#3,brand#b1|brand#b2|brand#b1,004_hist_own#b1|004_hist_own#b2|004_hist_own#b1⇥"
    "brand#b1,002_price#1,003_brand_price#b1#1,ad#a7⇥001_brand_in_hist#1,002_age_brand#3#b1\n"
    "id#101#u2#a8⇥clk#0⇥001_seen_log#0.000000,seen#⇥001_price_sqrt#7.142128⇥⇥"
    "user#u2,age#,brand#,004_hist_own#⇥"
    "brand#b9,002_price#2,003_brand_price#b9#2,ad#a8⇥001_brand_in_hist#0,002_age_brand##b9\n"
    "id#102#u1#a7⇥clk#0⇥001_seen_log#0.000000,seen#0⇥001_price_sqrt#0.000000⇥⇥"
    "user#u1,age#3,brand#b2,004_hist_own#b2⇥"
    "brand#NULL,002_price#-1,003_brand_price#NULL#-1,ad#a7⇥"
    "001_brand_in_hist#0,002_age_brand#3#NULL\n"
    "id#103#u3#a9⇥clk#1⇥001_seen_log#1.252763,seen#2.5⇥001_price_sqrt#31.638584⇥⇥"
    "user#u3,age#4,brand#b2,004_hist_own#b2⇥"
    "brand#b2,002_price#3,003_brand_price#b2#3,ad#a9⇥001_brand_in_hist#1,002_age_brand#4#b2\n"
)
DICTIONARY = (
    "brand#b2⇥1\nbrand#b1⇥2\n004_hist_own#b2⇥3\nuser#u1⇥4\nage#3⇥5\nad#a7⇥6\n"
    "004_hist_own#b1⇥7\n001_brand_in_hist#1⇥8\n001_brand_in_hist#0⇥9\n"
)
FINAL = """\
id#100#u1#a7⇥1⇥2.302585,9⇥7.141428⇥⇥4,5,2|1|2,7|3|7⇥2,0,0,6⇥8,0
id#101#u2#a8⇥0⇥0.000000,⇥7.142128⇥⇥0,0,0,0⇥0,0,0,0⇥9,0
id#102#u1#a7⇥0⇥0.000000,0⇥0.000000⇥⇥4,5,1,3⇥0,0,0,6⇥9,0
id#103#u3#a9⇥1⇥1.252763,2.5⇥31.638584⇥⇥0,0,1,3⇥1,0,0,0⇥8,0
"""
FIRST_COUNTS = (
    "user#u1⇥2\nage#3⇥2\nbrand#b1⇥3\nbrand#b2⇥4\n004_hist_own#b1⇥2\n004_hist_own#b2⇥3\n"
    "002_price#1⇥1\n003_brand_price#b1#1⇥1\nad#a7⇥2\n001_brand_in_hist#1⇥2\n"
    "002_age_brand#3#b1⇥1\nuser#u2⇥1\nage#⇥1\nbrand#⇥1\n"
)


def written(path: Path) -> str:
    return path.read_bytes().decode("utf-8").replace("\t", "⇥")


@pytest.fixture
def run(tmp_path: Path):
    (tmp_path / "example.ini").write_text(INI)
    (tmp_path / "samples.tsv").write_text(SAMPLES.replace("⇥", "\t"), encoding="utf-8")

    def extract(*arguments: str) -> Path:
        samples = str(tmp_path / "samples.tsv")
        command = ["extract", "--conf", str(tmp_path / "example.ini"), "--train", samples]
        command += ["--test", samples, "--out", str(tmp_path / "out"), "--min-freq", "1"]
        result = CliRunner().invoke(main, [*command, *arguments])
        assert result.exit_code == 0, result.output
        return tmp_path / "out"

    return extract


def test_every_text_file_of_the_example_comes_out_byte_for_byte(run):
    out = run("--format", "text")

    for name in ("train", "test"):
        assert written(out / f"intermediate_{name}.tsv") == INTERMEDIATE
        assert written(out / f"final_{name}.tsv") == FINAL
    assert written(out / "dictionary.tsv") == DICTIONARY
    assert written(out / "counts.tsv").startswith(FIRST_COUNTS)


def test_the_example_in_parquet_has_the_numbers_of_the_text(run):
    out = run("--format", "parquet")

    table = pq.read_table(out / "final_train.parquet").to_pydict()
    assert table["id"] == ["id#100#u1#a7", "id#101#u2#a8", "id#102#u1#a7", "id#103#u3#a9"]
    assert table["label"] == [1, 0, 0, 1]
    assert [f"{x:.6f}" for x in table["dense_user/001_seen_log"]] == [
        "2.302585", "0.000000", "0.000000", "1.252763"
    ]  # fmt: skip
    assert table["dense_user/002_seen"] == [9, 0, 0, 2.5]
    assert table["sparse_user/003_hist"] == [[2, 1, 2], [], [1], [1]]
    assert table["sparse_user/004_hist_own"] == [[7, 3, 7], [], [3], [3]]
    assert table["sparse_ad/001_brand"] == [2, 0, 0, 1]
    assert table["sparse_ad/010_tenth"] == [6, 0, 6, 0]
    assert table["sparse_user_ad/001_brand_in_hist"] == [8, 9, 9, 8]


def test_parquet_writes_intermediate_samples_only_if_asked(run):
    out = run()
    assert sorted(p.name for p in out.iterdir()) == [
        "dictionary.tsv", "features.json", "final_test.parquet", "final_train.parquet"
    ]  # fmt: skip

    run("--intermediate")

    assert written(out / "intermediate_test.tsv") == INTERMEDIATE
    assert written(out / "counts.tsv").startswith(FIRST_COUNTS)
