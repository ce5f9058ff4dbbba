"""Errors about raw logs and samples.

SampleError
├── RawFileError        a raw file is missing, empty or lacks a column
├── BadLinesError       more malformed lines than allowed; shows the first ones
├── OutputError         the output cannot be written
└── SettingError        an argument makes no sense
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path


class SampleError(Exception):
    """Base of all errors raised by `sample` on purpose."""


class SettingError(SampleError):
    """An argument makes no sense; the text names it and says what does."""


class OutputError(SampleError):
    """The output cannot be written; the text says where and why."""


class RawFileError(SampleError):
    """A raw file cannot be used at all.

    Args:
        path: the file.
        problem: what is wrong and what to do.
    """

    def __init__(self, path: Path, problem: str) -> None:
        self.path, self.problem = path, problem
        super().__init__(f"{path}: {problem}")


@dataclass(frozen=True)
class BadLine:
    """One malformed line: `line` counts from 1, the line of column names included."""

    path: Path
    line: int
    problem: str
    text: str

    def __str__(self) -> str:
        shown = self.text if len(self.text) <= 80 else self.text[:77] + "..."
        return f"{self.path}, line {self.line}: {self.problem}: {shown!r}"


class BadLinesError(SampleError):
    """More malformed lines than `allowed`."""

    def __init__(self, count: int, allowed: int, examples: Sequence[BadLine]) -> None:
        self.count, self.allowed, self.examples = count, allowed, tuple(examples)
        seen = "at least " if count > allowed else ""
        listed = "\n  ".join(str(example) for example in examples)
        super().__init__(
            f"{seen}{count} malformed lines, {allowed} allowed; mend them, or skip more with "
            f"--max-bad\n  {listed}"
        )


@contextmanager
def writing(path: Path) -> Iterator[None]:
    """Whatever the system refuses in the block is an error about `path`.

    Raises:
        OutputError: the disk is full, the folder is not there, and the like.
    """
    try:
        yield
    except OSError as error:
        reason = error.strerror or str(error)
        raise OutputError(f"{path} cannot be written: {reason}") from error
