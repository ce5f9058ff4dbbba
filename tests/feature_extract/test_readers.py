"""Sample files of every kind read as the same columns."""

from __future__ import annotations

import gzip
import re
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from feature_extract.chunk import Limits
from feature_extract.columns import Columns
from feature_extract.conf import parse_conf
from feature_extract.errors import BadLineError, FeatureError, SampleError, SampleFileError
from feature_extract.readers import open_samples
from feature_extract.readers.bad_lines import BadLines

INI = """\
[raw_sample_schema]
fields = user,clk,unused,tags
[label]
label = clk,direct
[sparse_features_user]
001 = user,direct
002 = tags,group
"""


def read(path: Path, ini: str, *, rows: int = 2, optional=(), max_bad: int = 0):
    """All chunks of a file as {field: texts}, line numbers and malformed lines."""
    conf = parse_conf(ini, "f.ini")
    bad, lines, texts = BadLines(str(path), max_bad), [], {}
    limits = Limits(rows=rows, nbytes=24)
    for chunk in open_samples(path, conf, limits=limits, optional=optional).chunks(bad):
        columns = Columns(chunk, conf, compat=False)
        lines += chunk.lines.tolist()
        for name in sorted({*conf.source_fields, *conf.derived}):
            codes, values = columns.texts(name)
            texts.setdefault(name, []).extend(values.take(pa.array(codes)).to_pylist())
    return texts, lines, bad


def test_a_tab_separated_file_needs_no_settings(tmp_path: Path):
    (tmp_path / "s.tsv").write_bytes('u1\t1\tx\ta,b\nu 2\t0\t\t\n\u00e9\t\t\t"c"'.encode())

    texts, lines, _ = read(tmp_path / "s.tsv", INI)

    assert texts == {"user": ["u1", "u 2", "é"], "clk": ["1", "0", ""], "tags": ["a,b", "", '"c"']}
    assert lines == [1, 2, 3]


@pytest.mark.parametrize("compress", [lambda b: b, gzip.compress], ids=["plain", "gzip"])
def test_windows_line_ends_a_byte_order_mark_and_compression_do_not_matter(tmp_path, compress):
    path = tmp_path / ("s.tsv" if compress(b"x") == b"x" else "s.tsv.gz")
    path.write_bytes(compress(b"\xef\xbb\xbfu1\t1\tx\ta\r\nu2\t0\tx\tb\r\n"))

    texts, _, _ = read(path, INI)

    assert texts == {"user": ["u1", "u2"], "clk": ["1", "0"], "tags": ["a", "b"]}


def test_a_header_names_columns_in_any_order(tmp_path: Path):
    ini = INI + "[input]\nformat = csv\nheader = true\nlist_delimiter = |\n"
    (tmp_path / "s.csv").write_text("tags,more,clk,user\na|b,x,1,u1\n\nc,y,0,u2\n")

    texts, lines, bad = read(tmp_path / "s.csv", ini)

    assert texts == {"user": ["u1", "u2"], "clk": ["1", "0"], "tags": ["a|b", "c"]}
    assert (lines, bad.count) == ([2, 4], 0)


def test_a_missing_column_is_named_unless_it_may_be_missing(tmp_path: Path):
    ini = INI + "[input]\nformat = csv\nheader = true\n"
    (tmp_path / "s.csv").write_text("user,tag,tags\nu1,x,a\n")

    with pytest.raises(SampleFileError, match=r"s\.csv: its first line names no column 'clk'"):
        read(tmp_path / "s.csv", ini)
    texts, _, _ = read(tmp_path / "s.csv", ini, optional=["clk"])
    assert texts["clk"] == [""]


def test_remarks_blanks_and_unknown_texts_are_cleaned_away(tmp_path: Path):
    ini = INI + (
        "[input]\nformat = csv\nstrip = true\nunknown = ?, N/A\ncomment = |\n"
        "positive = yes, yes.\nnegative = no, no.\n"
    )
    (tmp_path / "s.csv").write_text(
        "|1x3 Cross validator\nu1, yes, x, a\n| a, b, c, d\n ?,no., x,\tN/A \n\nu3 , , ,?b\n"
    )

    texts, lines, bad = read(tmp_path / "s.csv", ini)

    assert texts == {"user": ["u1", "", "u3"], "clk": ["1", "0", ""], "tags": ["a", "", "?b"]}
    assert (lines, bad.count) == ([2, 4, 6], 0)


def test_a_label_that_is_neither_positive_nor_negative_is_named(tmp_path: Path):
    settings = "[input]\npositive = yes\nnegative = no\n"
    (tmp_path / "s.tsv").write_text("u\tyes\t\t\nu\tmaybe\t\t\n")

    with pytest.raises(SampleError, match=re.escape("s.tsv:2: label 'maybe' is neither positive")):
        read(tmp_path / "s.tsv", INI + settings)
    texts, _, _ = read(tmp_path / "s.tsv", INI + "[input]\npositive = yes\n")
    assert texts["clk"] == ["1", "0"]


@pytest.mark.parametrize("delimiter", [("semicolon", ";"), ("bar", "|"), (";", ";")])
def test_a_delimiter_has_a_name_or_is_itself(tmp_path: Path, delimiter):
    named, sign = delimiter
    (tmp_path / "s.csv").write_text(sign.join(["u1", "1", "x", "a"]) + "\n")

    texts, _, _ = read(tmp_path / "s.csv", INI + f"[input]\nformat = csv\ndelimiter = {named}\n")

    assert texts == {"user": ["u1"], "clk": ["1"], "tags": ["a"]}


def test_parquet_columns_of_other_types_are_read_as_text(tmp_path: Path):
    table = pa.table(
        {
            "tags": pa.array([["a", "b"], [], None]),
            "clk": pa.array([1, 0, None]),
            "more": pa.array([1.5, 2.5, 3.5]),
            "user": pa.array(["u1", None, "u1"]).dictionary_encode(),
        }
    )
    pq.write_table(table, tmp_path / "s.parquet")

    texts, lines, _ = read(tmp_path / "s.parquet", INI)

    assert texts == {"user": ["u1", "", "u1"], "clk": ["1", "0", ""], "tags": ["a,b", "", ""]}
    assert lines == [1, 2, 3]
    pq.write_table(table.drop_columns(["user"]), tmp_path / "t.parquet")
    with pytest.raises(SampleFileError, match=r"t\.parquet: it has no column 'user'"):
        read(tmp_path / "t.parquet", INI)
    (tmp_path / "u.parquet").write_text("no")
    with pytest.raises(SampleFileError, match=r"u\.parquet: cannot be read as Parquet"):
        read(tmp_path / "u.parquet", INI)


LIBSVM = """\
[input]
format = libsvm
[label]
label = label,direct
[sparse_features_user]
001 = features,group
"""


def test_libsvm_lines_are_a_label_and_a_list(tmp_path: Path):
    (tmp_path / "a.txt").write_text(
        "-1 3:1 11:1.0 14:0.5 \n+1 7:1 # remark\n\n# remark\n0\n1  9:-2\t8:1"
    )

    texts, lines, _ = read(tmp_path / "a.txt", LIBSVM)

    assert texts == {
        "label": ["0", "1", "0", "1"],
        "features": ["3,11,14=0.5", "7", "", "9=-2,8"],
    }
    assert lines == [1, 2, 5, 6]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("1 3:1 x", "'x' is not index:value"),
        ("1 3:one", "'3:one' is not index:value"),
        ("1 3:", "'3:' is not index:value"),
        ("3:1 4:1", "it begins with '3:1'; a line begins with its label"),
    ],
)
def test_a_malformed_libsvm_line_is_named(tmp_path: Path, line, problem):
    (tmp_path / "a.txt").write_text(f"1 1:1\n{line}\n-1 2:1\n")

    with pytest.raises(BadLineError, match=re.escape(f"a.txt:2: {problem}")):
        read(tmp_path / "a.txt", LIBSVM)
    texts, lines, bad = read(tmp_path / "a.txt", LIBSVM, max_bad=1)
    assert (texts["features"], lines, bad.count) == (["1", "2"], [1, 3], 1)


def test_avazu_hours_become_date_hour_and_weekday(tmp_path: Path):
    ini = """\
[input]
format = avazu
[label]
label = click,direct
[sparse_features_user]
001 = weekday,direct
002 = date|hour_of_day,combine,direct|direct,#
"""
    (tmp_path / "a.csv").write_text("id,click,hour\n1,0,14102100\n2,1,14102623\n")

    texts, _, _ = read(tmp_path / "a.csv", ini)

    assert texts["date"] == ["141021", "141026"]
    assert texts["hour_of_day"] == ["00", "23"]
    assert texts["weekday"] == ["2", "7"]
    for wrong in ("2014102100", "14102124", "1410211", "14 02100"):
        (tmp_path / "b.csv").write_text(f"id,click,hour\n1,0,14102100\n2,1,{wrong}\n")
        with pytest.raises(SampleError, match=re.escape("b.csv:3: field hour: ")):
            read(tmp_path / "b.csv", ini)


def test_a_libsvm_file_of_remarks_has_no_samples(tmp_path: Path):
    (tmp_path / "a.txt").write_text("# remark\n\n")

    assert read(tmp_path / "a.txt", LIBSVM)[:2] == ({}, [])


def test_a_file_that_ends_too_early_is_named(tmp_path: Path):
    rows = [f"u{n}\t1\t{n * n}\ta" for n in range(2000)]
    whole = gzip.compress("\n".join(rows).encode())
    (tmp_path / "s.tsv.gz").write_bytes(whole[: len(whole) // 2])
    with pytest.raises(SampleFileError, match=r"s\.tsv\.gz: cannot be read"):
        read(tmp_path / "s.tsv.gz", INI, rows=1000)
    columns = {name: [f"{name} {n}" for n in range(2000)] for name in ("user", "clk", "tags")}
    pq.write_table(pa.table(columns), tmp_path / "s.parquet")
    data = bytearray((tmp_path / "s.parquet").read_bytes())
    data[4:2000] = bytes(1996)
    (tmp_path / "s.parquet").write_bytes(data)
    with pytest.raises(SampleFileError, match=r"s\.parquet: cannot be read as Parquet"):
        read(tmp_path / "s.parquet", INI, rows=1000)


def test_a_file_that_is_not_there_or_not_what_its_name_says(tmp_path: Path):
    with pytest.raises(FeatureError, match="none: no such file"):
        read(tmp_path / "none", INI)
    (tmp_path / "s.gz").write_text("plain")
    with pytest.raises(SampleFileError, match=r"s\.gz: cannot be read"):
        read(tmp_path / "s.gz", INI)


@pytest.mark.parametrize("name", ["s.tsv", "s.txt"])
def test_an_empty_file_has_no_samples(tmp_path: Path, name):
    (tmp_path / name).write_text("")

    assert read(tmp_path / name, LIBSVM if name == "s.txt" else INI)[:2] == ({}, [])
