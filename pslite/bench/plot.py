"""The picture: keys a second of every peer, as groups of bars."""

from __future__ import annotations

from pathlib import Path

from pslite.bench.errors import BenchError
from pslite.bench.results import Measurement, Results
from pslite.bench.targets import NAMES, thousands

OPS = ("pull", "push", "push_pull")
OURS, THEIRS = ("#c0392b", "#e67e22"), ("#34495e", "#5d7ea3", "#95a5a6", "#c8d0d5", "#7f8c8d")


def draw(results: Results, path: Path) -> None:
    """Write the picture of the tables to `path`, as its suffix says (`.png`, `.svg`, `.pdf`).

    Raises:
        BenchError: there is nothing to draw, or no such format.
    """
    import matplotlib

    matplotlib.use("Agg")  # no display
    import matplotlib.pyplot as plt

    found = list(results.select(workload="tables", optimizer="adagrad"))
    dims = list(dict.fromkeys(one.case["dim"] for one in found))
    if not found:
        raise BenchError("nothing to draw: the workload `tables` was not measured")
    size = (4.4 * len(OPS) + 1, 2.6 * len(dims) + 1)
    figure, grid = plt.subplots(len(dims), len(OPS), figsize=size, squeeze=False)
    for axes_of_dim, dim in zip(grid, dims, strict=True):
        for axes, op in zip(axes_of_dim, OPS, strict=True):
            _bars(axes, [one for one in found if (one.what, one.case["dim"]) == (op, dim)])
            axes.set_title(f"{NAMES.get(op, op)}, dim {dim}", fontsize=10)
    for axes_of_dim in grid:
        axes_of_dim[0].set_ylabel("million keys a second")
    handles, labels = grid[0][0].get_legend_handles_labels()
    figure.legend(handles, labels, loc="upper center", ncols=max(1, len(labels)), frameon=False)
    figure.text(0.5, 0.005, _caption(results), ha="center", fontsize=8, color="#555555")
    figure.tight_layout(rect=(0, 0.03, 1, 1 - 0.4 / size[1]))
    try:
        figure.savefig(path, dpi=130)
    except (OSError, ValueError) as error:
        raise BenchError(f"--png {path} cannot be written: {error}") from None
    finally:
        plt.close(figure)


def _bars(axes, found: list[Measurement]) -> None:  # type: ignore[no-untyped-def]
    counts = list(dict.fromkeys(one.case["count"] for one in found))
    peers = list(dict.fromkeys(one.peer for one in found))
    colours = dict(zip([p for p in peers if p.startswith("pslite")], OURS, strict=False))
    colours |= dict(zip([p for p in peers if p not in colours], THEIRS, strict=False))
    width = 0.84 / max(1, len(peers))
    for place, peer in enumerate(peers):
        own = {one.case["count"]: one for one in found if one.peer == peer}
        shown = [count for count in counts if count in own]
        medians = [own[count].median / 1e6 for count in shown]
        spread = [
            [(own[count].median - own[count].low) / 1e6 for count in shown],
            [(own[count].high - own[count].median) / 1e6 for count in shown],
        ]
        centres = [counts.index(count) + (place + 0.5) * width - 0.42 for count in shown]
        style = {"yerr": spread, "error_kw": {"elinewidth": 0.7}, "label": peer}
        axes.bar(centres, medians, width, color=colours.get(peer, "#bbbbbb"), **style)
    axes.set_xticks(range(len(counts)), [f"K = {thousands(count)}" for count in counts])
    axes.spines[["top", "right"]].set_visible(False)
    axes.grid(axis="y", linewidth=0.4, alpha=0.6)
    axes.set_axisbelow(True)


def _caption(results: Results) -> str:
    facts = results.facts
    return (
        f"Adagrad, 1 server, 1 worker, {thousands(facts['sizes']['rows'])} rows; "
        f"median of {facts['sizes']['rounds']} rounds, lines: min to max; "
        f"{facts['processor']}, {facts['cores']} cores; {facts['date']}"
    )
