"""Split a file of samples by its rows: the head for training, the tail for testing."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import pyarrow as pa
import pyarrow.parquet as pq

from feature_extract.conf import Warn, read_conf
from feature_extract.errors import FeatureError, SampleFileError
from feature_extract.files import refuse_inputs, replacing
from feature_extract.readers import PARQUET_SUFFIXES
from feature_extract.readers.blocks import blocks

BLOCK = 8 << 20


@dataclass(frozen=True)
class Part:
    """One of the two files."""

    path: Path
    rows: int


def split(
    data: Path,
    out: Path,
    *,
    test_share: float = 0.1,
    conf: Path | None = None,
    header: bool | None = None,
    warn: Warn = lambda text: None,
) -> tuple[Part, Part]:
    """Write `out/train` and `out/test` with the suffix of `data` (uncompressed).

    Args:
        data: text or Parquet.
        test_share: the share of the rows that go into the test file, rounded to whole rows.
        conf: a feature ini whose `[input]` says whether the first line is a header.
        header: the same outright; it wins over `conf`.
        warn: gets a line for what looks like a mistake in the ini.
    Returns:
        training and test part.
    Raises:
        FeatureError: the share leaves one of the files empty, or a file cannot be read or written.
    """
    if not 0 < test_share < 1:
        raise FeatureError(f"the test share must lie between 0 and 1, not {test_share}")
    if data.suffix in PARQUET_SUFFIXES:
        return _split_parquet(data, out, test_share)
    if header is None and conf is not None:
        checked = read_conf(conf)
        header = checked.input.header
        for warning in checked.warnings:
            warn(warning)
    return _split_text(data, out, test_share, int(header or False))


def _split_text(data: Path, out: Path, share: float, header: int) -> tuple[Part, Part]:
    suffix = "".join(s for s in data.suffixes if s not in (".gz", ".bz2", ".zst")) or ".txt"
    total = sum(block.count(b"\n") for block, _ in blocks(data, BLOCK)) - header
    train_rows = _train_rows(total, share, data)
    train, test = out / f"train{suffix}", out / f"test{suffix}"
    refuse_inputs((train, test), (data,))
    with (
        replacing(train) as head,
        replacing(test) as tail,
        open(head, "wb") as first,
        open(tail, "wb") as second,
    ):
        left = train_rows + header
        for number, (block, _) in enumerate(blocks(data, BLOCK)):
            if number == 0 and header:
                second.write(block[: _after_lines(block, header)])
            cut = _after_lines(block, left)
            first.write(block[:cut])
            second.write(block[cut:])
            left -= block[:cut].count(b"\n")
    return Part(train, train_rows), Part(test, total - train_rows)


def _after_lines(block: bytes, lines: int) -> int:
    """Where the block's first `lines` lines end; its end if it has fewer."""
    position = 0
    for _ in range(lines):
        position = block.find(b"\n", position) + 1
        if not position:
            return len(block)
    return position


def _split_parquet(data: Path, out: Path, share: float) -> tuple[Part, Part]:
    try:
        table = pq.read_table(data, memory_map=True)
    except (pa.ArrowException, OSError) as error:
        raise SampleFileError(str(data), f"cannot be read as Parquet: {error}") from None
    rows = _train_rows(table.num_rows, share, data)
    train, test = out / f"train{data.suffix}", out / f"test{data.suffix}"
    refuse_inputs((train, test), (data,))
    for path, part in ((train, table.slice(0, rows)), (test, table.slice(rows))):
        with replacing(path) as partial:
            pq.write_table(part, partial, row_group_size=65_536)
    return Part(train, rows), Part(test, table.num_rows - rows)


def _train_rows(total: int, share: float, data: Path) -> int:
    test_rows = round(total * share)
    if not 0 < test_rows < total:
        raise SampleFileError(
            str(data), f"a test share of {share} of its {max(total, 0)} rows leaves a file empty"
        )
    return total - test_rows
