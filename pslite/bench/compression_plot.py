"""The picture of `pslite bench compression`: what is saved, what it costs, what it changes."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from pslite.bench.compression import Measured, saved
from pslite.bench.errors import BenchError

OURS, REPORTED = "#c0392b", "#34495e"


def draw(measured: Sequence[Measured], path: Path) -> None:
    """Write the picture to `path`, as its suffix says (`.png`, `.svg`, `.pdf`).

    Raises:
        BenchError: it cannot be written, or there is no such format.
    """
    import matplotlib

    matplotlib.use("Agg")  # no display
    import matplotlib.pyplot as plt

    plain, *cases = measured
    places = list(range(len(cases)))[::-1]
    figure, (bytes_axes, compute_axes, auc_axes) = plt.subplots(
        1, 3, figsize=(14, 1.6 + 0.42 * len(cases)), sharey=True
    )
    kept = [100 - saved(one.first.value_nbytes, one.first.plain_nbytes) for one in cases]
    bytes_axes.barh(places, kept, color=OURS, label="measured")
    compute_axes.barh(places, [one.extra_compute(plain) for one in cases], color=OURS)
    auc_axes.barh(places, [one.first.auc - plain.first.auc for one in cases], color=OURS)
    for place, one in zip(places, cases, strict=True):
        if one.case.reported is not None:
            label = (
                "reported" if "reported" not in bytes_axes.get_legend_handles_labels()[1] else ""
            )
            traffic, compute = one.case.reported
            style = {"color": REPORTED, "linestyle": "none", "marker": "D", "label": label}
            bytes_axes.plot([100 - traffic], [place], **style)
            compute_axes.plot([compute], [place], **style)
    bytes_axes.set_yticks(places, [one.case.name for one in cases])
    bytes_axes.set_title("bytes of gradients, % of float32", fontsize=10)
    compute_axes.set_title("extra processor time, %", fontsize=10)
    auc_axes.set_title(f"change of AUC, {plain.first.auc:.4f} without", fontsize=10)
    for axes in (bytes_axes, compute_axes, auc_axes):
        axes.spines[["top", "right"]].set_visible(False)
        axes.grid(axis="x", linewidth=0.4, alpha=0.6)
        axes.set_axisbelow(True)
    if any(one.case.reported is not None for one in cases):
        bytes_axes.legend(frameon=False, fontsize=8)
    figure.tight_layout()
    try:
        figure.savefig(path, dpi=130)
    except (OSError, ValueError) as error:
        raise BenchError(f"--png {path} cannot be written: {error}") from None
    finally:
        plt.close(figure)
