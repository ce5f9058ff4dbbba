"""What can go wrong with checkpoints; all of it is a `KVError`.

CheckpointError                    has `.url`
├── CheckpointWriteError           a save failed; names the checkpoint that is still good
├── NoCheckpointError              there is none, or none of that name
├── DamagedCheckpointError         has `.name`: torn, altered, or not complete
└── CheckpointMismatchError        has `.problems`: its tables are not those of the job
"""

from __future__ import annotations

from collections.abc import Sequence

from kv.errors import KVError


class CheckpointError(KVError):
    """Something about the checkpoints under `url` went wrong."""

    def __init__(self, url: str, problem: str) -> None:
        self.url, self.problem = url, problem
        super().__init__(f"checkpoints {url}: {problem}")


class CheckpointWriteError(CheckpointError):
    """A checkpoint could not be saved; those before it are as they were."""

    def __init__(self, url: str, name: str, problem: str, last_good: str | None) -> None:
        self.name, self.last_good, self.reason = name, last_good, problem
        kept = f"{last_good} is the last good one" if last_good else "there is no earlier one"
        super().__init__(url, f"{name} was not saved, {kept}: {problem}")


class NoCheckpointError(CheckpointError):
    """There is no good checkpoint, or none of the name asked for."""


class DamagedCheckpointError(CheckpointError):
    """A checkpoint is torn, altered or not complete; `name` says which."""

    def __init__(self, url: str, name: str, problem: str) -> None:
        self.name, self.reason = name, problem
        super().__init__(url, f"{name} is damaged: {problem}")


class CheckpointMismatchError(CheckpointError):
    """A checkpoint does not fit the tables of the job; nothing was loaded."""

    def __init__(self, url: str, name: str, problems: Sequence[str]) -> None:
        self.name, self.problems = name, list(problems)
        super().__init__(url, f"{name} does not fit this job: " + "; ".join(problems))
