"""What single values become, and what is said about those that cannot become anything."""

from __future__ import annotations

import re
from pathlib import Path

import pyarrow.parquet as pq
import pytest

from feature_extract.errors import BadLineError, FeatureError, SampleError
from feature_extract.extract import apply, extract

INI = """\
[raw_sample_schema]
fields = user,clk,number,hist
[id]
id = user,direct
[label]
label = clk,direct
"""


@pytest.fixture
def run(tmp_path: Path):
    def extracted(feature: str, samples: list[str], section="sparse_features_user", **options):
        (tmp_path / "f.ini").write_text(f"{INI}{options.pop('more', '')}[{section}]\n{feature}\n")
        text = "".join(line.replace("⇥", "\t") + "\n" for line in samples)
        (tmp_path / "s.tsv").write_bytes(text.encode("utf-8"))
        options = {"format": "text", "min_freq": 0, **options}
        extract(tmp_path / "f.ini", tmp_path / "s.tsv", None, tmp_path / "out", **options)
        return tmp_path / "out"

    return extracted


def column(out: Path, number: int, file: str = "intermediate_train.tsv") -> list[str]:
    lines = (out / file).read_bytes().decode("utf-8").split("\n")[:-1]
    return [line.split("\t")[number] for line in lines]


def rows(texts: list[str], field: str = "number") -> list[str]:
    if field == "number":
        return [f"u⇥0⇥{text}⇥h" for text in texts]
    return [f"u⇥0⇥1⇥{text}" for text in texts]


# The last digit of the first four is another one in float64 all along, or in float32 all along.
@pytest.mark.parametrize(
    ("operator", "text", "expected"),
    [
        ("log", "4097.35", "8.318339"),
        ("log", "65045.93", "11.082864"),
        ("sqrt", "63696.17", "252.382980"),
        ("sqrt", "26978.67", "164.254898"),
        ("log", "0", "0.000000"),
        ("log", "9", "2.302585"),
        ("log", "1.5", "0.916291"),
        ("log", "-0.5", "-0.693147"),
        ("log", "", "0.000000"),
        ("log", "NULL", "0.000000"),
        ("sqrt", "0", "1.000000"),
        ("sqrt", "-1", "0.000000"),
        ("sqrt", "1000", "31.638584"),
        ("sqrt", "50.01", "7.142128"),
        ("sqrt", "", "0.000000"),
        ("sqrt", "16777217", "4096.000000"),
    ],
)
def test_log_and_sqrt_round_as_the_format_says(run, operator, text, expected):
    out = run(f"001 = number,{operator}", rows([text]), "dense_features_user")

    assert column(out, 2) == [f"001#{expected}"]


def test_a_bucket_is_the_first_break_not_below_the_number_in_float32(run):
    texts = ["", "NULL", "-3", "20", "20.000000001", "20.01", "50", "0.1", "100", "1e9"]

    out = run("001 = number,bucket,20|50|100", rows(texts))

    assert column(out, 5) == [
        f"001#{place}" for place in [-1, -1, 0, 0, 0, 1, 1, 0, 2, 3]
    ]  # fmt: skip


def test_of_equal_breaks_the_first_counts(run):
    out = run("001 = number,bucket,1|5|5|9", rows(["0", "3", "5", "6", "10"]))

    assert column(out, 5) == ["001#0", "001#1", "001#1", "001#3", "001#4"]


@pytest.mark.parametrize(
    ("text", "listed", "expected"),
    [
        ("9", "9,4", "1"),
        ("4", "9,4", "1"),
        ("94", "9,4", "0"),
        ("", "9,,4", "1"),
        ("", "9,4", "0"),
        ("", "", "0"),
        ("9", "", "0"),
        ("NULL", "NULL", "1"),
        ("NULL", "9,NULL", "1"),
        ("9", "9.0", "0"),
        ("", "9,", "1"),
    ],
)
def test_a_hit_compares_texts(run, text, listed, expected):
    sample = [f"u⇥0⇥{text}⇥{listed}"]

    assert column(run("001 = number|hist,hit", sample), 5) == [f"001#{expected}"]
    out = run("001 = number|hist,hit", sample, "dense_features_user")
    assert column(out, 2) == [f"001#{expected}"]
    assert column(out, 2, "final_train.tsv") == [expected]


@pytest.mark.parametrize("sign", [",", "|", "#", "\r"])
@pytest.mark.parametrize("feature", ["hist,direct", "hist|user,combine,direct|direct,#"])
def test_a_value_with_a_separator_is_an_error_that_names_the_line(run, sign, feature):
    with pytest.raises(SampleError, match=re.escape("s.tsv:2: field hist:")) as caught:
        run(f"001 = {feature}", rows(["a", f"a{sign}b", "c"], "hist"))

    assert caught.value.line == 2
    assert "[id] escape = true" in str(caught.value)


def test_a_separator_in_an_item_of_a_list_names_the_line(run):
    with pytest.raises(SampleError, match=re.escape("s.tsv:3: field hist: 'c#d' contains")):
        run("001 = hist,group", rows(["a,b", "b,a", "a,c#d"], "hist"))


def test_escape_makes_separators_underscores(run):
    out = run(
        "001 = hist,direct\n002 = hist,group\n003 = hist|user,combine,direct|direct,#",
        rows(["a|b#c,d"], "hist"),
        more="[id]\nescape = true\n",
    )

    assert column(out, 5) == ["hist#a_b_c_d,002#a_b_c|002#d,003#a_b_c_d#u"]


def test_two_texts_that_escape_to_one_are_counted_together(run):
    out = run(
        "001 = hist,direct", rows(["a|b", "a#b", "c"], "hist"), more="[id]\nescape = true\n",
        min_freq=1,
    )  # fmt: skip

    assert (out / "dictionary.tsv").read_text() == "hist#a_b\t1\n"


@pytest.mark.parametrize(
    ("operator", "text", "problem"),
    [
        ("log", "-1", "log needs a number above -1, not -1"),
        ("log", "-0.99999999999", "log needs a number above -1, not -1"),
        ("sqrt", "-1.5", "sqrt needs a number -1 or more, not -1.5"),
        ("log", "many", "'many' is not a number"),
        ("bucket,1", "1_0", "'1_0' is not a number"),
        ("log", "nan", "'nan' is not a number"),
        ("sqrt", "1e99", "'1e99' is not a number"),
    ],
)
def test_a_number_that_is_none_names_file_and_line(run, operator, text, problem):
    with pytest.raises(SampleError, match=re.escape(f"s.tsv:3: field number: {problem}")):
        run(f"001 = number,{operator}", rows(["1", "2", text]))


def test_clip_min_lifts_numbers_for_log_and_sqrt_only(run):
    out = run(
        "001 = number,log\n002 = number,sqrt\n003 = number,bucket,-2|0\n004 = number,direct",
        rows(["-3", "0", ""]), "dense_features_user", more="[input]\nclip_min = 0\n",
    )  # fmt: skip

    assert column(out, 2) == [
        "001#0.000000,002#1.000000,003#0,number#-3",
        "001#0.000000,002#1.000000,003#1,number#0",
        "001#0.000000,002#0.000000,003#-1,number#",
    ]


@pytest.mark.parametrize("operator", ["log", "sqrt", "bucket,1"])
def test_compat_takes_null_in_a_number_column_for_an_error(run, operator):
    with pytest.raises(SampleError, match=r"s\.tsv:2: field number: 'NULL' is not a number"):
        run(f"001 = number,{operator}", rows(["1", "NULL"]), compat=True)


def test_compat_counts_the_empty_text_of_absent_sections(run):
    out = run("001 = number,direct", rows(["1", "1", "2"]), compat=True, min_freq=1)

    assert (out / "counts.tsv").read_text() == "number#1\t2\n\t6\nnumber#2\t1\n"
    assert (out / "dictionary.tsv").read_text() == "\t1\nnumber#1\t2\n"
    assert column(out, 6, "final_train.tsv") == ["", "", ""]


def test_an_apply_with_a_compat_dictionary_reads_the_empty_text(run, tmp_path: Path):
    out = run("001 = number,direct", rows(["1", "1", "2"]), compat=True, min_freq=1)

    apply(tmp_path / "f.ini", out, tmp_path / "s.tsv", tmp_path / "again.tsv", format="text")

    assert (tmp_path / "again.tsv").read_bytes() == (out / "final_train.tsv").read_bytes()


def test_dictionary_ties_fall_by_code_point(run):
    texts = ["a", "B", "é", "𝄞", "\uffff", "10", "9"]

    out = run("001 = number,direct", rows(texts + texts))

    lines = (out / "dictionary.tsv").read_bytes().decode("utf-8").split("\n")[:-1]
    assert [line.split("\t")[0].removeprefix("number#") for line in lines] == [
        "𝄞", "\uffff", "é", "a", "B", "9", "10"
    ]  # fmt: skip


def test_the_more_frequent_value_comes_first_and_rare_ones_are_dropped(run):
    out = run("001 = number,direct", rows(["a", "b", "b", "c", "c", "c"]), min_freq=1)

    assert (out / "dictionary.tsv").read_text() == "number#c\t1\nnumber#b\t2\n"
    assert column(out, 5, "final_train.tsv") == ["0", "2", "2", "1", "1", "1"]


@pytest.mark.parametrize("line", ["u⇥0⇥1", "u⇥0⇥1⇥h⇥x", ""])
def test_a_line_with_another_number_of_columns_is_named(run, line):
    count = len(line.split("⇥"))

    with pytest.raises(BadLineError, match=rf"s\.tsv:2: {count} columns where 4 are expected"):
        run("001 = number,direct", [*rows(["1"]), line, *rows(["2"])])


def test_bad_lines_are_skipped_up_to_the_limit_and_later_errors_keep_their_lines(run):
    lines = ["x", *rows(["1"]), "y⇥z", *rows(["2"])]

    out = run("001 = number,direct", lines, max_bad=2)

    assert column(out, 5) == ["number#1", "number#2"]
    with pytest.raises(BadLineError, match=r"s\.tsv:3: 2 columns .* after 1 that were skipped"):
        run("001 = number,direct", lines, max_bad=1)
    with pytest.raises(SampleError, match=r"s\.tsv:4: field number: '2x' is not a number"):
        run("001 = number,log", [*lines[:3], *rows(["2x"])], max_bad=2)


def test_bytes_that_are_not_utf8_are_named(tmp_path: Path):
    (tmp_path / "f.ini").write_text(INI + "[sparse_features_user]\n001 = number,direct\n")
    (tmp_path / "s.tsv").write_bytes(b"u\t0\t1\th\nu\t0\t\xff\th\n")

    with pytest.raises(SampleError, match=r"s\.tsv:2: field number: b'\\xff' is not UTF-8"):
        extract(tmp_path / "f.ini", tmp_path / "s.tsv", None, tmp_path / "out")


@pytest.mark.parametrize("format", ["text", "parquet"])
def test_a_run_that_fails_leaves_no_final_file(run, tmp_path: Path, format):
    with pytest.raises(SampleError):
        run(
            "001 = number,direct\n[dense_features_user]\n001 = number,log",
            rows(["1"] * 50 + ["-7"]), format=format,
        )  # fmt: skip

    assert [p.name for p in (tmp_path / "out").iterdir() if "final" in p.name] == []


@pytest.mark.parametrize(
    ("feature", "section", "message"),
    [
        ("001 = number,direct", "dense_features_user", "field number: 'x' is not a number to"),
        ("001 = user,direct", "sparse_features_user", "field clk: '' is not a number to train on"),
    ],
)
def test_what_cannot_be_trained_on_is_an_error_in_parquet(run, feature, section, message):
    samples = ["u⇥1⇥2⇥h", "u⇥1⇥x⇥h" if section.startswith("dense") else "u⇥⇥2⇥h"]

    with pytest.raises(SampleError, match=re.escape(f"s.tsv:2: {message}")):
        run(feature, samples, section, format="parquet")
    if section.startswith("dense"):  # text files carry the field itself
        run(feature, samples, section, format="text")


def test_new_samples_may_lack_their_label(run, tmp_path: Path):
    out = run("001 = number,direct", rows(["1", "2"]), format="parquet")
    (tmp_path / "new.tsv").write_text("u\t\t2\th\nu\tNULL\t7\th\nu\t1\t1\th\n")

    apply(tmp_path / "f.ini", out, tmp_path / "new.tsv", tmp_path / "new.parquet")

    table = pq.read_table(tmp_path / "new.parquet").to_pydict()
    assert [label == label and label for label in table["label"]] == [False, False, 1.0]
    assert table["sparse_user/001"] == [1, 0, 2]


def test_an_empty_dense_value_trains_as_zero(run):
    out = run(
        "001 = number,direct", rows(["", "NULL", "2.5"]), "dense_features_user", format="parquet"
    )

    assert pq.read_table(out / "final_train.parquet")["dense_user/001"].to_pylist() == [0, 0, 2.5]


def test_without_an_id_the_line_number_serves(run, tmp_path: Path):
    run("001 = number,direct", rows(["1", "2"]))
    text = (tmp_path / "f.ini").read_text().replace("[id]\nid = user,direct\n", "")
    (tmp_path / "f.ini").write_text(text)

    extract(tmp_path / "f.ini", tmp_path / "s.tsv", None, tmp_path / "out", format="text")

    assert column(tmp_path / "out", 0, "final_train.tsv") == ["id#1", "id#2"]


def test_an_unknown_format_or_index_is_an_error(run):
    with pytest.raises(FeatureError, match="unknown format 'txt'; did you mean 'text'"):
        run("001 = number,direct", rows(["1"]), format="txt")
    with pytest.raises(FeatureError, match="unknown index 'hsh'; did you mean 'hash'"):
        run("001 = number,direct", rows(["1"]), index="hsh")
