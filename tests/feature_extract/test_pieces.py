"""Kernels, vocabulary, numbers, index and schema, each against something plain."""

from __future__ import annotations

import re
import subprocess
import sys
from collections import Counter as Count
from pathlib import Path

import numpy as np
import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from numpy.testing import assert_array_equal

from feature_extract import index as index_module
from feature_extract.counting import occurrences
from feature_extract.errors import DictionaryError, SchemaError
from feature_extract.index import Dictionary, HashIndex
from feature_extract.kernels import list_hits, split_lines
from feature_extract.numbers import number, parse_float32, six_decimals
from feature_extract.operators import Cells
from feature_extract.readers.blocks import blocks
from feature_extract.schema import Feature, FeatureSchema
from feature_extract.vocabulary import Counter, Vocabulary

PATIENT = settings(deadline=None)  # a kernel is compiled in the first example
ROOT = Path(__file__).resolve().parents[2]
LINE = st.text(alphabet="ab, \r;", max_size=8)


@PATIENT
@given(lines=st.lists(LINE, max_size=12), strip=st.booleans(), blank=st.booleans())
def test_lines_are_split_as_text_splits_them(lines, strip, blank):
    text = np.frombuffer("".join(line + "\n" for line in lines).encode(), dtype=np.uint8)
    starts, ends = np.zeros((2, len(lines), 2), dtype=np.int32)
    numbers, bad = np.empty(len(lines), np.int32), np.empty((len(lines), 2), np.int32)
    slots = np.array([1, -1, 0], dtype=np.int32)  # third and first column are wanted
    good, wrong = [], []
    for position, line in enumerate(lines):
        line = line.removesuffix("\r")
        if (blank and not line) or line.startswith(";"):
            continue
        cells = line.split(",")
        if len(cells) == 3:
            good.append((position, [c.strip(" \t") if strip else c for c in cells]))
        else:
            wrong.append([position, len(cells)])

    found = split_lines(
        text, ord(","), ord(";"), blank, strip, slots, starts, ends, numbers, bad
    )  # fmt: skip

    assert found == (len(lines), len(good), len(wrong))
    assert numbers[: len(good)].tolist() == [position for position, _ in good]
    assert bad[: len(wrong)].tolist() == wrong
    raw = text.tobytes().decode()
    for row, (_, cells) in enumerate(good):
        taken = [raw[starts[row, slot] : ends[row, slot]] for slot in (1, 0)]
        assert taken == [cells[0], cells[2]]


@PATIENT
@given(data=st.binary(max_size=60), nbytes=st.integers(1, 20))
def test_blocks_are_whole_lines_and_lose_nothing(tmp_path_factory, data, nbytes):
    path = tmp_path_factory.mktemp("blocks") / "data.txt"
    path.write_bytes(data)

    parts = list(blocks(path, nbytes))

    assert all(part.endswith(b"\n") for part, _ in parts)
    expected = data.removeprefix(b"\xef\xbb\xbf")
    tail = b"" if not expected or expected.endswith(b"\n") else b"\n"
    assert b"".join(part for part, _ in parts) == expected + tail
    assert sum(read for _, read in parts) == (len(data) if expected else 0)


TEXTS = st.lists(st.lists(st.text(max_size=4), max_size=40), max_size=6)


@PATIENT
@given(batches=TEXTS, absent=st.text(max_size=5))
def test_a_vocabulary_numbers_texts_as_a_dict_does(batches, absent):
    vocabulary, plain = Vocabulary(), {}
    for batch in batches:
        ids = vocabulary.add(pa.array(batch, pa.string()))

        assert ids.tolist() == [plain.setdefault(text, len(plain)) for text in batch]
    assert vocabulary.texts().to_pylist() == list(plain)
    wanted = [absent, *plain]
    found = vocabulary.find(pa.array(wanted, pa.string())).tolist()
    assert found == [plain.get(text, -1) for text in wanted]


def test_a_vocabulary_outgrows_its_first_table():
    texts = [f"value {n}" for n in range(5000)]
    vocabulary = Vocabulary()
    for low in range(0, 5000, 700):
        vocabulary.add(pa.array(texts[low : low + 700]).slice(0))

    assert vocabulary.find(pa.array(texts[::-1])).tolist() == list(range(4999, -1, -1))
    assert vocabulary.find(pa.array(texts).slice(4000, 3)).tolist() == [4000, 4001, 4002]


@PATIENT
@given(rows=st.lists(st.lists(st.sampled_from("abcd"), min_size=1, max_size=4), min_size=1))
def test_occurrences_are_those_that_counting_one_by_one_gives(rows):
    cells = list(dict.fromkeys(map(tuple, rows)))
    flat = [item for cell in cells for item in cell]
    texts = list(dict.fromkeys(flat))
    offsets = np.cumsum([0, *map(len, cells)]).astype(np.int32)
    column = Cells(
        np.array([cells.index(tuple(row)) for row in rows], dtype=np.int32),
        offsets,
        np.array([texts.index(item) for item in flat], dtype=np.int32),
        pa.array(texts),
    )

    counts, first_rows, positions = occurrences(column)

    plain = Count(item for row in rows for item in row)
    first = {}
    for number_, row in enumerate(rows):
        for position, item in enumerate(row):
            first.setdefault(item, (number_, position))
    assert counts.tolist() == [plain[text] for text in texts]
    pairs = zip(first_rows.tolist(), positions.tolist(), strict=True)
    assert list(pairs) == [first[t] for t in texts]


def test_a_counter_keeps_the_earliest_place_of_a_value():
    counter = Counter()
    one = np.ones(1, dtype=np.int64)
    for row, place in [(5, 1), (3, 9), (3, 2), (4, 0)]:
        counter.add(pa.array(["x"]), one, one * row, one * place)

    assert (counter.counts.tolist(), counter.rows.tolist(), counter.places.tolist()) == (
        [4], [3], [2]
    )  # fmt: skip


@PATIENT
@given(
    lists=st.lists(st.lists(st.integers(0, 5), max_size=5), min_size=1, max_size=5),
    wanted=st.lists(st.integers(-1, 6), max_size=12),
)
def test_list_hits_are_memberships(lists, wanted):
    rows = np.arange(len(wanted), dtype=np.int32) % len(lists)
    hits = np.empty(len(wanted), dtype=np.bool_)

    list_hits(
        np.array(wanted, dtype=np.int32), rows,
        np.cumsum([0, *map(len, lists)]).astype(np.int32),
        np.array([i for items in lists for i in items], dtype=np.int32), hits,
    )  # fmt: skip

    assert hits.tolist() == [w in lists[r] for w, r in zip(wanted, rows, strict=True)]


@PATIENT
@given(st.lists(st.floats(width=32, allow_nan=False, allow_infinity=False), min_size=1))
def test_numbers_read_back_as_float32(values):
    texts = pa.array([repr(value) for value in values])

    found, fine = parse_float32(texts)

    assert fine.all()
    assert_array_equal(found, np.array(values, dtype=np.float32))


def test_a_number_is_rounded_once():
    # just above the middle of 1 and the next float32; float64 would lie on the middle, and fall
    assert number("1.00000005960464480") == float(np.nextafter(np.float32(1), np.float32(2)))


@pytest.mark.parametrize("text", ["", " ", "x", "1,5", "1_000", "0x10", "nan", "inf", "1e40"])
def test_what_is_no_finite_number_is_none(text):
    assert number(text) is None


def test_blanks_and_a_plus_sign_do_not_matter():
    found, fine = parse_float32(pa.array([" 7", "+7", "7 "]))

    assert fine.all()
    assert found.tolist() == [7, 7, 7]


def test_six_decimals_are_those_of_c():
    texts = six_decimals(np.array([0, -0.0, 0.1, 31.638584, 1e-7, 2**24], dtype=np.float32))

    assert texts.to_pylist() == [
        "0.000000", "-0.000000", "0.100000", "31.638584", "0.000000", "16777216.000000"
    ]  # fmt: skip


def test_the_hash_is_xxh3_64_with_seed_0():
    found = HashIndex().look_up("brand", pa.array(["b1", "", "é"]))

    # of brand#b1, brand# and brand#é in UTF-8: fixed, since trained models depend on them
    assert found.tolist() == [0xEA5C7BD44D27259B, 0x0CD865695D35E155, 0xA63510C1C9BEC1C3]
    assert found.dtype == np.uint64


def test_a_hash_of_0_becomes_1(monkeypatch):
    monkeypatch.setattr(index_module.xxhash, "xxh3_64_intdigest", lambda data: 0)

    assert HashIndex().look_up("x", pa.array(["a", "b"])).tolist() == [1, 1]


def test_a_dictionary_reads_back(tmp_path: Path):
    path = tmp_path / "dictionary.tsv"
    path.write_bytes("a#x#y\t1\nb#\t2\n\t3\nb#é\t4\na#\t7\n".encode())

    dictionary = Dictionary.read(path)

    assert dictionary.size == 7
    assert dictionary.look_up("a", pa.array(["", "x#y", "x"])).tolist() == [7, 1, 0]
    assert dictionary.look_up("b", pa.array(["é", ""])).tolist() == [4, 2]
    assert dictionary.look_up("c", pa.array(["x"])).tolist() == [0]
    dictionary.write(tmp_path / "again.tsv")
    assert (tmp_path / "again.tsv").read_bytes() == path.read_bytes()


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a#x\t1\na#x\t2\n", "a value of 'a' stands there twice"),
        ("a#x\n", "cannot be read as lines of VALUE, tab, INDEX"),
        ("a#x\tone\n", "cannot be read as lines of VALUE, tab, INDEX"),
        ("a#x\t0\n", "an index is missing or is 0"),
        ("a#x\t\n", "an index is missing or is 0"),
        ("a\t1\n", "'a' is no PREFIX#VALUE"),
    ],
)
def test_a_malformed_dictionary_is_refused(tmp_path: Path, text, message):
    path = tmp_path / "d.tsv"
    path.write_text(text)

    with pytest.raises(DictionaryError, match=re.escape(f"{path}: {message}")):
        Dictionary.read(path)


SCHEMA = FeatureSchema(
    features=(
        Feature("dense_user/001", "dense", "user", "log", "001", False),
        Feature("sparse_ad/002", "sparse", "ad", "group", "brand", True),
    ),
    index="dictionary",
    size=9,
    label="clk,direct",
    id="",
    ini="[id]\n# é\n",
)


def test_a_schema_survives_json():
    assert FeatureSchema.from_json(SCHEMA.to_json()) == SCHEMA
    assert [f.column for f in SCHEMA.select("sparse")] == ["sparse_ad/002"]
    assert SCHEMA.select("sparse", "user") == ()


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"version": 1}', '{"version": 99}', "{"])
def test_what_is_no_schema_is_refused(text):
    with pytest.raises(SchemaError):
        FeatureSchema.from_json(text)


@pytest.mark.parametrize("module", ["schema", "cli", "errors"])
def test_modules_that_others_import_at_start_are_cheap(module):
    heavy = "{'numpy', 'numba', 'pyarrow', 'duckdb', 'torch'}"
    code = f"import sys, feature_extract.{module}; print(sorted({heavy} & set(sys.modules)))"

    result = subprocess.run(
        [sys.executable, "-c", code], cwd=ROOT, capture_output=True, text=True, timeout=60,
        check=True,
    )  # fmt: skip

    assert result.stdout.strip() == "[]"
