"""What a training run says while it runs: a bar, a line an interval, a line in metrics.jsonl."""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from tqdm import tqdm

from apps.ctr.metrics import auc, row_losses
from apps.ctr.output import writing


@dataclass(frozen=True)
class Step:
    """What one step of one worker did.

    Attributes:
        epoch: from 1.
        batch: number of the global batch in its epoch, from 1.
        labels, scores: float32 (rows,), scores before the step.
        loss: sum of the rows' losses.
        position: rows of the job up to here, of all workers and epochs; 0: not known.
        skipped: rows that were left out of the step, which labels and scores lack.
    """

    epoch: int
    batch: int
    labels: NDArray[np.float32]
    scores: NDArray[np.float32]
    loss: float
    position: int = 0
    skipped: int = 0


@dataclass
class Interval:
    """Steps since the last report."""

    rows: int = 0
    loss: float = 0.0
    labels: list[NDArray[np.float32]] = field(default_factory=list)
    scores: list[NDArray[np.float32]] = field(default_factory=list)

    def add(self, step: Step) -> None:
        self.rows += len(step.labels)
        self.loss += float(row_losses(step.labels, step.scores).sum())
        self.labels.append(step.labels)
        self.scores.append(step.scores)

    def auc(self) -> float | None:
        return auc(np.concatenate(self.labels), np.concatenate(self.scores)) if self.rows else None


class Progress:
    """Reports on the steps it is told of.

    Args:
        interval: batches between two reports; 0 is never.
        log: a file of one JSON object a line, or None.
        say: gets each line for people.
        total: rows of all epochs and workers for the bar, None if unknown.
        now: a clock in seconds.
    """

    def __init__(
        self,
        interval: int,
        log: Path | None = None,
        say: Callable[[str], None] = lambda text: None,
        total: int | None = None,
        now: Callable[[], float] = time.perf_counter,
    ) -> None:
        self._interval, self._say, self._now = interval, say, now
        self._log = log
        if log is not None:
            with writing(log):
                log.open("a").close()  # of a worker that is started again, it is carried on
        self._bar = tqdm(total=total, unit=" rows", disable=not sys.stderr.isatty(), leave=False)
        self._since, self._started = Interval(), now()
        self._rows, self._batches = 0, 0

    def __call__(self, step: Step) -> None:
        self._since.add(step)
        self._rows += len(step.labels)
        self._bar.update(max(0, step.position - self._bar.n))  # a piece may come a second time
        self._batches += 1
        if self._interval and self._batches % self._interval == 0:
            self._report(step)

    def _report(self, step: Step) -> None:
        now = self._now()
        rate = self._since.rows / max(now - self._started, 1e-9)
        loss = self._since.loss / max(self._since.rows, 1)
        area = self._since.auc()
        shown = "undefined" if area is None else f"{area:.4f}"
        with tqdm.external_write_mode():
            self._say(
                f"epoch {step.epoch} batch {step.batch}: loss {loss:.4f}, AUC {shown}, "
                f"{rate:,.0f} samples/s"
            )
        record = {"epoch": step.epoch, "batch": step.batch, "rows": self._rows}
        self._write({**record, "logloss": loss, "auc": area, "samples_per_second": rate})
        self._since, self._started = Interval(), self._now()

    def _write(self, record: dict[str, Any]) -> None:
        if self._log is not None:
            with writing(self._log), self._log.open("a", encoding="utf-8") as file:
                file.write(json.dumps(record) + "\n")

    def go_on(self, name: str, rows: int, own: int) -> None:
        """Carry on with the reports of a former run.

        Args:
            name: of the checkpoint.
            rows: of the job that were trained on, of all epochs.
            own: those of this worker.
        """
        self._rows = own
        self._bar.update(rows)
        total = "" if self._bar.total is None else f" of {self._bar.total:,}"
        self._say(f"going on from {name}: {rows:,}{total} rows were trained on")

    def close(self) -> None:
        self._bar.close()
