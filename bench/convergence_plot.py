"""The experiments' picture: AUC and log-loss by workers, staleness, loss over virtual time."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from convergence_data import Case
from convergence_report import name_of
from convergence_results import Group, spread

from pslite.simulate.plot import by_powers

FAR = "async:lr"  # may lie so far from the others that it is let out of the picture
POINTS = 10  # of a curve
MARKERS = "osD^vP*X<>"
LINES = ("-", "--", "-.", ":")


def draw(groups: Sequence[Group], path: Path) -> None:
    """Write the picture: a row of panels for each case with several numbers of workers."""
    from matplotlib.figure import Figure

    shown = [
        (case, [group for group in groups if (group.case, group.test) == (case, case.tests[0][0])])
        for case in dict.fromkeys(group.case for group in groups)
        if case.has_target
    ]
    if not shown:
        return
    figure = Figure(figsize=(20, 4.6 * len(shown)), layout="constrained")
    rows = figure.subplots(len(shown), 4, squeeze=False)
    for (case, own), axes in zip(shown, rows, strict=True):
        _panels(case, own, axes)
    handles, labels = rows[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="outside lower center", ncols=4, frameon=False)
    figure.savefig(path, dpi=90, format="png", metadata={"Software": None})


def _panels(case: Case, groups: Sequence[Group], axes: Any) -> None:
    aucs, losses, stale, curves = axes
    most = max(group.workers for group in groups)
    alone = [group for group in groups if group.workers == 1]
    modes = list(dict.fromkeys(group.mode for group in groups if group.workers > 1))
    for place, mode in enumerate(modes):
        style = {
            "color": f"C{place}",
            "marker": MARKERS[place % len(MARKERS)],
            "linestyle": LINES[place % len(LINES)],  # some modes lie upon each other
            "markersize": 5,
        }
        own = [*alone, *(group for group in groups if group.mode == mode and group.workers > 1)]
        shift = 2 ** (0.03 * (place - len(modes) / 2))  # or the bars lie upon each other
        _bars(aucs, [(g.workers * shift, g.quality("auc")) for g in own], style, name_of(mode))
        _bars(
            losses, [(g.workers * shift, g.quality("logloss")) for g in own], style, name_of(mode)
        )
        for group in own:
            if group.workers == most:
                shares = [100 * share for share in by_powers(group.staleness)]
                names = ["0", "1", *(f"{2**n}–{2 ** (n + 1) - 1}" for n in range(1, len(shares)))]
                stale.plot(names[: len(shares)], shares, **style)
                curves.plot(*_thinned(group.curve()), **{**style, "marker": ""})
    near = [group for group in groups if group.mode != FAR] or groups
    _fit(aucs, [group.quality("auc") for group in near])
    _fit(losses, [group.quality("logloss") for group in near])
    for panel, title in ((aucs, "test AUC"), (losses, "test log-loss")):
        panel.set(title=f"{case.name}: {title}", xlabel="workers")
        panel.set_xscale("log", base=2)
        panel.xaxis.set_major_formatter("{x:g}")
    stale.set(
        title=f"{case.name}: staleness with {most} workers",
        xlabel="updates that a push knew nothing of",
        ylabel="% of pushes",
    )
    stale.tick_params(axis="x", rotation=45)
    curves.set(
        title=f"{case.name}: training log-loss with {most} workers",
        xlabel="virtual seconds",
    )
    for panel in axes:
        panel.grid(alpha=0.3)


def _bars(axes: Any, points: Sequence[tuple[float, list[float]]], style: Any, name: str) -> None:
    found = [(at, figures) for at, values in points if (figures := spread(values))]
    axes.errorbar(
        [at for at, _ in found],
        [figures["mean"] for _, figures in found],
        [figures["deviation"] for _, figures in found],
        capsize=3,
        label=name,
        **style,
    )


def _fit(axes: Any, values: Sequence[list[float]]) -> None:
    """Show these, and what is near them."""
    found = [figures for some in values if (figures := spread(some))]
    if not found:
        return
    low = min(figures["mean"] - figures["deviation"] for figures in found)
    high = max(figures["mean"] + figures["deviation"] for figures in found)
    margin = 0.1 * (high - low) or 0.01
    axes.set_ylim(low - margin, high + margin)


def _thinned(curve: Sequence[tuple[float, float]]) -> tuple[list[float], list[float]]:
    """Times and losses, each the mean of several points of the curve."""
    parts = [part for part in np.array_split(np.array(curve), POINTS) if len(part)]
    return [float(part[:, 0].mean()) for part in parts], [
        float(part[:, 1].mean()) for part in parts
    ]
