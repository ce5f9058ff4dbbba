"""One sample's features, with what each of them read."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import pyarrow as pa
from numpy.typing import NDArray

from feature_extract.chunk import Chunk
from feature_extract.columns import Columns
from feature_extract.conf import FeatureConf, Warn, read_conf
from feature_extract.definition import Definition
from feature_extract.earlier import open_index
from feature_extract.errors import SampleFileError
from feature_extract.index import Index
from feature_extract.readers import open_samples
from feature_extract.readers.bad_lines import BadLines
from feature_extract.samples import extract_chunk

ENDLESS = 1 << 62  # malformed lines do not matter here


@dataclass(frozen=True)
class Explained:
    """One feature of the sample.

    Args:
        column: its column in Parquet files; `id` and `label` for those.
        operator: what was done.
        inputs: the fields it read, and their texts.
        values: what came out, as in the intermediate sample.
        numbers: the numbers of sparse values; empty without an index and for dense features.
    """

    column: str
    operator: str
    inputs: dict[str, str]
    values: tuple[str, ...]
    numbers: tuple[int, ...] = ()


@dataclass(frozen=True)
class Explanation:
    """All features of one sample.

    Args:
        file, line: where the sample stands.
        features: id, label, then as the text layout has them.
    """

    file: str
    line: int
    features: tuple[Explained, ...]

    def lines(self) -> Iterator[str]:
        """The explanation as a table."""
        yield f"{self.file}:{self.line}"
        rows = [
            (
                feature.column,
                feature.operator,
                " | ".join(f"{name}={text}" for name, text in feature.inputs.items()),
                " | ".join(feature.values),
                " | ".join(map(str, feature.numbers)),
            )
            for feature in self.features
        ]
        widths = [min(max(len(row[i]) for row in rows), 60) for i in range(4)]
        for row in rows:
            cells = [text.ljust(width) for text, width in zip(row, widths, strict=False)]
            yield "  ".join([*cells, row[4]]).rstrip()


def explain(
    conf: Path,
    data: Path,
    row: int,
    *,
    dictionary: Path | None = None,
    settings: Sequence[str] = (),
    warn: Warn = lambda text: None,
) -> Explanation:
    """Extract sample number `row` (from 1, malformed lines left out) alone.

    Args:
        conf: the feature ini; `settings` are overrides, `section.key=value`.
        data: the samples.
        dictionary: where the numbers come from; without one only values are shown, unless the ini
            says that they are hashed.
        warn: gets a line for what looks like a mistake in the ini.
    Raises:
        FeatureError: ini or samples are wrong, or there are fewer samples.
    """
    checked = read_conf(conf, settings)
    for warning in checked.warnings:
        warn(warning)
    index = None
    if dictionary is not None or checked.index == "hash":
        index, _ = open_index(checked, dictionary)
    chunk = _single(checked, data, row)
    columns = Columns(chunk, checked, compat=False)
    samples = extract_chunk(chunk, checked, compat=False, as_numbers=False, labelled=False)
    found = [_of(checked.id, "id", columns, samples.id.texts.to_pylist())] if checked.id else []
    label = samples.label.as_texts().texts.to_pylist()
    found.append(_of(checked.label, "label", columns, _prefixed(checked.label, label)))
    for definition, column in samples.dense.items():
        values = _prefixed(definition, column.as_texts().texts.to_pylist())
        found.append(_of(definition, definition.column, columns, values))
    for definition, cells in samples.sparse.items():
        values = _prefixed(definition, cells.texts.take(cells.codes).to_pylist())
        numbers = _numbers(index, definition.prefix, cells.texts, cells.codes)
        found.append(_of(definition, definition.column, columns, values, numbers))
    return Explanation(chunk.file, int(chunk.lines[0]), tuple(found))


def _single(conf: FeatureConf, data: Path, row: int) -> Chunk:
    before = 0
    optional = conf.label.fields
    bad = BadLines(str(data), ENDLESS)
    for chunk in open_samples(data, conf, optional=optional).chunks(bad):
        if row <= before + len(chunk):
            at = row - 1 - before
            columns = {name: texts.slice(at, 1) for name, texts in chunk.columns.items()}
            return Chunk(chunk.file, columns, chunk.lines[at : at + 1], 0)
        before += len(chunk)
    problem = f"there is no sample {row}, only {before}"
    if bad.count:
        lines = "line is" if bad.count == 1 else "lines are"
        problem += f"; {bad.count} {lines} malformed, the first: {bad.examples[0]}"
    raise SampleFileError(str(data), problem)


def _of(
    definition: Definition,
    column: str,
    columns: Columns,
    values: list[str],
    numbers: tuple[int, ...] = (),
) -> Explained:
    inputs = {name: columns.texts(name).texts[0].as_py() for name in definition.fields}
    return Explained(column, definition.operator, inputs, tuple(values), numbers)


def _prefixed(definition: Definition, texts: list[str]) -> list[str]:
    return [f"{definition.prefix}#{text}" for text in texts]


def _numbers(
    index: Index | None, prefix: str, texts: pa.StringArray, codes: NDArray[np.int32]
) -> tuple[int, ...]:
    if index is None:
        return ()
    return tuple(index.look_up(prefix, texts)[codes].tolist())
