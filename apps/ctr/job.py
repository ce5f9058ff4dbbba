"""A training job as it is agreed on before any process starts, and its place on disk.

RUN/conf/           copies of the ini files, and job.json: all settings as they were resolved
RUN/features/       dictionary and description of the features (and the extracted files)
RUN/model/          the trained model
RUN/metrics.json    the final figures, RUN/metrics.jsonl those of each interval
RUN/learning_curve.png   the latter as a picture
RUN/ledger.jsonl    which worker trained on which rows, for `pslite audit RUN`
"""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from apps.ctr.errors import SavedModelError
from apps.ctr.modelconf import ModelConfig, model_config, plain_sections
from apps.ctr.output import replacing, writing
from kv.checkpoint.config import CheckpointConfig
from kv.compression.settings import NO_RULES, Rules
from kv.consistency.settings import Async, Consistency, Sync
from kv.leases.ledger import FILE as LEDGER

MODES = ("local", "threads", "cluster")


@dataclass(frozen=True, kw_only=True)
class RunFolder:
    """The paths of a run."""

    path: Path

    @property
    def conf(self) -> Path:
        return self.path / "conf"

    @property
    def features(self) -> Path:
        return self.path / "features"

    @property
    def model(self) -> Path:
        return self.path / "model"

    @property
    def metrics(self) -> Path:
        return self.path / "metrics.json"

    @property
    def intervals(self) -> Path:
        return self.path / "metrics.jsonl"

    @property
    def curve(self) -> Path:
        return self.path / "learning_curve.png"

    @property
    def ledger(self) -> Path:
        return self.path / LEDGER

    @property
    def feature_ini(self) -> Path:
        return self.conf / "features.ini"

    @property
    def job(self) -> Path:
        return self.conf / "job.json"


@dataclass(frozen=True, kw_only=True)
class TrainJob:
    """What every worker of a training job must know.

    Attributes:
        train, test: files of final features; `test` may be None.
        mode: local (one process, no network), threads or cluster (processes).
        consistency: when pushes count, and who waits for whom.
        seed: of initial values.
        checkpoint: where the job is saved, and what it goes on from.
        is_fixed: nothing may be left to chance: the run is to repeat.
        compression: of tables' values on their way, the section `[compression]`.
        warnings: what looked like a mistake in the ini files, to be repeated at the end.
    """

    run: RunFolder
    train: Path
    test: Path | None
    conf: ModelConfig
    mode: str = "local"
    servers: int = 1
    workers: int = 1
    consistency: Consistency = field(default_factory=Async)
    seed: int = 1
    checkpoint: CheckpointConfig = field(default_factory=CheckpointConfig)
    is_fixed: bool = False
    compression: Rules = NO_RULES
    warnings: tuple[str, ...] = ()

    @property
    def sync(self) -> bool:
        """Whether each step is of all workers, who share its batch; else batches are each one's."""
        return isinstance(self.consistency, Sync)

    def write(self) -> None:
        """Leave the job in its run folder, where `read_job` finds it."""
        found = {**vars(self), "conf": self.conf.as_dict(), "run": str(self.run.path)}
        found["consistency"] = self.consistency.to_dict()
        found["checkpoint"] = dict(vars(self.checkpoint))
        found["compression"] = dict(self.compression.said)
        found |= {"train": str(self.train), "test": self.test and str(self.test)}
        write_json(self.run.job, found)


def read_train_job(run: Path) -> TrainJob:
    """The job of a run folder.

    Raises:
        SavedModelError: there is none.
    """
    folder = RunFolder(path=run)
    try:
        found = json.loads(folder.job.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise SavedModelError(run, f"{folder.job} cannot be read: {error}") from error
    found["conf"] = model_config(plain_sections(found["conf"]), file=str(folder.job))
    found |= {"run": folder, "train": Path(found["train"])}
    found["consistency"] = Consistency.from_dict(found.get("consistency", {"name": "async"}))
    found["checkpoint"] = CheckpointConfig(**found.get("checkpoint", {}))
    found["compression"] = Rules(found.get("compression", {}))
    found["warnings"] = tuple(found.get("warnings", ()))
    return TrainJob(**{**found, "test": found["test"] and Path(found["test"])})


def write_json(path: Path, value: Any) -> None:
    """Write a JSON file that is either the old one or the new one, never a part.

    Raises:
        OutputError: it cannot be written.
    """
    with writing(path):
        path.parent.mkdir(parents=True, exist_ok=True)
    with replacing(path) as fresh:
        fresh.write_text(json.dumps(value, indent=2) + "\n", encoding="utf-8")
