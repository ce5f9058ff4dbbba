"""Extract features: samples in, dictionary and training files out.

Two passes over the training samples, one that counts values and one that numbers them (hashing
needs only the second), one over the test samples; each in chunks, so that memory is bounded by the
chunk and the dictionary.

    extract(conf, train, test, out)      makes a dictionary and extracts both files
    apply(conf, dictionary, data, out)   extracts one file with a dictionary that exists
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from feature_extract.chunk import Limits
from feature_extract.conf import read_conf
from feature_extract.earlier import open_index
from feature_extract.errors import FeatureError, nearest
from feature_extract.files import refuse_inputs, replacing
from feature_extract.index import DICTIONARY, HashIndex, Index
from feature_extract.passes import FORMATS, Format, Options, Passes
from feature_extract.schema import FILE_NAME, INDEX_KINDS, IndexKind


def extract(
    conf: Path,
    train: Path,
    test: Path | None,
    out: Path,
    *,
    min_freq: int = 1,
    format: Format = "parquet",
    compat: bool = False,
    index: IndexKind | None = None,
    intermediate: bool = False,
    max_bad: int = 0,
    settings: Sequence[str] = (),
    limits: Limits | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Extract training and test samples.

    Args:
        conf: the feature ini.
        train, test: sample files; `test` may be None.
        out: directory for the results.
        min_freq: values seen that often or less in `train` get no number.
        format: `text` (intermediate and final samples, counts) or `parquet`.
        compat: reproduce existing files, see docs/features.md.
        index: `dictionary` or `hash`; None is what the ini says.
        intermediate: write intermediate samples and counts with `parquet`, too.
        max_bad: malformed lines that may be skipped in each file.
        settings: overrides of the ini, `section.key=value`.
        limits: how much is held at a time.
        progress: show a bar if stderr is a terminal.
    Returns:
        what was done: `rows` and `bad_lines` by file, `size` of the dictionary, `values` counted,
        `features`, `files` written, `seconds`.
    Raises:
        FeatureError: ini, samples or output are wrong; the text says what and where.
    """
    began = time.monotonic()
    _check_choices(format, index)
    options = Options(compat, max_bad, limits or Limits(), progress)
    passes = Passes(read_conf(conf, settings), options)
    texts_too = intermediate or format == "text"
    refuse_inputs(passes.outputs(out, format), (conf, train, test))
    numbers: Index = HashIndex()
    if (index or passes.conf.index) == "dictionary":
        numbers = passes.count(train, out, min_freq, counts_too=texts_too)
    for name, path in (("train", train), ("test", test)):
        if path is not None:
            passes.number(name, path, out, numbers, format, texts_too=texts_too)
    passes.describe(out, numbers)
    return {**passes.report, "seconds": round(time.monotonic() - began, 3)}


def apply(
    conf: Path,
    dictionary: Path | None,
    data: Path,
    out: Path,
    *,
    format: Format = "parquet",
    compat: bool | None = None,
    max_bad: int = 0,
    settings: Sequence[str] = (),
    limits: Limits | None = None,
    progress: bool = True,
) -> dict[str, Any]:
    """Extract one more file as an earlier extraction was done. A sample may lack its label (NaN).

    Args:
        conf: the feature ini; its features must be those of the earlier extraction.
        dictionary: the directory that `extract` filled, or a dictionary file; None with hashing.
        data: the samples.
        out: the file to write.
        format: `text` (final samples) or `parquet`.
        compat: None is what the earlier extraction did.
        max_bad, settings, limits, progress: as for `extract`.
    Returns:
        as `extract` does.
    Raises:
        FeatureError: anything does not fit; the text says what and where.
    """
    began = time.monotonic()
    _check_choices(format, None)
    checked = read_conf(conf, settings)
    index, earlier = open_index(checked, dictionary)
    if compat is None:
        compat = earlier is not None and earlier.compat
    passes = Passes(checked, Options(compat, max_bad, limits or Limits(), progress, labelled=False))
    sources = (dictionary, dictionary / DICTIONARY, dictionary / FILE_NAME) if dictionary else ()
    refuse_inputs([out], (conf, data, *sources))
    with replacing(out) as partial:
        passes.number_file("data", data, partial, index, format)
    passes.report["files"] = [str(out)]
    return {**passes.report, "seconds": round(time.monotonic() - began, 3)}


def _check_choices(format: str, index: str | None) -> None:
    if format not in FORMATS:
        raise FeatureError(f"unknown format {format!r}{nearest(format, FORMATS)}")
    if index is not None and index not in INDEX_KINDS:
        raise FeatureError(f"unknown index {index!r}{nearest(index, INDEX_KINDS)}")
