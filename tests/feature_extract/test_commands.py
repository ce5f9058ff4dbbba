"""What the commands do, and the inis that come with them."""

from __future__ import annotations

import json
import resource
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from click.testing import CliRunner

from feature_extract.cli import main
from feature_extract.conf import read_conf
from feature_extract.errors import DictionaryError, SampleError, SampleFileError, SchemaError
from feature_extract.explain import explain
from feature_extract.extract import apply, extract
from feature_extract.parquet_output import read_schema
from feature_extract.schema import FeatureSchema
from feature_extract.split import split

CONF = Path(__file__).resolve().parents[2] / "conf"
INI = """\
[raw_sample_schema]
fields = user,clk,age,hist
[label]
label = clk,direct
[dense_features_user]
001_age = age,log
[sparse_features_user]
001_user = user,direct
002_hist = hist,group
[sparse_features_user_ad]
001_hit = user|hist,hit
"""
SAMPLES = "u1\t1\t9\tu1,x\nu2\t0\t\tx\nu1\t0\t1\tu1\n"


@pytest.fixture
def files(tmp_path: Path) -> Path:
    (tmp_path / "f.ini").write_text(INI)
    (tmp_path / "s.tsv").write_text(SAMPLES)
    return tmp_path


def call(*arguments: object):
    return CliRunner().invoke(main, list(map(str, arguments)))


def test_extract_says_what_it_did(files: Path):
    (files / "f.ini").write_text(INI + "[modle]\n")
    (files / "s.tsv").write_text("u1\n" + SAMPLES)

    result = call(
        "extract", "--conf", files / "f.ini", "--train", files / "s.tsv", "--out", files / "out",
        "--max-bad", 1,
    )  # fmt: skip

    assert result.exit_code == 0, result.output
    assert "3 train samples, 4 features" in result.output
    assert "1 malformed lines of train skipped" in result.output
    assert "s.tsv:1: 1 columns where 4 are expected" in result.stderr
    assert "warning: " in result.stderr
    assert "[modle] is unknown" in result.stderr


def test_a_mistake_is_one_line_and_an_exit_code(files: Path):
    result = call(
        "extract", "--conf", files / "f.ini", "--train", files / "s.tsv", "--out", files / "out",
        "--set", "dense_features_user.001_age=age,lgo",
    )  # fmt: skip

    assert result.exit_code == 2
    assert result.stderr.startswith("pslite-features: error: ")
    assert result.stderr.count("\n") == 1
    assert "[dense_features_user] 001_age: unknown operator 'lgo'; did you mean 'log'?" in (
        result.stderr
    )


@pytest.mark.parametrize("command", [[], ["extract"], ["apply"], ["explain"], ["split"]])
def test_every_help_shows_an_example(command):
    result = call(*command, "--help")

    assert result.exit_code == 0
    assert "pslite-features " in result.output


def test_apply_is_refused_with_another_ini(files: Path):
    extract(files / "f.ini", files / "s.tsv", None, files / "out")
    (files / "g.ini").write_text(INI.replace("age,log", "age,bucket,1|2"))
    (files / "h.ini").write_text(INI.replace("fields = user,clk", "fields = clk,user"))

    with pytest.raises(DictionaryError, match=r"made of other features .* dense_user/001_age"):
        apply(files / "g.ini", files / "out", files / "s.tsv", files / "x.parquet")
    (files / "t.tsv").write_text("1\tu1\t9\tx\n")
    apply(files / "h.ini", files / "out", files / "t.tsv", files / "x.parquet")
    assert pq.read_table(files / "x.parquet")["sparse_user/001_user"].to_pylist() != [0]


def test_apply_needs_a_dictionary_unless_values_are_hashed(files: Path):
    with pytest.raises(DictionaryError, match="name the directory of the extraction"):
        apply(files / "f.ini", None, files / "s.tsv", files / "x.parquet")
    with pytest.raises(DictionaryError, match=r"dictionary\.tsv: cannot be read"):
        apply(files / "f.ini", files, files / "s.tsv", files / "x.parquet")

    result = call(
        "apply", "--conf", files / "f.ini", "--set", "index.kind=hash", "--data", files / "s.tsv",
        "--out", files / "x.parquet",
    )  # fmt: skip

    assert result.exit_code == 0, result.output


def test_a_damaged_description_is_named(files: Path):
    extract(files / "f.ini", files / "s.tsv", None, files / "out")
    (files / "out" / "features.json").write_text("{")

    with pytest.raises(SchemaError, match=r"features\.json: not a description of features"):
        apply(files / "f.ini", files / "out", files / "s.tsv", files / "x.parquet")


def test_apply_remembers_that_values_were_hashed(files: Path):
    extract(files / "f.ini", files / "s.tsv", None, files / "out", index="hash")

    apply(files / "f.ini", files / "out", files / "s.tsv", files / "x.parquet")

    assert pq.read_table(files / "x.parquet").equals(
        pq.read_table(files / "out" / "final_train.parquet")
    )


def test_the_description_beside_the_files_is_that_inside_them(files: Path):
    extract(files / "f.ini", files / "s.tsv", None, files / "out")

    beside = FeatureSchema.from_json((files / "out" / "features.json").read_bytes())
    inside = pq.read_schema(files / "out" / "final_train.parquet")

    assert FeatureSchema.from_json(inside.metadata[b"pslite.features"]) == beside
    assert json.loads(inside.metadata[b"pslite.features"])["features"][0] == {
        "column": "dense_user/001_age",
        "kind": "dense",
        "group": "user",
        "operator": "log",
        "prefix": "001_age",
        "multi": False,
    }
    assert [(field.name, str(field.type)) for field in inside] == [
        ("id", "string"),
        ("label", "float"),
        ("dense_user/001_age", "float"),
        ("sparse_user/001_user", "uint64"),
        ("sparse_user/002_hist", "list<element: uint64>"),
        ("sparse_user_ad/001_hit", "uint64"),
    ]


def test_row_groups_have_about_64_thousand_rows(files: Path):
    rows = 150_000
    (files / "s.tsv").write_text("u1\t1\t9\tx\n" * rows)

    extract(files / "f.ini", files / "s.tsv", None, files / "out")

    with pq.ParquetFile(files / "out" / "final_train.parquet") as file:
        sizes = [file.metadata.row_group(i).num_rows for i in range(file.metadata.num_row_groups)]
    assert sizes == [65_536, 65_536, rows - 2 * 65_536]


def test_explain_shows_what_a_feature_read_and_what_came_out(files: Path):
    extract(files / "f.ini", files / "s.tsv", None, files / "out", min_freq=0)

    found = explain(files / "f.ini", files / "s.tsv", 1, dictionary=files / "out")

    by_column = {feature.column: feature for feature in found.features}
    assert by_column["dense_user/001_age"].values == ("001_age#2.302585",)
    group = by_column["sparse_user/002_hist"]
    assert (group.inputs, group.values) == (
        {"hist": "u1,x"}, ("002_hist#u1", "002_hist#x")
    )  # fmt: skip
    table = pq.read_table(files / "out" / "final_train.parquet")
    assert group.numbers == tuple(table["sparse_user/002_hist"][0].as_py())
    result = call("explain", "--conf", files / "f.ini", "--data", files / "s.tsv", "--row", 2)
    assert result.exit_code == 0, result.output
    assert f"{files / 's.tsv'}:2" in result.output
    assert "user=u2 | hist=x" in result.output
    result = call("explain", "--conf", files / "f.ini", "--data", files / "s.tsv", "--row", 4)
    assert result.exit_code == 2
    assert "there is no sample 4, only 3" in result.output


def test_explain_and_split_warn_of_what_they_ignore(files: Path):
    (files / "f.ini").write_text(INI + "[sparse_feature_user]\n[input]\nstrp = true\n")
    conf, data = ["--conf", files / "f.ini"], ["--data", files / "s.tsv"]

    for result in (
        call("explain", *conf, *data, "--row", 1),
        call("split", *conf, *data, "--out", files / "parts", "--test-share", 0.4),
    ):
        assert result.exit_code == 0, result.output
        first, second = result.stderr.splitlines()
        assert first.startswith("warning: ")
        assert "[sparse_feature_user] is unknown; did you mean 'sparse_features_user'?" in first
        assert "[input] strp is unknown; did you mean 'strip'?" in second


def test_explain_tells_of_malformed_lines_where_a_sample_is_not_there(files: Path):
    (files / "s.tsv").write_text("u1\nu2\t1\n" + SAMPLES)

    result = call("explain", "--conf", files / "f.ini", "--data", files / "s.tsv", "--row", 4)

    assert result.exit_code == 2
    assert "there is no sample 4, only 3; 2 lines are malformed, the first: " in result.stderr
    assert "s.tsv:1: 1 columns where 4 are expected" in result.stderr


@pytest.mark.parametrize("header", [False, True])
def test_split_keeps_order_and_header(files: Path, header):
    lines = [f"{n}\n" for n in range(1001)]
    (files / "d.csv").write_text("".join(lines))

    train, test = split(files / "d.csv", files / "parts", test_share=0.1, header=header)

    rows = 1000 if header else 1001
    assert (train.rows, test.rows) == (rows - 100, 100)
    assert train.path.read_text() == "".join(lines[:-100])
    assert test.path.read_text() == "".join([*lines[: int(header)], *lines[-100:]])


def test_split_asks_the_ini_for_the_header(files: Path):
    (files / "a.csv").write_text("id,click\n1,0\n2,1\n")

    split(files / "a.csv", files / "parts", test_share=0.5, conf=CONF / "features_avazu.ini")

    assert (files / "parts" / "test.csv").read_text() == "id,click\n2,1\n"


def test_split_of_parquet_is_by_rows(files: Path):
    pq.write_table(pa.table({"x": list(range(10))}), files / "d.parquet")

    result = call("split", "--data", files / "d.parquet", "--out", files, "--test-share", 0.3)

    assert result.exit_code == 0, result.output
    assert pq.read_table(files / "test.parquet")["x"].to_pylist() == [7, 8, 9]


def test_split_refuses_to_leave_a_file_empty(files: Path):
    with pytest.raises(SampleFileError, match="leaves a file empty"):
        split(files / "s.tsv", files / "parts", test_share=0.01)


@pytest.mark.parametrize("path", sorted(CONF.glob("features_*.ini")), ids=lambda p: p.stem)
def test_the_inis_that_come_along_have_no_mistake(path: Path):
    assert read_conf(path).warnings == ()


def test_the_taobao_ini_has_the_columns_that_the_join_writes():
    actions, dimensions = ("pv", "fav", "cart", "buy"), ("cate", "brand")
    pairs = [f"{a}_{d}" for a in actions for d in dimensions]
    things = ("aid", "cate_id", "brand", "customer")
    expected = [
        *("user", "time_stamp", "adgroup_id", "pid", "nonclk", "clk", "workdayflag", "tm_hour"),
        *("cms_segid", "cms_group_id", "final_gender_code", "age_level", "pvalue_level"),
        *("shopping_level", "occupation", "new_user_class_level"),
        *("cate_id", "campaign_id", "customer", "brand", "price"),
    ]
    expected += [f"{pair}_last_14days" for pair in pairs]
    expected += [f"{pair}_global_latest_{n}" for pair in pairs for n in ("n", "1")]
    for hours in (24, 168):
        for who in ("user", "ad"):
            expected += [f"{who}_{what}_last_{hours}hour" for what in ("show", "click", "ctr")]
    for hours in (24, 168):
        expected += [f"user_click_local_{x}_list_uniq_last_{hours}hour" for x in things]
        expected += [f"user_last_click_local_{x}_last_{hours}hour" for x in things]
        expected += [
            f"user_{x}_local_this_ad_count_last_{hours}hour" for x in ("click", "non_click")
        ]
    conf = read_conf(CONF / "features_taobao.ini")

    assert len(expected) == 77
    assert list(conf.fields) == expected
    assert 135 <= len(conf.features) <= 150
    assert {(f.kind, f.group) for f in conf.features} == {
        (kind, group) for kind in ("dense", "sparse") for group in ("user", "ad", "user_ad")
    }
    assert {f.operator for f in conf.features} == {
        "direct", "log", "sqrt", "bucket", "combine", "group", "hit"
    }  # fmt: skip
    assert not {"clk", "nonclk"} & {field for f in conf.features for field in f.fields}


@pytest.mark.parametrize(
    ("name", "forbidden"),
    [("taobao_ad", {"clk", "buy"}), ("avazu", {"click", "id"}), ("criteo", {"label"})],
)
def test_no_ini_gives_the_label_away(name, forbidden):
    conf = read_conf(CONF / f"features_{name}.ini")

    assert not forbidden & {field for f in conf.features for field in f.fields}


def test_features_name_the_index_that_numbered_them(files: Path):
    def identity(out: str, **how: object) -> str | None:
        extract(files / "f.ini", files / "s.tsv", None, files / out, **how)
        found = FeatureSchema.from_json((files / out / "features.json").read_bytes())
        assert found == read_schema(files / out / "final_train.parquet")
        return found.identity

    assert identity("a") == identity("b")
    assert len({identity("a"), identity("c", min_freq=0), identity("d", index="hash")}) == 3
    assert identity("d", index="hash") == "hash:xxh3-64:0"
    apply(files / "f.ini", files / "a", files / "s.tsv", files / "x.parquet")
    assert read_schema(files / "x.parquet").identity == identity("a")


def test_a_dictionary_that_is_not_the_described_one_is_refused(files: Path):
    extract(files / "f.ini", files / "s.tsv", None, files / "out", min_freq=0)
    with (files / "out" / "dictionary.tsv").open("a") as file:
        file.write("user#u9\t99\n")

    with pytest.raises(DictionaryError, match="is not the dictionary"):
        apply(files / "f.ini", files / "out", files / "s.tsv", files / "x.parquet")


def test_no_command_writes_onto_what_it_reads(files: Path):
    extract(files / "f.ini", files / "s.tsv", None, files / "out")
    (files / "train.tsv").symlink_to(files / "s.tsv")
    (files / "final_train.parquet").hardlink_to(files / "s.tsv")
    before = (files / "s.tsv").read_bytes()
    (files / "x.tsv").symlink_to(files / "s.tsv")
    with pytest.raises(SampleFileError, match=r"x\.tsv: would overwrite a file that is read"):
        apply(files / "f.ini", files / "out", files / "s.tsv", files / "x.tsv")
    with pytest.raises(SampleFileError, match=r"dictionary\.tsv: would overwrite"):
        apply(files / "f.ini", files / "out", files / "s.tsv", files / "out" / "dictionary.tsv")
    with pytest.raises(SampleFileError, match=r"train\.tsv: would overwrite"):
        split(files / "s.tsv", files, test_share=0.4)
    with pytest.raises(SampleFileError, match=r"final_train\.parquet: would overwrite"):
        extract(files / "f.ini", files / "s.tsv", None, files)

    assert (files / "s.tsv").read_bytes() == before
    assert (files / "train.tsv").is_symlink()


def test_a_folder_that_is_a_file_is_named(files: Path):
    with pytest.raises(SampleFileError, match=r"cannot be written: (Not a directory|File exists)"):
        extract(files / "f.ini", files / "s.tsv", None, files / "f.ini")


@pytest.mark.parametrize("format", ["text", "parquet"])
def test_a_full_disk_is_named_and_leaves_nothing(files: Path, format: str):
    before = resource.getrlimit(resource.RLIMIT_FSIZE)
    extract(files / "f.ini", files / "s.tsv", None, files / "warm", format=format)

    resource.setrlimit(resource.RLIMIT_FSIZE, (20, before[1]))
    try:
        with pytest.raises(
            SampleFileError, match=r"_train\..*: cannot be written: .*File too large"
        ):
            extract(files / "f.ini", files / "s.tsv", None, files / "out", format=format,
                    index="hash")  # fmt: skip
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert list((files / "out").iterdir()) == []


@pytest.mark.parametrize("format", ["text", "parquet"])
@pytest.mark.parametrize("label", ["yes", "nan", "7", "-1", "0.5", ""])
def test_a_label_that_is_neither_0_nor_1_is_refused_with_its_line(
    files: Path, format: str, label: str
):
    (files / "s.tsv").write_text(SAMPLES + f"u3\t{label}\t5\tx\n")

    with pytest.raises(SampleError, match=rf"s\.tsv:4: .*{label!r}"):
        extract(files / "f.ini", files / "s.tsv", None, files / "out", format=format)


def test_labels_of_existing_text_files_are_kept_in_compatibility_mode(files: Path):
    (files / "s.tsv").write_text("u1\tyes\t9\tx\nu2\t7\t9\tx\n")

    extract(files / "f.ini", files / "s.tsv", None, files / "out", format="text", compat=True)

    lines = (files / "out" / "final_train.tsv").read_text().splitlines()
    assert [line.split("\t")[1] for line in lines] == ["yes", "7"]
