"""Join the four raw files into samples with all columns of `sample.SCHEMA`, correct in time.

Three stages, each within the memory limit: load the files into sorted tables (`sample.tables`),
walk along users and make their samples (`sample.slices`), put these into the order of
raw_sample.csv and write them (`sample.pieces`). Output files appear whole or not at all.
"""

from __future__ import annotations

import os
import re
import shutil
import tempfile
import time
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
from tqdm import tqdm

from sample.errors import OutputError, SampleError, SettingError
from sample.pieces import Pieces, Writer, write
from sample.rawfiles import BadLines
from sample.slices import Walk, cut
from sample.tables import Tables

FORMATS = ("tsv", "parquet")
LEAST_MEMORY, OVERHEAD = 512 << 20, 224 << 20  # bytes; the libraries alone take the overhead
_UNITS = {"": 1, "K": 1 << 10, "M": 1 << 20, "G": 1 << 30, "T": 1 << 40}


def join(
    raw: Path,
    out: Path,
    *,
    compat: bool = False,
    format: str = "tsv",
    memory: str = "2GB",
    max_bad: int = 0,
    temp: Path | None = None,
) -> dict[str, Any]:
    """Write `train` and `test` samples of the raw logs in `raw` to the folder `out`.

    Args:
        raw: folder of raw_sample.csv, ad_feature.csv, user_profile.csv and behavior_log.csv.
        out: folder of train.tsv and test.tsv (or .parquet); made if missing.
        compat: reproduce existing files: `workdayflag` 0, ad counts without the own clock hour.
        format: tsv or parquet (all columns text).
        memory: how much memory to use, such as 2GB; the rest of the work goes to disk.
        max_bad: malformed lines to skip before giving up.
        temp: folder for work files; `out` if None.
    Returns:
        `train` and `test` samples, `users`, `ads`, `behaviors` used, `slices`, `bad_lines` by file
        with `bad_examples`, `seconds` by stage, and the `files` written.
    Raises:
        SampleError: a raw file is missing, lacks a column or has too many malformed lines; an
            argument makes no sense; the output cannot be written.
    """
    if format not in FORMATS:
        raise SettingError(f"format {format} is unknown; there are {', '.join(FORMATS)}")
    if max_bad < 0:
        raise SettingError(f"max_bad is {max_bad}; it must be 0 or more")
    budget = parse_memory(memory)
    if not Path(raw).is_dir():
        raise SettingError(f"{raw} is no folder; it must hold the four raw csv files")
    with ExitStack() as folders:
        try:
            Path(out).mkdir(parents=True, exist_ok=True)
            aside = _work_folder(folders, Path(out))  # a rename stays within one file system
            work = aside if temp is None else _work_folder(folders, Path(temp))
        except OSError as error:
            raise OutputError(f"{error.filename}: {error.strerror}") from error
        try:
            found = _join(Path(raw), aside, work, compat, format, budget, BadLines(max_bad))
            for name in found["files"]:
                os.replace(aside / name, Path(out) / name)
        except (duckdb.OutOfMemoryException, MemoryError) as error:
            raise SampleError(f"memory {memory} is too little, give more: {error}") from error
        except duckdb.Error as error:
            raise SampleError(f"the join failed, nothing was written: {error}") from error
        except (OSError, pa.ArrowException) as error:
            place = out if temp is None else f"{out} or {temp}"
            raise OutputError(
                f"the join failed, nothing was written to {place}: {error}"
            ) from error
    return found | {"files": [str(Path(out) / name) for name in found["files"]]}


def _work_folder(folders: ExitStack, parent: Path) -> Path:
    """A new folder that goes when `folders` closes."""
    folder = Path(tempfile.mkdtemp(prefix=".join-", dir=parent))
    folders.callback(shutil.rmtree, folder, ignore_errors=True)
    return folder


def _join(
    raw: Path, out: Path, work: Path, compat: bool, form: str, memory: int, bad: BadLines
) -> dict[str, Any]:
    clock = _Clock()
    tables = Tables(raw, work / "join.duckdb", work / "spill", (memory - OVERHEAD) // 2, bad)
    try:
        tables.load(compat)
        clock.stop("load")
        counts = tables.counts()
        pieces = Pieces(work / "pieces", counts.pop("last_line"), form)
        slices = cut(tables, (memory - OVERHEAD) // 4)
        rows = sum(piece.impressions for piece in slices)
        with _bar("samples", rows) as bar, pieces:
            walk = Walk(tables, compat)
            for piece in slices:
                pieces.add(walk.samples(piece))
                bar.update(piece.impressions)
        clock.stop("walk")
    finally:
        tables.close()
    files = [f"train.{form}", f"test.{form}"]
    with (
        Writer(out / files[0], form) as train,
        Writer(out / files[1], form) as test,
        _bar("writing", rows) as bar,
    ):
        for written in write(pieces, train, test):
            bar.update(written)
    clock.stop("write")
    return {
        "train": train.rows,
        "test": test.rows,
        **counts,
        "slices": len(slices),
        "bad_lines": bad.counts,
        "bad_examples": [str(example) for example in bad.examples],
        "seconds": clock.seconds,
        "files": files,
    }


def _bar(what: str, rows: int) -> Any:
    return tqdm(total=rows, desc=what, unit="row", unit_scale=True, disable=None)


def parse_memory(text: str) -> int:
    """Bytes of a size such as `2GB`, `512MiB` or `1.5g`; units are powers of 1024.

    >>> parse_memory("1.5GB")
    1610612736
    """
    match = re.fullmatch(r"\s*(\d+(?:\.\d+)?)\s*([KMGT]?)(?:I?B)?\s*", text.upper())
    if match is None:
        raise SettingError(f"memory {text!r} is no size; write for example 2GB or 512MiB")
    nbytes = int(float(match[1]) * _UNITS[match[2]])
    if nbytes < LEAST_MEMORY:
        raise SettingError(f"memory {text} is too little; the join needs at least 512MB")
    return nbytes


class _Clock:
    """Seconds of the stages."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._since = time.perf_counter()

    def stop(self, stage: str) -> None:
        now = time.perf_counter()
        self.seconds[stage] = round(now - self._since, 3)
        self._since = now
