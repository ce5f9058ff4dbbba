"""The picture: idle share and step rate by workers, and how stale gradients are."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from pslite.simulate.errors import SimulateError
from pslite.simulate.outcome import Repeated

_MARKERS = "osD^vP*X<>"
_LINES = ("-", "--", "-.", ":")


def draw(found: Sequence[Repeated], path: Path) -> None:
    """Write the picture to `path`, a PNG.

    Raises:
        SimulateError: Matplotlib is not installed, or the file cannot be written.
    """
    figure_class = load_figure()
    figure = figure_class(figsize=(15, 4.6), layout="constrained")
    idle, rate, stale = figure.subplots(1, 3)
    most = max(one.first.workers for one in found)
    for place, mode in enumerate(dict.fromkeys(one.first.mode for one in found)):
        own = [one for one in found if one.first.mode == mode]
        style = {
            "marker": _MARKERS[place % len(_MARKERS)],
            "color": f"C{place % 10}",
            "linestyle": _LINES[place % len(_LINES)],  # some modes lie upon each other
        }
        workers = [one.first.workers for one in own]
        idle.plot(workers, [100 * one.idle_share for one in own], label=mode, **style)
        rate.plot(workers, [one.steps_per_second for one in own], **style)
        for one in own:
            if one.first.workers == most:
                _histogram(stale, one.staleness, style)
    _label(idle, "workers' time spent waiting", "workers", "%")
    _label(rate, "steps of all workers a second", "workers", None)
    rate.set_yscale("log")
    for axes in (idle, rate):
        axes.set_xscale("log", base=2)
        axes.xaxis.set_major_formatter("{x:g}")
    _label(stale, f"staleness of gradients, {most} workers", "updates", "% of pushes")
    figure.legend(loc="outside right upper", frameon=False)
    try:
        figure.savefig(path, dpi=110, format="png", metadata={"Software": None})
    except OSError as error:
        raise SimulateError(f"--png {path} cannot be written: {error.strerror}") from None


def load_figure() -> Any:
    """Matplotlib's figure, without a display.

    Raises:
        SimulateError: it is not installed.
    """
    try:
        from matplotlib.figure import Figure
    except ImportError:
        raise SimulateError("--png needs Matplotlib: pip install matplotlib") from None
    return Figure


def _label(axes: Any, title: str, below: str, beside: str | None) -> None:
    axes.set(title=title, xlabel=below, ylabel=beside)
    axes.grid(alpha=0.3)


def _histogram(axes: Any, counts: Counter[int], style: dict[str, str]) -> None:
    """Shares of the pushes by staleness 0, 1, 2-3, 4-7 and so on."""
    shares = by_powers(counts)
    names = ["0", "1", *(f"{2**n}-{2 ** (n + 1) - 1}" for n in range(1, len(shares)))]
    axes.plot(names[: len(shares)], [100 * share for share in shares], **style)
    axes.tick_params(axis="x", rotation=60)


def by_powers(counts: Counter[int]) -> list[float]:
    """The shares of what was counted at 0, 1, 2 to 3, 4 to 7, and so on.

    >>> by_powers(Counter({0: 2, 1: 1, 7: 1}))
    [0.5, 0.25, 0.0, 0.25]
    """
    total = counts.total()
    shares = [0.0] * (1 + max(counts, default=0).bit_length())
    for value, count in counts.items():
        shares[value.bit_length()] += count / total
    return shares
