"""The passes over sample files: count the training values, then number the values of each file."""

from __future__ import annotations

import sys
from collections.abc import Callable, Iterator
from contextlib import ExitStack
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Literal

from tqdm import tqdm

from feature_extract.chunk import Chunk, Limits
from feature_extract.columns import Columns
from feature_extract.conf import FeatureConf
from feature_extract.counting import Counting
from feature_extract.files import replacing
from feature_extract.index import DICTIONARY, Dictionary, Index, write_counts
from feature_extract.parquet_output import ParquetOutput
from feature_extract.readers import open_samples
from feature_extract.readers.bad_lines import BadLines
from feature_extract.samples import Samples, extract_chunk, extract_sparse
from feature_extract.schema import FILE_NAME
from feature_extract.text_output import Layout, final, intermediate, lines

Format = Literal["text", "parquet"]
FORMATS: tuple[Format, ...] = ("text", "parquet")
SUFFIXES: dict[Format, str] = {"text": ".tsv", "parquet": ".parquet"}
SETS, FINAL, BETWEEN, COUNTS = ("train", "test"), "final_", "intermediate_", "counts.tsv"


@dataclass(frozen=True)
class Options:
    """What extraction does besides the ini; the same for all files of a run.

    Args:
        compat: `NULL` in a number column is an error; absent sparse sections are counted.
        max_bad: malformed lines that may be skipped in each file.
        limits: how much is held at a time.
        progress: whether to show a bar on a terminal.
        labelled: whether a sample without a label is an error.
    """

    compat: bool
    max_bad: int
    limits: Limits
    progress: bool
    labelled: bool = True


class Passes:
    """One extraction and the `report` about it."""

    def __init__(self, conf: FeatureConf, options: Options) -> None:
        self.conf, self.options = conf, options
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

    def outputs(self, out: Path, format: Format) -> list[Path]:
        """All files that an extraction into `out` may write."""
        numbered = [f"{FINAL}{name}{SUFFIXES[format]}" for name in SETS]
        between = [f"{BETWEEN}{name}.tsv" for name in SETS]
        return [out / name for name in (DICTIONARY, COUNTS, FILE_NAME, *numbered, *between)]

    def count(self, train: Path, out: Path, min_freq: int, *, counts_too: bool) -> Dictionary:
        """The dictionary of the training samples, written to `out`, the counts too if wanted."""
        compat = self.options.compat
        counting = Counting(self.conf, compat)
        for chunk in self._chunks("count train", train, self._bad(train)):
            counting.add(extract_sparse(Columns(chunk, self.conf, compat)), len(chunk))
        dictionary = Dictionary.count(counting.counters, min_freq)
        dictionary.write(out / DICTIONARY)
        self.report["files"].append(str(out / DICTIONARY))
        if counts_too:
            write_counts(out / COUNTS, counting.counters)
            self.report["files"].append(str(out / COUNTS))
        self.report["values"] = sum(len(c.counts) for c in counting.counters.values())
        return dictionary

    def number(
        self, name: str, data: Path, out: Path, index: Index, format: Format, *, texts_too: bool
    ) -> None:
        """Write the final samples of one file to `out`, the intermediate ones too if wanted."""
        path = out / f"{FINAL}{name}{SUFFIXES[format]}"
        between = out / f"{BETWEEN}{name}.tsv"
        with ExitStack() as stack:
            partial = stack.enter_context(replacing(path))
            side = stack.enter_context(replacing(between)) if texts_too else None
            self.number_file(name, data, partial, index, format, side)
        self.report["files"] += [str(path), *([str(between)] if texts_too else [])]

    def number_file(
        self,
        name: str,
        data: Path,
        out: Path,
        index: Index,
        format: Format,
        between: Path | None = None,
    ) -> None:
        """Extract one file; `between` is where the intermediate samples go."""
        bad, rows, options = self._bad(data), 0, self.options
        with ExitStack() as stack:
            write = self._writer(stack, out, index, format)
            side = stack.enter_context(open(between, "wb")) if between is not None else None
            for chunk in self._chunks(f"extract {name}", data, bad):
                samples = extract_chunk(
                    chunk,
                    self.conf,
                    compat=options.compat,
                    as_numbers=format == "parquet",
                    labelled=options.labelled,
                )
                write(samples)
                if side is not None:
                    _write_lines(side, intermediate(samples, self.conf))
                rows += len(chunk)
        self.report["rows"][name] = rows
        self.report["bad_lines"][name] = bad.count
        self.report["bad_examples"] += bad.examples
        self.report["index"], self.report["size"] = index.kind, index.size

    def describe(self, out: Path, index: Index) -> None:
        """Write the description of the features, by which `apply` knows what was done."""
        schema = self.conf.schema(index.kind, index.size, self.options.compat, index.identity)
        with replacing(out / FILE_NAME) as partial:
            partial.write_text(schema.to_json() + "\n", encoding="utf-8")
        self.report["files"].append(str(out / FILE_NAME))

    def _writer(
        self, stack: ExitStack, out: Path, index: Index, format: Format
    ) -> Callable[[Samples], None]:
        if format == "parquet":
            output = ParquetOutput(out, self.conf, index, self.options.compat)
            return stack.enter_context(output).write
        file = stack.enter_context(out.open("wb"))
        return lambda samples: _write_lines(file, final(samples, index))

    def _bad(self, path: Path) -> BadLines:
        return BadLines(str(path), self.options.max_bad)

    def _chunks(self, title: str, path: Path, bad: BadLines) -> Iterator[Chunk]:
        optional = () if self.options.labelled else self.conf.label.fields
        samples = open_samples(path, self.conf, limits=self.options.limits, optional=optional)
        if not (self.options.progress and sys.stderr.isatty()):
            yield from samples.chunks(bad)
            return
        with tqdm(total=samples.nbytes, desc=title, unit="B", unit_scale=True) as bar:
            for chunk in samples.chunks(bad):
                yield chunk
                bar.update(chunk.nbytes)


def _write_lines(file: BinaryIO, layout: Layout) -> None:
    for piece in lines(layout):
        file.write(piece)
