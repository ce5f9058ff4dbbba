"""The figures of `bench/sync_share.py` as a table, in words, and as a picture."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pslite.simulate.plot import load_figure

CLAIM_ALL_REDUCE, CLAIM_SERVERS, CLAIM_FROM = 0.63, 0.17, 1024
_MARKERS = "osD^vPX"


@dataclass(frozen=True)
class Share:
    """What the workers of one way did at one dimension.

    Attributes:
        share: of the workers' time in which they did not compute.
        seconds: of a step, on average.
        sent, received: bytes of a worker's step.
    """

    share: float
    seconds: float
    sent: float
    received: float


def share_of(figures: Sequence[Mapping[str, Any]]) -> Share:
    """All workers' figures of one dimension as one."""
    seconds = sum(one["seconds"] for one in figures)
    steps = sum(one["steps"] for one in figures)
    sent, received = (sum(one[key] for one in figures) / steps for key in ("sent", "received"))
    computed = sum(one["computed"] for one in figures)
    return Share(1 - computed / seconds, seconds / steps, sent, received)


Found = Mapping[str, Mapping[int, Share]]
"""By way and dimension."""


def table(found: Found) -> str:
    """Markdown: a line a dimension, a column a way; shares, and megabytes of a worker's step."""
    dims = sorted({dim for shares in found.values() for dim in shares})
    lines = [f"| dimension | {' | '.join(found)} |", "| ---: |" + " ---: |" * len(found)]
    for dim in dims:
        cells = [_cell(shares.get(dim)) for shares in found.values()]
        lines.append(f"| {dim} | {' | '.join(cells)} |")
    return "\n".join(lines)


def _cell(share: Share | None) -> str:
    if share is None:
        return ""
    return f"{share.share:.0%} ({(share.sent + share.received) / 1e6:.1f} MB)"


def verdict(found: Found) -> str:
    """What became of the claim, in a line a way."""
    lines = []
    for way, shares in found.items():
        large = [one.share for dim, one in shares.items() if dim >= CLAIM_FROM]
        if not large:
            continue
        is_reduce = way == "all-reduce"
        holds = min(large) >= CLAIM_ALL_REDUCE - 0.005 if is_reduce else max(large) < CLAIM_SERVERS
        wanted = f"{CLAIM_ALL_REDUCE:.0%} or more" if is_reduce else f"under {CLAIM_SERVERS:.0%}"
        lines.append(
            f"- {way}: {min(large):.0%} to {max(large):.0%} from dimension {CLAIM_FROM} on; "
            f"{wanted} was the aim: {'reached' if holds else 'not reached'}."
        )
    return "\n".join(lines)


def draw(found: Found, path: Path, title: str) -> None:
    """Write the picture, a PNG.

    Raises:
        SimulateError: Matplotlib is not installed.
    """
    figure = load_figure()(figsize=(8, 4.6), layout="constrained")
    axes = figure.subplots()
    for place, (way, shares) in enumerate(found.items()):
        dims = sorted(shares)
        values = [100 * shares[dim].share for dim in dims]
        axes.plot(dims, values, label=way, marker=_MARKERS[place % len(_MARKERS)])
    for level in (CLAIM_ALL_REDUCE, CLAIM_SERVERS):
        axes.axhline(100 * level, color="0.6", linestyle=":", linewidth=1)
    axes.set(title=title, xlabel="embedding dimension", ylabel="% of a step spent synchronising")
    axes.set_xscale("log", base=2)
    axes.xaxis.set_major_formatter("{x:g}")
    axes.set_ylim(0, 100)
    axes.legend(frameon=False)
    figure.savefig(path, dpi=110, format="png", metadata={"Software": None})
