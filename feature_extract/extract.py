"""Extract features: samples in, dictionary and training files out.

Two passes over the training samples, one that counts values and one that numbers them (hashing
needs only the second), one over the test samples; each in chunks, so that memory is bounded by the
chunk and the dictionary.

    extract(conf, train, test, out)      makes a dictionary and extracts both files
    apply(conf, dictionary, data, out)   extracts one file with a dictionary that exists
"""

from __future__ import annotations

import contextlib
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

from tqdm import tqdm

from feature_extract.chunk import Chunk, Limits
from feature_extract.columns import Columns
from feature_extract.conf import FeatureConf, read_conf
from feature_extract.counting import Counting
from feature_extract.errors import DictionaryError, FeatureError, nearest
from feature_extract.files import replacing
from feature_extract.index import Dictionary, HashIndex, Index, write_counts
from feature_extract.parquet_output import ParquetOutput
from feature_extract.readers import open_samples
from feature_extract.readers.bad_lines import BadLines
from feature_extract.samples import extract_chunk, extract_sparse
from feature_extract.schema import FILE_NAME, INDEX_KINDS, FeatureSchema, IndexKind
from feature_extract.text_output import Layout, final, intermediate, lines

Format = Literal["text", "parquet"]
FORMATS: tuple[Format, ...] = ("text", "parquet")
DICTIONARY, COUNTS = "dictionary.tsv", "counts.tsv"


@dataclass(frozen=True, kw_only=True)
class Options:
    """What extraction does besides the ini; the same for all files of a run."""

    compat: bool = False  # NULL in a number column is an error; absent sections are counted
    max_bad: int = 0  # malformed lines that may be skipped in each file
    limits: Limits = Limits()
    progress: bool = True  # a bar on a terminal


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
    options = Options(compat=compat, max_bad=max_bad, limits=limits or Limits(), progress=progress)
    run = Run(read_conf(conf), options)
    kind = index or run.conf.index
    texts_too = intermediate or format == "text"
    found = run.count(train, out, min_freq, texts_too) if kind == "dictionary" else HashIndex()
    for name, path in (("train", train), ("test", test)):
        if path is not None:
            run.number(name, path, out / f"final_{name}", found, format, texts_too)
    run.describe(out, found)
    return {**run.report, "seconds": round(time.monotonic() - began, 3)}


def apply(
    conf: Path,
    dictionary: Path | None,
    data: Path,
    out: Path,
    *,
    format: Format = "parquet",
    compat: bool | None = None,
    max_bad: int = 0,
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
    Returns:
        as `extract` does.
    Raises:
        FeatureError: anything does not fit; the text says what and where.
    """
    began = time.monotonic()
    _check_choices(format, None)
    checked = read_conf(conf)
    found, earlier = _open_index(checked, dictionary)
    if compat is None:
        compat = earlier is not None and earlier.compat
    options = Options(compat=compat, max_bad=max_bad, limits=limits or Limits(), progress=progress)
    run = Run(checked, options, labelled=False)
    with replacing(out) as partial:
        run.one_file("data", data, partial, found, format, None)
    run.report["files"] = [str(out)]
    return {**run.report, "seconds": round(time.monotonic() - began, 3)}


class Run:
    """One extraction: the passes over its files and the report about them."""

    def __init__(self, conf: FeatureConf, options: Options, *, labelled: bool = True) -> None:
        self.conf, self.options, self.labelled = conf, options, labelled
        self.report: dict[str, Any] = {
            "rows": {},
            "bad_lines": {},
            "bad_examples": [],
            "features": len(conf.features),
            "index": "",
            "size": None,
            "values": None,
            "files": [],
            "warnings": list(conf.warnings),
        }

    def count(self, train: Path, out: Path, min_freq: int, write_them: bool) -> Dictionary:
        """The dictionary of the training samples, written to `out`."""
        options = self.options
        counting = Counting(self.conf, options.compat)
        for chunk in self._chunks("count train", train, BadLines(str(train), options.max_bad)):
            sparse = extract_sparse(Columns(chunk, self.conf, options.compat))
            counting.add(sparse, len(chunk))
        dictionary = Dictionary.count(counting.counters, min_freq)
        dictionary.write(out / DICTIONARY)
        self.report["files"].append(str(out / DICTIONARY))
        if write_them:
            write_counts(out / COUNTS, counting.counters)
            self.report["files"].append(str(out / COUNTS))
        self.report["values"] = sum(len(c.counts) for c in counting.counters.values())
        return dictionary

    def number(
        self, name: str, data: Path, out: Path, index: Index, format: Format, texts_too: bool
    ) -> None:
        """Write `out` with the suffix of its format, and the intermediate samples if wanted."""
        path = out.with_name(out.name + (".tsv" if format == "text" else ".parquet"))
        between = out.with_name(f"intermediate_{name}.tsv")
        with contextlib.ExitStack() as stack:
            partial = stack.enter_context(replacing(path))
            side = stack.enter_context(replacing(between)) if texts_too else None
            self.one_file(name, data, partial, index, format, side)
        self.report["files"] += [str(path), *([str(between)] if texts_too else [])]

    def one_file(
        self,
        name: str,
        data: Path,
        out: Path,
        index: Index,
        format: Format,
        between: Path | None,
    ) -> None:
        """Extract one file; `between` is where the intermediate samples go."""
        bad = BadLines(str(data), self.options.max_bad)
        rows = 0
        with contextlib.ExitStack() as stack:
            texts = stack.enter_context(open(between, "wb")) if between is not None else None
            write = self._writer(stack, out, index, format)
            for chunk in self._chunks(f"extract {name}", data, bad):
                samples = extract_chunk(
                    chunk,
                    self.conf,
                    compat=self.options.compat,
                    as_numbers=format == "parquet",
                    labelled=self.labelled,
                )
                if texts is not None:
                    _write_lines(texts, intermediate(samples, self.conf))
                write(samples)
                rows += len(chunk)
        self.report["rows"][name] = rows
        self.report["bad_lines"][name] = bad.count
        self.report["bad_examples"] += bad.examples
        self.report["index"], self.report["size"] = index.kind, index.size

    def describe(self, out: Path, index: Index) -> None:
        """Write the description of the features, by which `apply` knows what was done."""
        schema = self.conf.schema(index.kind, index.size, self.options.compat)
        with replacing(out / FILE_NAME) as partial:
            partial.write_text(schema.to_json() + "\n", encoding="utf-8")
        self.report["files"].append(str(out / FILE_NAME))

    def _writer(self, stack: contextlib.ExitStack, out: Path, index: Index, format: Format) -> Any:
        if format == "parquet":
            output = ParquetOutput(out, self.conf, index, self.options.compat)
            return stack.enter_context(output).write
        file = stack.enter_context(open(out, "wb"))
        return lambda samples: _write_lines(file, final(samples, index))

    def _chunks(self, title: str, path: Path, bad: BadLines) -> Iterator[Chunk]:
        optional = () if self.labelled else self.conf.label.fields
        samples = open_samples(path, self.conf, limits=self.options.limits, optional=optional)
        with tqdm(
            total=samples.nbytes,
            desc=title,
            unit="B",
            unit_scale=True,
            disable=None if self.options.progress else True,
        ) as bar:
            for chunk in samples.chunks(bad):
                yield chunk
                bar.update(chunk.nbytes)


def _write_lines(file: BinaryIO, layout: Layout) -> None:
    for piece in lines(layout):
        file.write(piece)


def _check_choices(format: str, index: str | None) -> None:
    if format not in FORMATS:
        raise FeatureError(f"unknown format {format!r}{nearest(format, FORMATS)}")
    if index is not None and index not in INDEX_KINDS:
        raise FeatureError(f"unknown index {index!r}{nearest(index, INDEX_KINDS)}")


def _open_index(conf: FeatureConf, dictionary: Path | None) -> tuple[Index, FeatureSchema | None]:
    """The index of an earlier extraction and, where there is one, its description."""
    if dictionary is None:
        if conf.index == "hash":
            return HashIndex(), None
        raise DictionaryError(conf.file, "a dictionary is needed, unless the ini says [index] hash")
    if not dictionary.is_dir():
        return Dictionary.read(dictionary), None
    description = dictionary / FILE_NAME
    if not description.is_file():
        return Dictionary.read(dictionary / DICTIONARY), None
    earlier = FeatureSchema.from_json(description.read_bytes())
    now = conf.schema(earlier.index, earlier.size, earlier.compat)
    if now.features != earlier.features:
        differing = {f.column for f in set(now.features) ^ set(earlier.features)}
        raise DictionaryError(
            str(dictionary),
            f"made from other features than {conf.file} has ({', '.join(sorted(differing)[:5])} "
            f"differ); use the ini of that extraction",
        )
    if earlier.index == "hash":
        return HashIndex(), earlier
    return Dictionary.read(dictionary / DICTIONARY), earlier
