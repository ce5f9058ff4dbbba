"""Errors of the feature extractor.

    FeatureError
    ├── IniError           the feature ini is wrong: file, section, key, line
    ├── SampleFileError    a sample file cannot be read, or lacks a column
    ├── SampleError        a value of one sample is wrong: file and line
    │   └── BadLineError   more malformed lines than are allowed
    ├── DictionaryError    a dictionary cannot be read, or belongs to another ini
    └── SchemaError        the description inside a Parquet file is not ours

Errors keep their facts as attributes; the text says what happened, where, and what to try.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterable


class FeatureError(Exception):
    """Base of all errors raised by `feature_extract`: catch this to catch them all."""


class IniError(FeatureError):
    """The feature ini is wrong.

    Args:
        problem: what is wrong and what to do.
        file: the ini file.
        section: its section, if the problem lies in one.
        key: the key in the section.
        line: the line of the file, from 1.
    """

    def __init__(
        self,
        problem: str,
        *,
        file: str,
        section: str | None = None,
        key: str | None = None,
        line: int | None = None,
    ) -> None:
        self.problem, self.file, self.section, self.key, self.line = (
            problem,
            file,
            section,
            key,
            line,
        )
        place = f"{file}:{line}" if line else file
        for part in (f"[{section}]" if section else "", key or ""):
            place += f" {part}" if part else ""
        super().__init__(f"{place}: {problem}")


class SampleFileError(FeatureError):
    """A sample file cannot be read or does not have the columns the ini names."""

    def __init__(self, file: str, problem: str) -> None:
        self.file, self.problem = file, problem
        super().__init__(f"{file}: {problem}")


class SampleError(FeatureError):
    """A value of one sample is wrong; `line` counts from 1 (rows, in a Parquet file)."""

    def __init__(self, file: str, line: int, problem: str) -> None:
        self.file, self.line, self.problem = file, line, problem
        super().__init__(f"{file}:{line}: {problem}")


class BadLineError(SampleError):
    """A file holds more malformed lines than the user allows."""


class DictionaryError(FeatureError):
    """A dictionary cannot be read or was made from another feature ini."""

    def __init__(self, file: str, problem: str) -> None:
        self.file, self.problem = file, problem
        super().__init__(f"{file}: {problem}")


class SchemaError(FeatureError):
    """A description of features is missing or is not one of ours."""


def nearest(word: str, known: Iterable[str]) -> str:
    """A hint that names the known word nearest to `word`, or else all of them if they are few.

    >>> nearest("buckt", ["direct", "bucket"])
    "; did you mean 'bucket'?"
    """
    names = list(known)
    close = difflib.get_close_matches(word, names, n=1)
    if close:
        return f"; did you mean {close[0]!r}?"
    return f"; known are {', '.join(names)}" if 0 < len(names) <= 12 else ""
