"""Figures as the small tables that commands end with."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from apps.ctr.metrics import Quality


def quality_report(found: Quality) -> str:
    """A few lines about a measurement."""
    lines = [
        ("rows", f"{found.rows:,}"),
        ("clicks", f"{found.positives:,}"),
        ("AUC", _number(found.auc, 5)),
        ("log-loss", _number(found.logloss, 5)),
        ("calibration", f"{_number(found.calibration, 4)} (mean prediction / mean label)"),
    ]
    return _table(lines) + (f"\n{found.remark}" if found.remark else "")


def training_report(metrics: dict[str, Any], out: Path) -> str:
    """The end of a training run: what was done, how fast, how good, where it lies."""
    total = sum(sum(seconds) for seconds in metrics["step_seconds"].values()) or 1.0
    parts = {part: sum(seconds) / total for part, seconds in metrics["step_seconds"].items()}
    curve = out / "learning_curve.png"
    lines = [
        ("mode", f"{metrics['mode']}, {metrics['param_sync']}"),
        ("servers, workers", f"{metrics['servers']}, {metrics['workers']}"),
        ("training rows", f"{metrics['train_samples']:,} in {metrics['seconds']:.1f} s"),
        ("samples/s", f"{metrics['samples_per_second']:,.0f}"),
        ("a step's time", ", ".join(f"{part} {share:.0%}" for part, share in parts.items())),
        ("train log-loss", _number(metrics["train_logloss"], 5)),
        ("test log-loss", _number(metrics["test_logloss"], 5)),
        ("test AUC", _number(metrics["test_auc"], 5)),
        ("test calibration", _number(metrics["test_calibration"], 4)),
        ("embedding rows", f"{metrics['embedding_rows']:,}"),
        ("model, figures", f"{out / 'model'}, {out / 'metrics.json'}"),
        (
            "learning curve",
            str(curve) if curve.is_file() else "none: no [debug] interval ended",
        ),
    ]
    remarks = [metrics["remark"]] if metrics["remark"] else []
    remarks += [f"warning: {warning}" for warning in metrics["warnings"]]
    return "\n".join([_table(lines), *remarks])


def _number(value: float | None, digits: int) -> str:
    return "undefined" if value is None else f"{value:.{digits}f}"


def _table(lines: Sequence[tuple[str, str]]) -> str:
    width = max(len(name) for name, _ in lines)
    return "\n".join(f"{name:<{width}}  {value}" for name, value in lines)
