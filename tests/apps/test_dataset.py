from __future__ import annotations

import gzip
import itertools
import weakref
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest
from numpy.testing import assert_array_equal

from apps.ctr.batch import GROUPS, Rows
from apps.ctr.dataset import Dataset, open_source
from apps.ctr.errors import DataError
from apps.ctr.parquet_source import ParquetSource
from apps.ctr.text_source import TextSource

BLOCKS = {"x": GROUPS}


def all_rows(data: Dataset, size: int = 7, **how: Any) -> Rows:
    return Rows.concatenate([batch.rows() for batch in data.batches(size, **how)])


def assert_same_rows(found: Rows, expected: Rows) -> None:
    assert_array_equal(found.labels, expected.labels)
    assert found.blocks.keys() == expected.blocks.keys()
    for name, block in found.blocks.items():
        assert_array_equal(block.dense, expected.blocks[name].dense)
        assert_array_equal(block.lengths, expected.blocks[name].lengths)
        assert_array_equal(block.keys, expected.blocks[name].keys)
        assert_array_equal(block.starts, expected.blocks[name].starts)


def test_a_parquet_file_gives_its_rows(tmp_path: Path, generate: Callable[..., Any]) -> None:
    made = generate(rows=100, seed=1)

    found = all_rows(Dataset(open_source(made.write_parquet(tmp_path / "f.parquet"), BLOCKS)))

    block = found.blocks["x"]
    assert_array_equal(found.labels, made.labels)
    assert_array_equal(block.dense, made.dense)
    for i in range(100):
        user, brand, cate, hit = made.single[i].tolist()
        values = [[user], made.groups[i].tolist(), [brand], [cate], [hit]]
        known = [[v for v in bag if v] for bag in values]
        assert block.lengths[i].tolist() == [len(bag) for bag in known]
        assert block.keys[block.starts[i] : block.starts[i + 1]].tolist() == [
            v for bag in known for v in bag
        ]


@pytest.mark.parametrize("blocks", [BLOCKS, {"user": ["user"], "ad": ["ad"]}])
@pytest.mark.parametrize("block_bytes", [50, 997, 1 << 20])
def test_text_gives_the_rows_of_parquet(
    tmp_path: Path, generate: Callable[..., Any], blocks: dict[str, list[str]], block_bytes: int
) -> None:
    made = generate(rows=60, seed=2)
    parquet = Dataset(ParquetSource(made.write_parquet(tmp_path / "f.parquet"), blocks))
    text = TextSource(made.write_text(tmp_path / "f.tsv"), blocks, block_bytes)

    assert_same_rows(all_rows(Dataset(text)), all_rows(parquet))
    assert text.schema.widths() == parquet.schema.widths()


def test_text_may_be_gzipped_and_end_without_a_newline(
    tmp_path: Path, generate: Callable[..., Any]
) -> None:
    made = generate(rows=30, seed=3)
    plain = Dataset(open_source(made.write_text(tmp_path / "f.tsv"), BLOCKS))
    with gzip.open(tmp_path / "g.tsv.gz", "wt", encoding="utf-8", newline="") as file:
        file.write("\r\n".join(made.lines()))

    assert_same_rows(all_rows(Dataset(open_source(tmp_path / "g.tsv.gz", BLOCKS))), all_rows(plain))


def test_an_empty_dense_value_reads_zero(tmp_path: Path) -> None:
    path = tmp_path / "f.tsv"
    path.write_text("id#1\t1\t,2.5\t\t\t7|9,0\t\t\nid#2\t0\t-1,\t\t\t0,3\t\t\n")

    found = all_rows(Dataset(open_source(path, BLOCKS))).blocks["x"]

    assert found.dense.tolist() == [[0, 2.5], [-1, 0]]
    assert (found.keys.tolist(), found.lengths.tolist()) == ([7, 9, 3], [[2, 0], [0, 1]])


@pytest.mark.parametrize("window_rows", [5, 16, 1000])
@pytest.mark.parametrize("size", [1, 10, 64, 101])
def test_batches_run_on_across_windows_and_drop_no_row(
    tmp_path: Path, generate: Callable[..., Any], window_rows: int, size: int
) -> None:
    path = generate(rows=100, seed=4).write_parquet(tmp_path / "f.parquet", row_group_size=16)
    whole = all_rows(Dataset(ParquetSource(path, BLOCKS)), 100)

    batches = list(Dataset(ParquetSource(path, BLOCKS, window_rows)).batches(size))

    assert [batch.size for batch in batches[:-1]] == [size] * (len(batches) - 1)
    assert sum(batch.size for batch in batches) == 100
    assert_same_rows(Rows.concatenate([batch.rows() for batch in batches]), whole)


def test_parts_of_a_batch_make_up_the_batch(tmp_path: Path, generate: Callable[..., Any]) -> None:
    path = generate(rows=40, seed=5).write_parquet(tmp_path / "f.parquet", row_group_size=6)
    for batch in Dataset(ParquetSource(path, BLOCKS, 6)).batches(16, shuffle=(1, 2)):
        cuts = [0, 0, 3, 3, 8, batch.size, batch.size]

        parts = [batch.rows(a, b) for a, b in itertools.pairwise(cuts)]

        assert [len(p) for p in parts] == np.diff(cuts).tolist()
        assert_same_rows(Rows.concatenate(parts), batch.rows())


def test_a_shuffle_is_a_permutation_that_its_seed_and_epoch_fix(
    tmp_path: Path, generate: Callable[..., Any]
) -> None:
    path = generate(rows=90, seed=6).write_parquet(tmp_path / "f.parquet", row_group_size=20)
    data = Dataset(ParquetSource(path, BLOCKS, 20))

    plain = all_rows(data).blocks["x"].dense
    first = all_rows(data, shuffle=(1, 1)).blocks["x"].dense
    again = all_rows(data, shuffle=(1, 1)).blocks["x"].dense
    other = all_rows(data, shuffle=(1, 2)).blocks["x"].dense

    assert_array_equal(first, again)
    assert not np.array_equal(first, other)
    assert not np.array_equal(first, plain)
    assert sorted(first.tolist()) == sorted(plain.tolist())


@pytest.mark.parametrize("cache", [0, 2_000, 1 << 30])
def test_what_is_kept_in_memory_does_not_change_the_batches(
    tmp_path: Path, generate: Callable[..., Any], cache: int
) -> None:
    path = generate(rows=90, seed=7).write_parquet(tmp_path / "f.parquet", row_group_size=20)
    source = ParquetSource(path, BLOCKS, 10)
    expected = all_rows(Dataset(source), shuffle=(3, 1))
    data = Dataset(source, cache)

    for _ in range(3):
        assert_same_rows(all_rows(data, shuffle=(3, 1)), expected)


def test_a_window_that_is_not_kept_is_forgotten_once_its_rows_are_used(
    tmp_path: Path, generate: Callable[..., Any]
) -> None:
    """So a file may be larger than memory, whatever the number of its rows."""
    path = generate(rows=400, seed=8).write_parquet(tmp_path / "f.parquet", row_group_size=50)
    source = ParquetSource(path, BLOCKS, 10)
    windows: list[weakref.ref[Rows]] = []

    class Watched:
        path, schema, rows, chunks = source.path, source.schema, source.rows, source.chunks
        chunk_rows, count = source.chunk_rows, source.count

        def read(self, chunk: int) -> Any:
            for window in source.read(chunk):
                windows.append(weakref.ref(window))
                yield window
                del window

    alive = []
    for batch in Dataset(Watched()).batches(16):
        batch.rows()
        del batch
        alive.append(sum(window() is not None for window in windows))

    assert len(windows) == 40
    assert max(alive) <= 3


class Counted:
    """A source that notes what is read of it."""

    def __init__(self, source: ParquetSource) -> None:
        self.path, self.schema, self.rows = source.path, source.schema, source.rows
        self.chunks, self.chunk_rows, self.count = source.chunks, source.chunk_rows, source.count
        self.reads: list[int] = []
        self._source = source

    def read(self, chunk: int) -> Any:
        self.reads.append(chunk)
        return self._source.read(chunk)


def test_a_cached_file_is_read_once(tmp_path: Path, generate: Callable[..., Any]) -> None:
    source = ParquetSource(generate(rows=50, seed=8).write_parquet(tmp_path / "f.parquet"), BLOCKS)
    counted = Counted(source)

    data = Dataset(counted, cache=1 << 20)
    for _ in range(3):
        all_rows(data)

    assert counted.reads == [0]


@pytest.mark.parametrize(
    ("line", "problem"),
    [
        ("id#2\t1\t1,2\t3\t\t1,2\t3,4", "line 3: has 7 columns, not 8"),
        ("id#2\t1\t1,2,3\t3\t\t1,2\t3,4\t5", "line 3: column dense_user has 3 features"),
        ("id#2\t1\t1,x\t3\t\t1,2\t3,4\t5", "line 3: dense_user: 'x' is no float"),
        ("id#2\tyes\t1,1\t3\t\t1,2\t3,4\t5", "line 3: label: 'yes' is no float"),
        ("id#2\t2\t1,1\t3\t\t1,2\t3,4\t5", "line 3: label 2 is neither 0 nor 1"),
        ("id#2\t1\t1,nan\t3\t\t1,2\t3,4\t5", "dense values must be finite"),
        ("id#2\t1\t1,2\t3\t\t1,2|-2\t3,4\t5", "sparse_user: '-2' is no uint64"),
    ],
)
def test_a_bad_line_is_named(
    tmp_path: Path, generate: Callable[..., Any], line: str, problem: str
) -> None:
    path = tmp_path / "f.tsv"
    path.write_text("\n".join([*generate(rows=2, seed=9).lines(), line, ""]))

    with pytest.raises(DataError) as caught:
        all_rows(Dataset(open_source(path, BLOCKS)))

    assert str(path) in str(caught.value)
    assert problem in str(caught.value)


def test_files_that_are_no_features_are_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="cannot be read"):
        open_source(tmp_path / "absent.parquet", BLOCKS)
    pq.write_table(pa.table({"x": [1]}), tmp_path / "x.parquet")
    with pytest.raises(DataError, match="has no column label"):
        open_source(tmp_path / "x.parquet", BLOCKS)
    pq.write_table(pa.table({"label": [1.0], "x": [1]}), tmp_path / "y.parquet")
    with pytest.raises(DataError, match="has no feature columns"):
        open_source(tmp_path / "y.parquet", BLOCKS)
    (tmp_path / "z.parquet").write_bytes(b"PAR1 and then nothing")
    with pytest.raises(DataError, match="no readable Parquet"):
        open_source(tmp_path / "z.parquet", BLOCKS)


@pytest.mark.parametrize(
    ("name", "values", "problem"),
    [
        ("sparse_ad/001_x", pa.array([1, -1]), "as int64: Integer value -1 not in range"),
        ("sparse_ad/001_x", pa.array([1.0, 1.5]), "1.5"),
        ("sparse_ad/001_x", pa.array(["1", "b"]), "as string: Failed to parse string: 'b'"),
        ("sparse_ad/001_x", pa.array([[1], [-2]]), "Integer value -2 not in range"),
        ("dense_ad/001_x", pa.array(["1", "b"]), "as string: Failed to parse string: 'b'"),
        ("dense_ad/001_x", pa.array([1.0, float("inf")]), "is inf; dense values must be finite"),
        ("dense_ad/001_x", pa.array([1.0, 1e300]), "is inf; dense values must be finite"),
    ],
)
def test_a_column_of_another_kind_is_named(
    tmp_path: Path, name: str, values: pa.Array, problem: str
) -> None:
    pq.write_table(pa.table({"label": [1.0, 0.0], name: values}), tmp_path / "f.parquet")

    with pytest.raises(DataError) as caught:
        all_rows(Dataset(open_source(tmp_path / "f.parquet", BLOCKS)))

    assert f"feature {name}" in str(caught.value)
    assert problem in str(caught.value)


def test_columns_of_other_number_types_and_nulls_are_read(tmp_path: Path) -> None:
    columns = {
        "label": pa.array([1, 0, 1], pa.int8()),
        "dense_user/001_a": pa.array([1, None, 3], pa.int64()),
        "sparse_user/001_b": pa.array([7, None, 0], pa.int32()),
        "sparse_user/002_c": pa.array([[5, None, 6], None, []], pa.list_(pa.int64())),
    }
    pq.write_table(pa.table(columns), tmp_path / "f.parquet")

    found = all_rows(Dataset(open_source(tmp_path / "f.parquet", BLOCKS)))

    block = found.blocks["x"]
    assert found.labels.tolist() == [1, 0, 1]
    assert block.dense.tolist() == [[1], [0], [3]]
    assert (block.keys.tolist(), block.lengths.tolist()) == ([7, 5, 6], [[1, 2], [0, 0], [0, 0]])


def test_damaged_files_are_named(tmp_path: Path, generate: Callable[..., Any]) -> None:
    made = generate(rows=2000, seed=3)
    path = made.write_parquet(tmp_path / "f.parquet")
    data = bytearray(path.read_bytes())
    data[5_000:15_000] = bytes(10_000)
    path.write_bytes(data)
    with pytest.raises(DataError, match=r"f\.parquet: is damaged"):
        all_rows(Dataset(open_source(path, BLOCKS)))
    (tmp_path / "f.tsv").write_bytes("\n".join(made.lines()).encode() + b"\n\xff\xfe\n")
    with pytest.raises(DataError, match=r"f\.tsv, line 1: is no UTF-8 text"):
        all_rows(Dataset(open_source(tmp_path / "f.tsv", BLOCKS)))
    packed = gzip.compress((tmp_path / "f.tsv").read_bytes())
    (tmp_path / "f.tsv.gz").write_bytes(packed[: len(packed) // 2])
    with pytest.raises(DataError, match="cannot be read"):
        all_rows(Dataset(open_source(tmp_path / "f.tsv.gz", BLOCKS)))


def test_another_set_of_features_is_refused(tmp_path: Path, generate: Callable[..., Any]) -> None:
    schema = open_source(generate(rows=2, seed=1).write_text(tmp_path / "a.tsv"), BLOCKS).schema
    (tmp_path / "b.tsv").write_text("id#1\t1\t1\t\t\t2\t\t\n")
    other = open_source(tmp_path / "b.tsv", BLOCKS)

    with pytest.raises(DataError, match=r"has 1 dense_user features, but a\.tsv has 2"):
        schema.check_same(other.schema, other.path, "a.tsv")


@pytest.mark.parametrize("shuffle", [None, (1, 2)])
@pytest.mark.parametrize("is_text", [False, True])
def test_ranges_of_an_epoch_are_the_rows_at_these_positions(
    tmp_path: Path, generate: Callable[..., Any], shuffle: tuple[int, int] | None, is_text: bool
) -> None:
    made = generate(rows=200, seed=9)
    source: Any = ParquetSource(
        made.write_parquet(tmp_path / "f.parquet", row_group_size=17), BLOCKS, 20
    )
    if is_text:
        source = TextSource(made.write_text(tmp_path / "f.tsv"), BLOCKS, 997)
    data = Dataset(source)
    whole = all_rows(data, 200, shuffle=shuffle)
    reader = data.reader(shuffle)

    assert data.count() == 200
    for start, stop in [(0, 30), (30, 90), (110, 111), (150, 200), (5, 60), (60, 200), (0, 200)]:
        batches = list(data.batches(16, within=(start, stop), reader=reader))
        assert [b.size for b in batches[:-1]] == [16] * ((stop - start - 1) // 16)
        found = Rows.concatenate([batch.rows() for batch in batches])
        assert_same_rows(found, whole.slice(start, stop))


def test_only_the_row_groups_of_a_range_are_read(
    tmp_path: Path, generate: Callable[..., Any]
) -> None:
    path = generate(rows=100, seed=9).write_parquet(tmp_path / "f.parquet", row_group_size=10)
    source = ParquetSource(path, BLOCKS, 10)
    counted = Counted(source)

    data = Dataset(counted)
    reader = data.reader()
    for start, stop in [(20, 30), (30, 45), (45, 50), (82, 84)]:
        list(data.batches(5, within=(start, stop), reader=reader))

    assert counted.reads == [2, 3, 4, 8]
