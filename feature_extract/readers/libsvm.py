"""libsvm lines, `label index:value index:value ...`, as two columns.

The indices of a line become one multi-valued column: the item is the index where the value is 1,
else the text `index=value`. Text after `#` is a comment.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from numpy.typing import NDArray

from feature_extract.chunk import Chunk, Limits, encode
from feature_extract.conf import FeatureConf
from feature_extract.errors import SampleFileError
from feature_extract.readers.bad_lines import BadLines
from feature_extract.readers.blocks import blocks

ITEM = re.compile(r"(\d+):([^:,|#\s]+)")


class LibsvmSamples:
    """A libsvm file as chunks of label and features."""

    def __init__(self, path: Path, conf: FeatureConf, limits: Limits) -> None:
        self.path, self.limits = path, limits
        self.joint = conf.input.list_delimiter
        self.label, self.features = conf.fields
        self.nbytes = path.stat().st_size

    def chunks(self, bad: BadLines) -> Iterator[Chunk]:
        """The samples in order; see `SampleFile`."""
        before = 0
        for block, nbytes in blocks(self.path, self.limits.nbytes):
            lines = self._decode(block)
            for low in range(0, len(lines), self.limits.rows):
                piece = lines[low : low + self.limits.rows]
                chunk = self._chunk(piece, before + low, bad, nbytes if low == 0 else 0)
                if len(chunk):
                    yield chunk
            before += len(lines)

    def _decode(self, block: bytes) -> list[str]:
        try:
            return block.decode("utf-8").split("\n")[:-1]
        except UnicodeDecodeError as error:
            raise SampleFileError(str(self.path), f"not UTF-8: {error}") from None

    def _chunk(self, lines: list[str], before: int, bad: BadLines, nbytes: int) -> Chunk:
        """The samples of some lines, the first of which is line `before` of the file, from 0."""
        bare = pc.replace_substring_regex(pa.array(lines, pa.string()), r"#.*", "")
        filled = pc.match_substring_regex(bare, r"\S")
        numbers = np.flatnonzero(filled.to_numpy(zero_copy_only=False)) + (before + 1)
        tokens = pc.utf8_split_whitespace(pc.utf8_trim_whitespace(bare.filter(filled)))
        starts, ends = tokens.offsets.to_numpy()[:-1], tokens.offsets.to_numpy()[1:]
        words = encode(tokens.flatten())
        items = [_item(word) for word in words.texts.to_pylist()]
        is_item = np.array([item is not None for item in items], dtype=bool)[words.codes]
        # a good line is a label, which is no item, and then nothing but items
        strange = np.concatenate(([0], np.cumsum(~is_item)))
        good = (strange[ends] == strange[starts + 1]) & ~is_item[starts]
        for row in np.flatnonzero(~good).tolist():
            bad.add(int(numbers[row]), _problem(tokens[row].as_py()))
        labels = words.texts.take(pa.array(words.codes[starts]))
        lists = _lists(tokens.offsets.to_numpy(), words.codes, items)
        columns = {self.label: labels, self.features: pc.binary_join(lists, self.joint)}
        kept = {name: column.filter(pa.array(good)) for name, column in columns.items()}
        return Chunk(str(self.path), kept, numbers[good], nbytes)


def _lists(
    offsets: NDArray[np.int32], codes: NDArray[np.int32], items: list[str | None]
) -> pa.ListArray:
    """The items of each line without its first token, the label."""
    behind = np.ones(len(codes), dtype=bool)
    behind[offsets[:-1]] = False
    texts = pa.array(items, pa.string()).fill_null("").take(pa.array(codes[behind]))
    shifted = offsets - np.arange(len(offsets), dtype=np.int32)
    return pa.ListArray.from_arrays(pa.array(shifted), texts)


def _problem(tokens: list[str]) -> str:
    if _item(tokens[0]) is not None:
        return f"it begins with {tokens[0]!r}; a line begins with its label"
    wrong = next(token for token in tokens[1:] if _item(token) is None)
    return f"{wrong!r} is not index:value"


def _item(token: str) -> str | None:
    """The text of an item of the multi-valued column, None where the token is no item."""
    match = ITEM.fullmatch(token)
    if match is None:
        return None
    index, value = match.groups()
    try:
        return index if float(value) == 1 else f"{index}={value}"
    except ValueError:
        return None
