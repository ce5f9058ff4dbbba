"""Errors of the CTR app.

PsliteError
├── ConfigError          a model ini or an option is wrong (from `van.errors`)
└── CtrError
    ├── DataError        a training, test or prediction file cannot be used
    ├── OutputError      a file cannot be written
    ├── ModelError       a network does not fit its layers, its loss or the data
    │   └── BadOutputError   what it computed of some rows is NaN or infinity
    └── SavedModelError  the files of a saved model are missing, altered or of another kind
"""

from __future__ import annotations

from pathlib import Path

from van.errors import PsliteError


class CtrError(PsliteError):
    """Something about training or predicting went wrong."""


class DataError(CtrError):
    """A data file cannot be used.

    Args:
        file: the file.
        problem: what is wrong and what to do.
        line: its line (from 1), where that is known.
    """

    def __init__(self, file: str | Path, problem: str, *, line: int | None = None) -> None:
        self.file, self.problem, self.line = str(file), problem, line
        place = self.file if line is None else f"{self.file}, line {line}"
        super().__init__(f"{place}: {problem}")


class OutputError(CtrError):
    """The file or folder `path` cannot be written, for `reason`."""

    def __init__(self, path: str | Path, reason: str) -> None:
        self.path, self.reason = str(path), reason
        super().__init__(f"{self.path} cannot be written: {reason}")


class ModelError(CtrError):
    """A network does not fit its layers, its loss or the data."""


class BadOutputError(ModelError):
    """A network's output for some rows is NaN or infinity, of which there is no loss."""


class SavedModelError(CtrError):
    """A saved model cannot be used; `path` says where it lies."""

    def __init__(self, path: str | Path, problem: str) -> None:
        self.path, self.problem = str(path), problem
        super().__init__(f"model {self.path}: {problem}")
