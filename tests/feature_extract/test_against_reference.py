"""Column-wise extraction gives what a plain line-by-line extractor gives, however it is chunked."""

from __future__ import annotations

import tempfile
from pathlib import Path

import numpy as np
import pyarrow.parquet as pq
import xxhash
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from feature_extract.chunk import Limits
from feature_extract.extract import apply, extract
from feature_extract.parquet_output import read_schema
from tests.feature_extract.reference import SECTIONS, Reference, ini_text, tsv
from tests.feature_extract.strategies import inis, samples

UNHURRIED = settings(
    max_examples=25,
    deadline=None,
    report_multiple_bugs=False,
    suppress_health_check=[HealthCheck.too_slow],
)
POSITIVE = ["", "0", "0.1", "2.5", "1e5", "-0.25", "7"]  # of the field for log and sqrt


@st.composite
def cases(draw):
    escape, compat = draw(st.booleans()), draw(st.booleans())
    ini = draw(inis(escape))
    files = [draw(samples(escape, compat, st.integers(1, 9))) for _ in range(2)]
    for row in files[0] + files[1]:
        row.append(draw(st.sampled_from(POSITIVE)))
    return ini, compat, files, draw(st.integers(0, 2))


def write(folder: Path, ini: dict, files: list) -> tuple[Path, Path, Path]:
    paths = folder / "f.ini", folder / "train.tsv", folder / "test.tsv"
    for path, text in zip(paths, [ini_text(ini), *map(tsv, files)], strict=True):
        path.write_bytes(text.encode("utf-8"))
    return paths


def written(path: Path) -> list[str]:
    return path.read_bytes().decode("utf-8").split("\n")[:-1]


@UNHURRIED
@given(case=cases(), rows=st.integers(1, 4), nbytes=st.integers(1, 200))
def test_text_files_are_those_of_the_reference(case, rows, nbytes):
    ini, compat, files, min_freq = case
    expected = Reference(ini, min_freq, compat).run(*files)

    with tempfile.TemporaryDirectory() as name:
        out = Path(name)
        extract(
            *write(out, ini, files), out, min_freq=min_freq, format="text", compat=compat,
            limits=Limits(rows=rows, nbytes=nbytes),
        )  # fmt: skip

        for part in ("train", "test"):
            assert written(out / f"intermediate_{part}.tsv") == expected.intermediate[part]
            assert written(out / f"final_{part}.tsv") == expected.final[part]
        pairs = [f"{value}\t{index}" for value, index in expected.dictionary.items()]
        assert written(out / "dictionary.tsv") == pairs
        counts = [f"{value}\t{count}" for value, count in expected.counts.items()]
        assert written(out / "counts.tsv") == counts


def assert_same(table: dict[str, list], lines: list[str], features) -> None:
    """A Parquet file's columns say what the lines of the final text file say."""
    for row, line in enumerate(lines):
        identity, label, *groups = line.split("\t")
        assert table["id"][row] == identity
        assert table["label"][row] == float(label)
        present = {f"{feature.kind}_features_{feature.group}" for feature in features}
        texts = []
        for section, group in zip(SECTIONS, groups, strict=True):
            texts += group.split(",") if section in present else []
        for feature, text in zip(features, texts, strict=True):
            value = table[feature.column][row]
            if feature.kind == "sparse":
                expected = [int(index) for index in text.split("|") if index != "0"]
                assert value == (expected if feature.multi else (expected or [0])[0])
            elif feature.operator in ("log", "sqrt"):
                assert f"{value:.6f}" == text
            else:
                assert value == float(np.float32(0 if text in ("", "NULL") else text))


@UNHURRIED
@given(case=cases(), rows=st.integers(1, 4))
def test_parquet_says_what_the_text_says(case, rows):
    ini, compat, files, min_freq = case
    expected = Reference(ini, min_freq, compat).run(*files)

    with tempfile.TemporaryDirectory() as name:
        out = Path(name)
        conf, train, test = write(out, ini, files)
        limits = Limits(rows=rows)
        report = extract(
            conf, train, test, out, min_freq=min_freq, compat=compat, limits=limits
        )  # fmt: skip
        again = apply(conf, out, test, out / "again.parquet")

        schema = read_schema(out / "final_train.parquet")
        assert schema.size == report["size"] == len(expected.dictionary)
        for part in ("train", "test"):
            table = pq.read_table(out / f"final_{part}.parquet").to_pydict()
            assert_same(table, expected.final[part], schema.features)
        assert again["rows"] == {"data": len(files[1])}
        assert pq.read_table(out / "again.parquet").equals(
            pq.read_table(out / "final_test.parquet")
        )


@UNHURRIED
@given(case=cases())
def test_hashed_numbers_are_xxh3_of_the_intermediate_values(case):
    ini, compat, files, _ = case
    expected = Reference(ini, 0, compat).run(*files)

    with tempfile.TemporaryDirectory() as name:
        out = Path(name)
        conf, train, test = write(out, ini, files)
        extract(conf, train, test, out, compat=compat, index="hash", format="text")

        assert not (out / "dictionary.tsv").exists()
        for ours, line in zip(
            written(out / "final_test.tsv"), expected.intermediate["test"], strict=True
        ):
            hashed = [
                ",".join(
                    "|".join(str(xxhash.xxh3_64(v.encode()).intdigest()) for v in f.split("|"))
                    for f in text.split(",")
                )
                if section in ini
                else ""
                for section, text in zip(SECTIONS[3:], line.split("\t")[5:], strict=True)
            ]
            assert ours.split("\t")[5:] == hashed
