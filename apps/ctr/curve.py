"""The picture of a training run: log-loss and AUC by interval, beside those of the test."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from apps.ctr.output import replacing


def draw_curve(intervals: Path, metrics: dict[str, Any], out: Path) -> bool:
    """Draw `metrics.jsonl` as a PNG; False if the run reported no interval.

    Args:
        intervals: the file of reports, a JSON object a line.
        metrics: the run's final figures.
        out: where the picture goes.
    """
    reports = [json.loads(line) for line in intervals.read_text(encoding="utf-8").splitlines()]
    if not reports:
        return False
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 3.6), layout="constrained")
    FigureCanvasAgg(figure)
    rows = [report["rows"] for report in reports]
    for axes, name, title in zip(
        figure.subplots(1, 2), ("logloss", "auc"), ("log-loss", "AUC"), strict=True
    ):
        known = [(x, report[name]) for x, report in zip(rows, reports, strict=True)]
        known = [(x, y) for x, y in known if y is not None]
        axes.plot(*zip(*known, strict=True), marker=".", label="before each step, training rows")
        tested = metrics.get(f"test_{name}")
        if tested is not None:
            axes.axhline(tested, color="tab:orange", linestyle="--", label=f"test: {tested:.4f}")
        axes.set(title=title, xlabel="rows seen by worker 0")
        axes.grid(alpha=0.3)
        if axes.get_legend_handles_labels()[0]:  # no AUC is known where all labels are equal
            axes.legend()
    figure.suptitle(
        f"{metrics['model']}, {metrics['mode']}, {metrics['param_sync']}, "
        f"{metrics['workers']} worker{'s' if metrics['workers'] > 1 else ''}"
    )
    with replacing(out) as aside:
        figure.savefig(aside, dpi=110, format="png")
    return True
