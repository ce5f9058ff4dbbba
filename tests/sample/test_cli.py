"""The commands, as a user meets them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from sample import SCHEMA
from sample.cli import main

ROOT = Path(__file__).resolve().parents[2]


def run(*arguments: object):
    return CliRunner().invoke(main, [str(argument) for argument in arguments])


def test_generate_then_join(tmp_path):
    made = run("generate", "--out", tmp_path / "raw", "--impressions", 400, "--behaviors", 900,
               "--seed", 2)  # fmt: skip
    joined = run("join", "--raw", tmp_path / "raw", "--out", tmp_path / "out", "--memory", "1GB")

    assert made.exit_code == joined.exit_code == 0
    assert "400 impressions" in made.output
    assert "best AUC any model can reach" in made.output
    lines = (tmp_path / "out" / "train.tsv").read_text().splitlines()
    assert f"{len(lines)} train and {400 - len(lines)} test samples" in joined.output
    assert all(line.count("\t") == len(SCHEMA) - 1 for line in lines)


def test_a_mistake_is_one_line_and_exit_code_2(tmp_path):
    result = run("join", "--raw", tmp_path, "--out", tmp_path / "out")

    assert result.exit_code == 2
    assert result.stderr.startswith(
        f"pslite-sample: error: {tmp_path / 'raw_sample.csv'}: no such file"
    )
    assert "Traceback" not in result.output


def test_skipped_lines_are_reported(tmp_path):
    run("generate", "--out", tmp_path, "--impressions", 50, "--behaviors", 50)
    with (tmp_path / "behavior_log.csv").open("a") as stream:
        stream.write("what,is,this\n")

    refused = run("join", "--raw", tmp_path, "--out", tmp_path)
    skipped = run("join", "--raw", tmp_path, "--out", tmp_path, "--max-bad", 3)

    assert refused.exit_code == 2
    assert "--max-bad" in refused.stderr
    assert skipped.exit_code == 0
    assert "skipped 1 malformed lines (behavior_log.csv 1)" in skipped.stderr
    assert "line 52: 3 fields instead of 5: 'what,is,this'" in skipped.stderr


@pytest.mark.parametrize("command", [[], ["generate"], ["join"]])
@pytest.mark.parametrize("option", ["-h", "--help"])
def test_help_teaches_with_an_example(command, option):
    result = run(*command, option)

    assert result.exit_code == 0
    assert "Example:\n" in result.output
    assert "pslite-sample" in result.output


def test_help_and_the_schema_are_cheap():
    code = (
        "import sys, sample, sample.cli, sample.__main__; len(sample.SCHEMA)\n"
        "print(sorted({'numpy', 'numba', 'duckdb', 'pyarrow', 'tqdm'} & set(sys.modules)))"
    )

    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60
    )

    assert (result.stdout.strip(), result.returncode) == ("[]", 0)


def test_the_package_runs_as_a_module():
    result = subprocess.run(
        [sys.executable, "-m", "sample", "--help"],
        cwd=ROOT, capture_output=True, text=True, timeout=60,
    )  # fmt: skip

    assert result.returncode == 0
    assert "generate" in result.stdout


def test_a_missing_library_is_named(tmp_path, monkeypatch):
    monkeypatch.setitem(sys.modules, "duckdb", None)
    monkeypatch.delitem(sys.modules, "sample.join", raising=False)
    monkeypatch.delitem(sys.modules, "sample.tables", raising=False)
    monkeypatch.delitem(sys.modules, "sample.slices", raising=False)

    result = run("join", "--raw", tmp_path, "--out", tmp_path)

    assert result.exit_code == 2
    assert "error: duckdb is not installed; pip install 'pslite[ctr]'" in result.stderr


def test_the_schema_has_77_columns_each_once():
    assert len(SCHEMA) == len(set(SCHEMA)) == 77
    assert SCHEMA[:8] == (
        "user", "time_stamp", "adgroup_id", "pid", "nonclk", "clk", "workdayflag", "tm_hour",
    )  # fmt: skip
    assert SCHEMA[21] == "pv_cate_last_14days"
    assert SCHEMA[29:31] == ("pv_cate_global_latest_n", "pv_cate_global_latest_1")
    assert SCHEMA[45] == "user_show_last_24hour"
    assert SCHEMA[57] == "user_click_local_aid_list_uniq_last_24hour"
    assert SCHEMA[-1] == "user_non_click_local_this_ad_count_last_168hour"
