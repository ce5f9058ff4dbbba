"""What programs are told of checkpoints: what they go on from, and what became of their saves."""

from __future__ import annotations

import logging
from dataclasses import dataclass
from typing import Any

from kv.checkpoint.complaint import Complaint
from kv.checkpoint.errors import CheckpointWriteError
from kv.checkpoint.manifest import Manifest

log = logging.getLogger(__name__)


@dataclass(frozen=True)
class Resumed:
    """What a job goes on from.

    Attributes:
        name: of the checkpoint.
        state: this worker's own; None if it has none, or the job had another number of workers.
        states: those of all workers of the former job, by rank.
        notes: what is to be said, such as settings that are others now.
        note: the application's, of the whole job.
    """

    name: str
    state: Any
    states: list[Any]
    notes: list[str]
    manifest: Manifest

    @property
    def note(self) -> dict[str, Any]:
        return self.manifest.note


class Tally:
    """What became of the checkpoints of a run; failures in a row are said once.

    Attributes:
        saved: names.
        failures: what each that failed said.
    """

    def __init__(self) -> None:
        self.saved: list[str] = []
        self.failures: list[str] = []
        self._complaint = Complaint(log)

    def success(self, manifest: Manifest, url: str) -> None:
        """A checkpoint was saved."""
        self.saved.append(manifest.name)
        log.info("checkpoint %s of step %s saved", manifest.name, manifest.steps)
        self._complaint.worked(f"checkpoints {url}: {manifest.name} was saved")

    def failure(self, error: CheckpointWriteError) -> None:
        """One was not."""
        self.failures.append(str(error))
        self._complaint.failed(str(error))

    def end(self) -> None:
        """No other is tried."""
        self._complaint.end()
