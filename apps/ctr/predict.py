"""Use a trained model: measure it on a file, or write its predictions."""

from __future__ import annotations

import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import torch
from tqdm import tqdm

from apps.ctr.dataset import Dataset, open_source
from apps.ctr.inputs import Kind, final_file
from apps.ctr.job import RunFolder
from apps.ctr.metrics import Quality, quality
from apps.ctr.output import refuse_overwriting, replacing
from apps.ctr.progress import Step
from apps.ctr.savedmodel import SavedModel
from apps.ctr.trainer import score_part


def evaluate(run: RunFolder, data: Path, kind: Kind = "auto") -> Quality:
    """Measure the model of a run on a file of labelled rows.

    Args:
        kind: whether `data` holds final features or samples.
    Raises:
        SavedModelError: the run has no usable model.
        DataError: the file cannot be used or has other features.
        FeatureError: the samples do not fit the run's feature ini.
    """
    with _scored(run, data, kind, labelled=True) as steps:
        found = list(steps)
    empty = np.empty(0, np.float32)
    labels = np.concatenate([empty, *(step.labels for step in found)])
    return quality(labels, np.concatenate([empty, *(step.scores for step in found)]))


def predict(run: RunFolder, data: Path, out: Path, kind: Kind = "auto") -> int:
    """Write one probability a line, in the order of the file; returns how many.

    Each has the digits that read back to the same float32. Arguments and errors as of `evaluate`;
    rows need no label.

    Raises:
        OutputError: `out` cannot be written, or is `data`.
    """
    refuse_overwriting(out, data)
    rows = 0
    with (
        _scored(run, data, kind, labelled=False) as steps,
        replacing(out) as aside,
        aside.open("w", encoding="ascii") as file,
    ):
        for step in steps:
            file.writelines(str(score) + "\n" for score in step.scores)
            rows += len(step.scores)
    return rows


@contextmanager
def _scored(run: RunFolder, data: Path, kind: Kind, *, labelled: bool) -> Iterator[Iterator[Step]]:
    model = SavedModel(run.model)
    torch.set_num_threads(model.conf.train.threads)
    with tempfile.TemporaryDirectory(prefix="pslite-ctr-") as scratch:
        file = final_file(data, run, kind, Path(scratch))
        blocks = model.learner.network.blocks
        rows = Dataset(open_source(file, blocks, labelled=labelled))
        than = f"the model of {run.path}"
        model.schema.check_same(rows.schema, str(data), than)
        if doubt := model.schema.doubt(rows.schema, str(data), than):
            print(doubt, file=sys.stderr)
        yield _with_bar(score_part(model.learner, rows, 0, 1), rows.rows)


def _with_bar(steps: Iterator[Step], total: int | None) -> Iterator[Step]:
    with tqdm(total=total, unit=" rows", disable=not sys.stderr.isatty(), leave=False) as bar:
        for step in steps:
            yield step
            bar.update(len(step.scores))
