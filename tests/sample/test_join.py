"""The join against the reference, byte for byte, and what it promises besides."""

from __future__ import annotations

import resource
import shutil
import tempfile
from pathlib import Path

import pyarrow.parquet as pq
import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from sample import SCHEMA, pieces, rawfiles, slices
from sample.errors import BadLinesError, OutputError, RawFileError, SampleError, SettingError
from sample.generate import generate
from sample.join import join, parse_memory
from tests.sample.raw_logs import DAY, HOUR, MIDNIGHT, raw_logs, read_tsv, write_raw
from tests.sample.reference_join import reference_join

COLUMN = {name: position for position, name in enumerate(SCHEMA)}


@pytest.fixture(scope="module")
def generated(tmp_path_factory) -> Path:
    folder = tmp_path_factory.mktemp("generated")
    generate(folder, 400, 2500, seed=3)
    return folder


def joined(raw: Path, out: Path, **options) -> list[dict[str, str]]:
    """The samples, train first."""
    join(raw, out, **options)
    lines = "".join(read_tsv(out)).splitlines()
    return [dict(zip(SCHEMA, line.split("\t"), strict=True)) for line in lines]


@given(rows=raw_logs, compat=st.booleans())
@settings(max_examples=12, deadline=None, suppress_health_check=[HealthCheck.too_slow])
def test_the_join_equals_the_reference_on_awkward_logs(rows, compat):
    with tempfile.TemporaryDirectory() as folder:
        raw = write_raw(Path(folder) / "raw", rows)

        join(raw, Path(folder) / "out", compat=compat)

        assert read_tsv(Path(folder) / "out") == reference_join(raw, compat)


@pytest.mark.parametrize("compat", [False, True])
def test_the_join_equals_the_reference_on_a_generated_log(generated, tmp_path, compat):
    join(generated, tmp_path, compat=compat)

    assert read_tsv(tmp_path) == reference_join(generated, compat)


def test_small_blocks_slices_and_ranges_change_nothing(generated, tmp_path, monkeypatch):
    join(generated, tmp_path / "whole")
    monkeypatch.setattr(rawfiles, "BLOCK_BYTES", 1000)
    monkeypatch.setattr(slices, "IMPRESSION_BYTES", 1 << 40)
    monkeypatch.setattr(pieces, "RANGE", 50)

    found = join(generated, tmp_path / "cut")

    assert found["slices"] == found["users"] > 10
    assert read_tsv(tmp_path / "cut") == read_tsv(tmp_path / "whole")


def test_parquet_has_the_rows_and_columns_of_the_text(generated, tmp_path):
    samples = joined(generated, tmp_path)

    found = join(generated, tmp_path, format="parquet")

    tables = [pq.read_table(tmp_path / f"{name}.parquet") for name in ("train", "test")]
    assert [len(table) for table in tables] == [found["train"], found["test"]]
    assert all(table.column_names == list(SCHEMA) for table in tables)
    assert all(str(kind) == "string" for table in tables for kind in table.schema.types)
    assert [row for table in tables for row in table.to_pylist()] == samples


@pytest.mark.parametrize("kind", ["removed", "altered"])
def test_later_events_change_nothing(generated, tmp_path, kind):
    now = MIDNIGHT - 3 * DAY + 12 * HOUR
    rows = {
        name: (generated / f"{name}.csv").read_text().splitlines()[1:]
        for name in ("raw_sample", "behavior_log", "ad_feature", "user_profile")
    }
    before = joined(generated, tmp_path)
    for name in ("raw_sample", "behavior_log"):
        kept = []
        for row in rows[name]:
            user, time, *rest = row.split(",")
            if int(time) < now:
                kept.append(row)
            elif kind == "altered" and name == "raw_sample":
                kept.append(f"{user},{now},{rest[0]},{rest[1]},0,1")
            elif kind == "altered":
                kept.append(f"{user},{now},buy,{rest[1]},x")
        rows[name] = kept

    after = joined(write_raw(tmp_path / "raw", rows), tmp_path / "out")

    earlier, expected = (
        [row for row in found if int(row["time_stamp"]) < now] for found in (after, before)
    )
    assert len(expected) > 150
    assert earlier == expected


def test_an_impression_sees_neither_its_own_click_nor_others_of_its_second(tmp_path):
    rows = {"raw_sample": [f"1,{MIDNIGHT},7,p,1,0", f"1,{MIDNIGHT},7,p,0,1"]}
    rows["behavior_log"] = [f"1,{MIDNIGHT},pv,5,6"]

    samples = joined(write_raw(tmp_path / "raw", rows), tmp_path / "out")

    assert [row["user_show_last_24hour"] for row in samples] == ["0", "0"]
    assert [row["user_click_local_aid_list_uniq_last_168hour"] for row in samples] == ["", ""]
    assert [row["pv_cate_global_latest_n"] for row in samples] == ["", ""]


def test_clicks_of_one_second_stand_in_text_order_in_their_own_hour_only(tmp_path):
    clicks = [f"1,{MIDNIGHT},{ad},p,0,1" for ad in ("12", "123")]
    shows = [f"1,{MIDNIGHT + later},9,p,1,0" for later in (60, HOUR)]

    samples = joined(write_raw(tmp_path / "raw", {"raw_sample": clicks + shows}), tmp_path / "out")

    lists = [row["user_click_local_aid_list_uniq_last_24hour"] for row in samples[2:]]
    last = [row["user_last_click_local_aid_last_24hour"] for row in samples[2:]]
    assert (lists, last) == (["123,12", "12,123"], ["12", "12"])


@pytest.mark.parametrize(
    ("clicks", "shows", "text"),
    [(0, 0, "0.0"), (1, 1, "0.09090909090909091"), (1, 9990, "0.0001"), (1, 19990, "5e-05")],
)
def test_a_ctr_is_the_shortest_decimal_that_reads_back(tmp_path, clicks, shows, text):
    rows = [f"1,{MIDNIGHT},7,p,0,1"] * clicks + [f"1,{MIDNIGHT},7,p,1,0"] * (shows - clicks)
    rows.append(f"1,{MIDNIGHT + 1},7,p,1,0")

    samples = joined(write_raw(tmp_path / "raw", {"raw_sample": rows}), tmp_path / "out")

    assert samples[-1]["user_ctr_last_24hour"] == samples[-1]["ad_ctr_last_168hour"] == text


def test_fifty_values_at_most_are_most_frequent(tmp_path):
    acts = [f"1,{MIDNIGHT - DAY},pv,{value},b" for value in range(100, 160) for _ in (0, 1)]
    acts += [f"1,{MIDNIGHT - DAY},pv,z,b"] * 3
    rows = {"raw_sample": [f"1,{MIDNIGHT},7,p,1,0"], "behavior_log": acts}

    samples = joined(write_raw(tmp_path / "raw", rows), tmp_path / "out")

    expected = ["z", *map(str, range(159, 110, -1))]
    assert samples[0]["pv_cate_last_14days"].split(",") == expected


def test_columns_may_stand_in_another_order_and_extra_ones_are_passed_over(tmp_path, generated):
    shutil.copytree(generated, tmp_path / "raw")
    lines = (generated / "behavior_log.csv").read_text().splitlines()
    turned = [",".join(["x", *reversed(line.split(","))]) for line in lines]
    (tmp_path / "raw" / "behavior_log.csv").write_text("\ufeff" + "\r\n".join(turned))

    assert joined(tmp_path / "raw", tmp_path / "a") == joined(generated, tmp_path / "b")


BAD = [
    ("raw_sample", "1,2,3,p,1", "5 fields instead of 6"),
    ("raw_sample", "1,2,3,p,1,0,9", "7 fields instead of 6"),
    ("raw_sample", "1,NULL,3,p,1,0", "time_stamp is not a whole number of seconds"),
    ("raw_sample", "1,1494604800.5,3,p,1,0", "time_stamp is not a whole number of seconds"),
    ("raw_sample", "1,1494604800,3,p,1,2", "clk is not one of 0, 1"),
    ("raw_sample", "1,1494604800,3\t4,p,1,0", "a control character inside the line"),
    ("raw_sample", "\x006,1494604800,3,p,1,0", "a control character inside the line"),
    ("raw_sample", "6,1494604800,3,p,1,0\x00", "a control character inside the line"),
    ("raw_sample", "\x7f,1494604800,3,p,1,0", "a control character inside the line"),
    ("raw_sample", "1,-1494604800,3,p,1,0", "time_stamp is negative"),
    ("behavior_log", "1,-5,pv,5,5", "time_stamp is negative"),
    ("behavior_log", "\x00\x00", "1 fields instead of 5"),
    ("behavior_log", "1,1494604800,view,5,5", "btag is not one of pv, fav, cart, buy"),
    ("user_profile", "1", "1 fields instead of 9"),
    ("ad_feature", "1,2,3,4,5", "5 fields instead of 6"),
]


@pytest.mark.parametrize(("name", "line", "problem"), BAD)
def test_a_malformed_line_is_named_and_may_be_skipped(tmp_path, name, line, problem):
    good = [f"1,{MIDNIGHT},7,p,1,0"]
    rows = {"raw_sample": good} | {name: [*(good if name == "raw_sample" else []), "", line]}
    raw = write_raw(tmp_path / "raw", rows)
    number = len(rows[name]) + 1

    with pytest.raises(BadLinesError) as caught:
        join(raw, tmp_path / "out")
    found = join(raw, tmp_path / "out", max_bad=1)

    example = f"{raw / name}.csv, line {number}: {problem}: {line!r}"
    assert example in str(caught.value)
    assert caught.value.examples[0].line == number
    assert found["bad_lines"] == {f"{name}.csv": 1}
    assert found["bad_examples"] == [example]
    assert (found["train"], found["test"]) == (0, 1)


def test_a_line_that_is_not_utf8_is_malformed(tmp_path):
    raw = write_raw(tmp_path / "raw", {"raw_sample": [f"é,{MIDNIGHT},7,p,1,0"]})
    with (raw / "raw_sample.csv").open("ab") as stream:
        stream.write(b"\xff,1494604800,7,p,1,0\n")

    found = join(raw, tmp_path / "out", max_bad=1)

    assert found["bad_examples"][0].startswith(f"{raw / 'raw_sample.csv'}, line 3: not UTF-8")
    assert found["test"] == 1


def test_the_first_examples_are_shown_and_all_are_counted(tmp_path):
    raw = write_raw(tmp_path / "raw", {"user_profile": ["x"] * 9, "ad_feature": ["y"] * 2})

    found = join(raw, tmp_path / "out", max_bad=11)

    assert found["bad_lines"] == {"user_profile.csv": 9, "ad_feature.csv": 2}
    assert len(found["bad_examples"]) == 5
    with pytest.raises(BadLinesError, match="11 malformed lines, 10 allowed"):
        join(raw, tmp_path / "out", max_bad=10)


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        (None, "no such file"),
        ("", "line 1 is empty"),
        ("user,time_stamp,btag,cate\n", "line 1 has no column brand"),
        ("user,time_stamp,btag,cate,brand,brand\n", "line 1 has more than one column brand"),
    ],
)
def test_an_unusable_file_is_named_before_any_work(tmp_path, text, problem):
    raw = write_raw(tmp_path / "raw", {"raw_sample": ["malformed"]})
    path = raw / "behavior_log.csv"
    path.unlink() if text is None else path.write_text(text)

    with pytest.raises(RawFileError, match=problem) as caught:
        join(raw, tmp_path / "out")

    assert caught.value.path == path
    assert str(path) in str(caught.value)


def test_a_line_without_end_is_no_reason_to_read_it_all(tmp_path, monkeypatch):
    monkeypatch.setattr(rawfiles, "BLOCK_BYTES", 100)
    monkeypatch.setattr(rawfiles, "LONGEST_LINE", 1000)
    raw = write_raw(tmp_path / "raw", {"raw_sample": ["x" * 5000]})

    with pytest.raises(RawFileError, match="a line from 2 on is over 1000 bytes long"):
        join(raw, tmp_path / "out")


def test_a_join_that_fails_leaves_the_old_output_and_nothing_else(tmp_path, generated):
    join(generated, tmp_path / "out")
    before = read_tsv(tmp_path / "out")
    raw = write_raw(tmp_path / "raw", {"behavior_log": ["malformed"]})

    with pytest.raises(SampleError):
        join(raw, tmp_path / "out")

    assert read_tsv(tmp_path / "out") == before
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["test.tsv", "train.tsv"]


def test_work_files_go_where_they_should_and_then_go(tmp_path, generated, monkeypatch):
    seen = []
    monkeypatch.setattr(pieces.Pieces, "in_order", _noting(pieces.Pieces.in_order, seen))
    (tmp_path / "temp").mkdir()

    join(generated, tmp_path / "out", temp=tmp_path / "temp")

    assert seen[0].is_relative_to(tmp_path / "temp")
    assert list((tmp_path / "temp").iterdir()) == []


def _noting(in_order, seen):
    def noting(self):
        seen.append(self.path)
        return in_order(self)

    return noting


def test_no_impressions_give_empty_files(tmp_path):
    raw = write_raw(tmp_path / "raw", {"behavior_log": [f"1,{MIDNIGHT},pv,5,6"]})

    for form in ("tsv", "parquet"):
        found = join(raw, tmp_path / "out", format=form)

        assert (found["train"], found["test"], found["users"]) == (0, 0, 0)
    assert read_tsv(tmp_path / "out") == ("", "")
    assert pq.read_table(tmp_path / "out" / "test.parquet").num_columns == len(SCHEMA)


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        ({"format": "csv"}, "format csv is unknown; there are tsv, parquet"),
        ({"memory": "lots"}, "memory 'lots' is no size"),
        ({"memory": "1MB"}, "memory 1MB is too little"),
        ({"max_bad": -1}, "max_bad is -1"),
    ],
)
def test_a_senseless_argument_is_named(tmp_path, options, problem):
    with pytest.raises(SettingError, match=problem):
        join(tmp_path, tmp_path / "out", **options)


def test_an_output_that_cannot_be_made_is_named(tmp_path, generated):
    (tmp_path / "out").write_text("a file")

    with pytest.raises(OutputError, match="out"):
        join(generated, tmp_path / "out")


@pytest.mark.parametrize(
    ("text", "nbytes"),
    [("2GB", 2 << 30), ("1.5g", 3 << 29), ("512MiB", 512 << 20), (str(1 << 30), 1 << 30)],
)
def test_sizes_are_read_with_their_units(text, nbytes):
    assert parse_memory(text) == nbytes


@pytest.mark.parametrize("form", ["tsv", "parquet"])
def test_a_full_disk_at_the_end_is_named(generated, tmp_path, monkeypatch, form):
    def full(path: Path, kind: str) -> pieces.Writer:
        writer = made(path, kind)
        resource.setrlimit(resource.RLIMIT_FSIZE, (1000, before[1]))
        return writer

    made, before = pieces.Writer, resource.getrlimit(resource.RLIMIT_FSIZE)
    monkeypatch.setattr("sample.join.Writer", full)
    try:
        with pytest.raises(OutputError, match=rf"\w+\.{form} cannot be written: .*File too large"):
            join(generated, tmp_path / "out", format=form)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, before)

    assert list((tmp_path / "out").iterdir()) == []
