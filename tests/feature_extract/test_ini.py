"""The ini dialect of feature files, and what is wrong with a wrong one."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from feature_extract.conf import parse_conf, read_conf
from feature_extract.errors import FeatureError, IniError, nearest
from feature_extract.ini import parse

BASE = """\
[raw_sample_schema]
fields = user,ad,clk,price,hist
[id]
id = user|ad,combine,direct|direct,#
[label]
label = clk,direct
[dense_features_ad]
001_price = price,log
[sparse_features_user]
001_user = user,direct
"""


def conf(*lines: str):
    return parse_conf(BASE + "\n".join(lines) + "\n", "f.ini")


def values(text: str) -> dict[str, dict[str, str]]:
    return {
        section: {key: entry.value for key, entry in entries.items()}
        for section, entries in parse(text, "f.ini").items()
    }


def test_a_sign_begins_a_comment_only_where_a_line_begins():
    assert values("[a]\n# no = key\nx = b,#20|50 # 3\n  # neither\n") == {
        "a": {"x": "b,#20|50 # 3"}
    }


def test_names_are_case_sensitive_and_the_last_of_repeated_keys_counts():
    assert values("[a]\nx=1\nX=2\nx=3\n[A]\nx=4\n[a]\ny=5=6\nX=7") == {
        "a": {"x": "3", "X": "7", "y": "5=6"},
        "A": {"x": "4"},
    }


def test_an_indented_line_without_a_key_continues_the_value():
    assert values("[a]\nx =\n    b,c,\n\td\n  y = 1\n") == {"a": {"x": "b,c,d", "y": "1"}}


def test_an_interpolation_sign_is_just_a_sign():
    assert values("[a]\nx = %(b)s\n") == {"a": {"x": "%(b)s"}}


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("x = 1", "f.ini:1: key 'x' stands before the first [section]"),
        ("[a]\nx", "f.ini:2 [a]: 'x' is neither [section], key = value nor a comment"),
        ("[a\nx = 1", "f.ini:1: '[a' is no section; write [name]"),
        ("[a]\n= 1", "f.ini:2 [a]: a value without a key"),
        ("[a]\n; x", "f.ini:2 [a]: '; x' is neither"),
    ],
)
def test_a_malformed_line_is_named(text, message):
    with pytest.raises(IniError, match="^" + re.escape(message)):
        parse(text, "f.ini")


def test_features_come_in_the_order_of_the_key_text():
    lines = ["[sparse_features_ad]", "010_b = ad,direct", "002_a = ad,direct", "1_c = ad,group"]

    assert [f.column for f in conf(*lines).features] == [
        "dense_ad/001_price",
        "sparse_user/001_user",
        "sparse_ad/002_a",
        "sparse_ad/010_b",
        "sparse_ad/1_c",
    ]


@pytest.mark.parametrize(
    ("definition", "problem"),
    [
        ("ad", "'ad' lacks an operator; write FIELD,OPERATOR[,ARGUMENTS]"),
        ("ad,buckt,1", "unknown operator 'buckt'; did you mean 'bucket'?"),
        ("ad,Direct", "unknown operator 'Direct'; did you mean 'direct'?"),
        ("adgroup,direct", "the samples have no field 'adgroup'"),
        ("prise,direct", "the samples have no field 'prise'; did you mean 'price'?"),
        ("Price,direct", "the samples have no field 'Price'; did you mean 'price'?"),
        ("ad,direct,", "operator 'direct' takes no argument, not 1"),
        ("price,log,2", "operator 'log' takes no argument, not 1"),
        ("price,bucket", "operator 'bucket' takes one argument, its breaks (20|50|100), not 0"),
        ("price,bucket,1,2", "operator 'bucket' takes one argument"),
        ("price,bucket,1|x", "break 'x' of '1|x' is not a finite number"),
        ("price,bucket,", "break '' of '' is not a finite number"),
        ("price,bucket,22|19|7", "break 19 of '22|19|7' is below the one before it"),
        ("price,bucket,1|nan", "break 'nan' of '1|nan' is not a finite number"),
        ("hist,group,brand,x", "operator 'group' takes at most one argument"),
        ("hist,group,", "the prefix is empty"),
        ("hist,group,a#b", "'a#b' contains '#', which separates values; choose another name"),
        ("user|ad,direct", "operator 'direct' reads 1 field, not 2 (user|ad)"),
        ("user,hit", "operator 'hit' reads 2 fields, not 1 (user)"),
        ("user|ad|hist,hit", "operator 'hit' reads 2 fields, not 3"),
        ("user|ad,combine,direct|direct", "operator 'combine' takes two arguments"),
        (
            "user|ad,combine,direct|direct,",
            "'combine' needs one operator and one argument (it may be empty) for each field: "
            "2 fields, 2 operators, 1 arguments",
        ),
        ("user|ad,combine,direct,#", "2 fields, 1 operators, 2 arguments"),
        ("user|ad,combine,direct|log,#", "'combine' joins direct and bucket, not 'log'"),
        ("user|price,combine,direct|buckt,#1", "not 'buckt'; did you mean 'bucket'?"),
        ("user|ad,combine,direct|direct,#1", "'direct' takes no argument, but ad has '1'"),
        ("user|price,combine,direct|bucket,#", "break '' of '' is not a finite number"),
    ],
)
def test_a_wrong_feature_names_file_section_and_key(definition, problem):
    with pytest.raises(IniError) as caught:
        conf("[sparse_features_ad]", f"001_x = {definition}")

    error = caught.value
    assert str(error).startswith("f.ini:12 [sparse_features_ad] 001_x: ")
    assert problem in str(error)
    assert (error.section, error.key, error.line) == ("sparse_features_ad", "001_x", 12)


@pytest.mark.parametrize("operator", ["combine,direct|direct,#", "group"])
def test_what_has_no_single_number_is_no_dense_feature(operator):
    fields = "user|ad" if operator.startswith("combine") else "hist"

    with pytest.raises(IniError, match="is not possible here; allowed are direct, log"):
        conf("[dense_features_user]", f"001_x = {fields},{operator}")


def test_a_key_with_a_separator_cannot_be_a_prefix():
    with pytest.raises(IniError, match=re.escape("[sparse_features_ad] 001|x: '001|x' contains")):
        conf("[sparse_features_ad]", "001|x = price,bucket,1")


@pytest.mark.parametrize(
    ("lines", "message"),
    [
        (["[raw_sample_schema]", "fields = a,b,a"], "[raw_sample_schema] fields: column 'a' is"),
        (["[raw_sample_schema]", "fields = a,,b"], "the name of column 2 is empty"),
        (["[id]", "id = hist,group"], "[id] id: operator 'group' is not possible here"),
        (["[id]", "escape = maybe"], "[id] escape: 'maybe' is neither true nor false"),
        (["[index]", "kind = hsh"], "[index] kind: 'hsh' is no index; did you mean 'hash'?"),
        (["[input]", "format = cvs"], "[input] format: unknown format 'cvs'; did you mean 'csv'?"),
        (["[input]", "delimiter = ab"], "[input] delimiter: 'ab' is not one ASCII character"),
        (["[input]", "header = si"], "[input] header: 'si' is neither true nor false"),
        (["[input]", "clip_min = low"], "[input] clip_min: 'low' is not a number"),
        (["[input]", "negative = no"], "[input] positive: negative labels without positive"),
    ],
)
def test_a_wrong_setting_is_named(lines, message):
    with pytest.raises(IniError, match=re.escape(message)):
        conf(*lines)


@pytest.mark.parametrize("section", ["raw_sample_schema", "label"])
def test_what_cannot_be_left_out_is_asked_for(section):
    text = re.sub(rf"\[{section}\]\n.*\n", "", BASE)

    with pytest.raises(IniError, match=rf"\[{section}\]"):
        parse_conf(text, "f.ini")


def test_an_ini_without_features_is_an_error():
    with pytest.raises(IniError, match="no features"):
        parse_conf(BASE.split("[dense")[0], "f.ini")


def test_unknown_names_are_warnings_since_other_programs_may_read_the_file():
    lines = ["[sparse_feature_ad]", "001 = ad,direct", "[input]", "strp = yes", "[sgd]", "a = 1"]

    found = conf(*lines)

    misspelt, foreign, key = found.warnings
    assert misspelt == "f.ini: [sparse_feature_ad] is unknown; did you mean 'sparse_features_ad'?"
    assert foreign.startswith("f.ini: [sgd] is unknown; known are raw_sample_schema, input, ")
    assert key == "f.ini:14: [input] strp is unknown; did you mean 'strip'?"


def test_settings_override_lines_of_the_file(tmp_path: Path):
    path = tmp_path / "f.ini"
    path.write_text(BASE)

    found = read_conf(path, ["index.kind=hash", "dense_features_ad.001_price = price,sqrt"])

    assert found.index == "hash"
    assert [f.operator for f in found.features] == ["sqrt", "direct"]
    with pytest.raises(IniError, match=re.escape("--set 'index=hash' is not SECTION.KEY=VALUE")):
        read_conf(path, ["index=hash"])


@pytest.mark.parametrize(
    ("setting", "problem"),
    [
        ("index.knd=hash", "--set [index] knd: unknown key; did you mean 'kind'?"),
        ("inptu.format=csv", "--set [inptu] format: unknown section; did you mean 'input'?"),
        ("input.strp=yes", "--set [input] strp: unknown key; did you mean 'strip'?"),
        ("dense_features_ad.001_prize=price,log", "did you mean '001_price'? (an override changes"),
    ],
)
def test_an_override_of_what_is_not_there_is_an_error(tmp_path: Path, setting: str, problem: str):
    path = tmp_path / "f.ini"
    path.write_text(BASE)

    with pytest.raises(IniError) as caught:
        read_conf(path, [setting])

    assert problem in str(caught.value)


def test_an_unreadable_ini_is_an_error_of_ours(tmp_path: Path):
    (tmp_path / "bytes.ini").write_bytes(b"[a]\nx = \xff\n")

    with pytest.raises(FeatureError, match=r"bytes\.ini: not UTF-8 at byte 8"):
        read_conf(tmp_path / "bytes.ini")
    with pytest.raises(FeatureError, match=r"none\.ini: cannot be read: No such file"):
        read_conf(tmp_path / "none.ini")


def test_the_hint_lists_all_names_where_none_is_near():
    assert nearest("zzz", ["direct", "bucket"]) == "; known are direct, bucket"
    assert nearest("zzz", [f"name{n}" for n in range(20)]) == ""
